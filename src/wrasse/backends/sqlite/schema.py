"""The schema's version: an old database is migrated when it is opened, a newer or foreign one is refused.

All missing steps are made in one transaction under the write lock, and the version is read again inside it, so two
processes that open a database at once make each step once. Nothing is written to a file before it is known to be ours.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

import apsw

from wrasse.errors import StoreBroken, StoreUnavailable

APPLICATION_ID = 0x77726173  # "wras", in the file's header
_SWITCH_TRIES = 1_000
_SWITCH_PAUSE = 0.01


def load_steps() -> tuple[str, ...]:
    """The steps of schema.sql; step n brings a database from version n-1 to n."""
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- step (\d+)$", text, flags=re.MULTILINE)
    assert parts[::2] == [str(n + 1) for n in range(len(parts) // 2)], "steps are numbered from 1 without a gap"
    return tuple(parts[1::2])


def prepare(db: apsw.Connection, where: str, steps: Sequence[str]) -> None:
    """Migrates the database to this version of wrasse, or raises the reason why not."""
    if _version(db, where, steps) < len(steps) or db.pragma("journal_mode") != "wal":
        _use_wal(db, where)
        _apply(db, where, steps)


def identity(db: apsw.Connection) -> str:
    """The name given to this database when it was made; of an invalid one its bytes, so that the identity differs."""
    name = db.execute("SELECT CAST(name AS BLOB) FROM identity").get
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def _version(db: apsw.Connection, where: str, steps: Sequence[str]) -> int:
    """The version of a database that is ours or empty. One transaction: another process may be making it just now."""
    with db:
        empty = db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is None
        application, version = int(db.pragma("application_id")), int(db.pragma("user_version"))
    if application != APPLICATION_ID and (application or version or not empty):
        raise StoreBroken(
            f"{where} is a database of another program", do="name another file; nothing was changed in this one"
        )
    if version > len(steps):
        raise StoreBroken(
            f"{where} has schema version {version}, and this version of wrasse knows {len(steps)}",
            do="use the newer version of wrasse that wrote it, or another file",
        )
    return version


def _use_wal(db: apsw.Connection, where: str) -> None:
    """Enables the write-ahead log, which lets readers work beside the writer. SQLite fails at once while another
    process makes the same switch, so the retry is here."""
    pause = threading.Event()
    for _ in range(_SWITCH_TRIES):
        try:
            mode = db.pragma("journal_mode", "wal")
        except apsw.BusyError:
            pause.wait(_SWITCH_PAUSE)
            continue
        if mode != "wal":
            raise StoreUnavailable(
                f"{where} cannot keep a write-ahead log, only {mode}", do="put it on a local disk, not on a share"
            )
        return
    raise apsw.BusyError("another process prevented the switch to the write-ahead log")


def _apply(db: apsw.Connection, where: str, steps: Sequence[str]) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db, where, steps)
        for step in steps[version:]:
            for _ in db.execute(step):
                pass  # a statement that returns rows must be read to its end before the next one
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", len(steps))
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
