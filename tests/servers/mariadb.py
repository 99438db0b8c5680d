"""MariaDB or MySQL, where the machine has one: WRASSE_TEST_MYSQL is a URL, or the folder of an installation.

    WRASSE_TEST_MYSQL=mysql://root@127.0.0.1:3306/test        a server that runs; the user may create databases
    WRASSE_TEST_MYSQL=/                                       what a package installed: usr/sbin/mariadbd below it

No wheel carries these servers, so tests of it are long forms, and there are none where the variable is not set.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

from servers.process import START_MAX_S, ServerProcess, folder, free_ports

NAMED = os.environ.get("WRASSE_TEST_MYSQL", "")


def _daemon(root: Path) -> Path:
    found = [root / "usr/sbin/mariadbd", root / "sbin/mariadbd", root / "bin/mariadbd", root / "mariadbd"]
    return next(path for path in found if path.exists())


def connected(url: str) -> pymysql.Connection:  # type: ignore[type-arg]
    """A connection of a user, without a database."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "", port=parts.port or 3306, user=parts.username or "root", password=parts.password or ""
    )


def _answering(url: str) -> None:
    end = time.monotonic() + START_MAX_S
    while True:
        try:
            connected(url).close()
            return
        except pymysql.err.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def mariadb() -> Iterator[str]:
    """The URL of a server, which has no database of ours yet."""
    assert NAMED, "set WRASSE_TEST_MYSQL"
    if "://" in NAMED:
        yield NAMED.rpartition("/")[0] if NAMED.count("/") > 2 else NAMED
        return
    (port,) = free_ports(1)
    root, daemon = Path(NAMED), _daemon(Path(NAMED))
    with folder() as place:
        data = place / "d"
        data.mkdir()
        argv = [daemon, "--no-defaults", f"--datadir={data}", "--skip-grant-tables", "--bind-address=127.0.0.1"]
        argv += [f"--port={port}", f"--socket={place / 's'}", "--innodb-buffer-pool-size=64M", "--skip-log-bin"]
        argv += ["--innodb-flush-log-at-trx-commit=0"]
        if (messages := root / "usr/share/mysql").is_dir():
            argv += [f"--lc-messages-dir={messages}"]
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(place, nobody.pw_uid, nobody.pw_gid)
            os.chown(data, nobody.pw_uid, nobody.pw_gid)
            argv += ["--user=nobody"]
        libraries = f"{root / 'usr/lib/x86_64-linux-gnu'}:{root / 'lib/x86_64-linux-gnu'}"
        env = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
        if root != Path("/"):
            env["LD_LIBRARY_PATH"] = libraries
        server = ServerProcess(argv, port, place, signal.SIGTERM, env)
        server.start()
        url = f"mysql://root@127.0.0.1:{port}"
        try:
            _answering(url)
            yield url
        finally:
            server.stop()


@contextlib.contextmanager
def database(url: str) -> Iterator[str]:
    """An empty database of that server; gives its URL. Its texts compare without case, as they do by default."""
    name = f"w{uuid.uuid4().hex}"
    with connected(url) as db, db.cursor() as run:
        run.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield f"{url}/{name}"
    finally:
        with connected(url) as db, db.cursor() as run:
            run.execute(f"DROP DATABASE {name}")
