"""The oldest servers that streams run on: Redis 7.0 and NATS 2.9, for `--full` alone.

No wheel has them. Debian 12 does: its packages are downloaded by apt, unpacked beside this environment, and not
installed; that needs neither root nor anything but `apt-get` and `dpkg`. On another system name the binaries:
`WRASSE_TEST_OLD_REDIS_SERVER` and `WRASSE_TEST_OLD_NATS_SERVER`. One that cannot be had is a failure, never a skip.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_FETCH_MAX_S = 300
_LIBRARIES = "usr/lib/*-linux-gnu"


@functools.cache
def redis_7_0() -> Path:
    """Redis 7.0."""
    packages = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
    return _found("WRASSE_TEST_OLD_REDIS_SERVER", packages, "usr/bin/redis-server", "v=7.0.")


@functools.cache
def nats_2_9() -> Path:
    """NATS 2.9, of before copies were safe (2.9.21)."""
    return _found("WRASSE_TEST_OLD_NATS_SERVER", ("nats-server",), "usr/sbin/nats-server", "v2.9.")


def _found(variable: str, packages: Sequence[str], binary: str, version: str) -> Path:
    named = os.environ.get(variable)
    path = Path(named) if named else _fetched(packages, binary)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert version in said, f"{said.strip()} is not what the test is about ({version}): name one by {variable}"
    return path


def _fetched(packages: Sequence[str], binary: str) -> Path:
    """The binary out of Debian's packages, downloaded once for this environment."""
    place = Path(sys.prefix) / "old-servers" / packages[0]
    start = place / "start"
    if start.exists():
        return start
    place.parent.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        made.chmod(0o755)
        _run(made, "apt-get", "download", "-q", *packages)
        for each in made.glob("*.deb"):
            _run(made, "dpkg", "-x", each.name, ".")
        libraries = ":".join(str(place / found.relative_to(made)) for found in made.glob(_LIBRARIES))
        # Not installed, so the loader is told where its libraries are.
        (made / "start").write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{place / binary}" "$@"\n')
        (made / "start").chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return start


def _run(place: Path, *command: str) -> None:
    told = "`apt-get update` may be missing; else name the binaries, as tests/servers/old.py says"
    try:
        subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_FETCH_MAX_S, check=True)
    except FileNotFoundError as missing:
        raise RuntimeError(f"there is no {command[0]} to fetch an old server with: {told}") from missing
    except subprocess.CalledProcessError as failed:
        raise RuntimeError(f"{' '.join(command)}: {failed.stderr.strip()[-500:]}; {told}") from failed
