"""What lies in the working directory where data is by default, while these settings keep nothing there.

A database that earlier settings, or an earlier version, used for ports that are elsewhere now would be forgotten
without a word. It is only read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from wrasse.app.config import Config
from wrasse.app.settings import EMBEDDED, EMBEDDED_OBJECTS
from wrasse.app.store_url import parse_objects, parse_store
from wrasse.errors import WrasseError
from wrasse.ports.finding import WARN, Finding

_HOW = "how to move it: docs/how-to/move-the-database.md"
_COUNTS = {
    "jobs": "SELECT count(*) FROM jobs",
    "records": "SELECT count(*) FROM records WHERE value IS NOT NULL AND collection NOT LIKE '.wrasse/%'",
    "streams": "SELECT count(*) FROM entries",
}


def left_behind(config: Config) -> Iterator[Finding]:
    """A default database or directory that holds data and is used by no part of these settings."""
    used = {*_used(config)}
    database, objects = (Path(url.partition(":")[2]).absolute() for url in (EMBEDDED, EMBEDDED_OBJECTS))
    if database.is_file() and database.resolve() not in used and (held := _held(database)):
        ports = ", ".join(f"backends.{port}: {EMBEDDED}" for port in held)
        counts = ", ".join(f"{count} {port}" for port, count in held.items())
        yield Finding(
            "place", WARN, f"{database.name} in the working directory holds {counts}, and these settings do not use it",
            f"to go on using it write {ports}; {_HOW}; if it is not needed, remove it",
        )  # fmt: skip
    if objects.is_dir() and objects.resolve() not in used and any(objects.iterdir()):
        yield Finding(
            "place", WARN, f"{objects.name} in the working directory holds objects, and these settings do not use it",
            f"to go on using it write backends.objects: {EMBEDDED_OBJECTS}; if it is not needed, remove it",
        )  # fmt: skip


def _used(config: Config) -> Iterator[Path]:
    """The files and directories that the settings name."""
    where, roots = config.homes, config.settings.orphans.values()
    homes = (*where.ports.values(), *where.sightings.values(), *(home for _, home in where.archives))
    for url in (*(home.url for home in homes), *(text for own in roots for text in (own.store, own.database))):
        if url.startswith(("sqlite:", "file:")):
            with suppress(WrasseError):  # a URL of SQLAlchemy may have another form
                yield Path((parse_objects if url.startswith("file:") else parse_store)(url).path).absolute().resolve()


def _held(database: Path) -> dict[str, int]:
    """How much of what is in a database of wrasse; nothing in any other. Neither file nor directory changes."""
    # Without a -wal file no process has it open, and reading it as it is creates none.
    state = "mode=ro" if database.with_name(f"{database.name}-wal").exists() else "immutable=1"
    found = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.as_uri()}?{state}", uri=True)) as opened:
        for port, query in _COUNTS.items():
            found[port] = int(opened.execute(query).fetchone()[0])
    return {port: count for port, count in found.items() if count}
