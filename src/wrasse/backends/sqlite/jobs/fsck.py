"""Inconsistencies of jobs that another program can cause in a database: rows with an invalid state, and counts of jobs
that differ from the rows. Each repair is one transaction that checks again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import apsw

from wrasse.backends.sqlite.bulk import text
from wrasse.backends.sqlite.connection_thread import SqliteReader, SqliteWriter
from wrasse.backends.sqlite.rows import flaw_of
from wrasse.backends.sqlite.write_transaction import DEAD, NOWHERE, WriteTransaction
from wrasse.ports.inconsistency import NAMES_MAX, Inconsistency
from wrasse.ports.jobs import Reason

_STATES = f"SELECT seq, CAST(id AS BLOB), state FROM jobs WHERE {NOWHERE} ORDER BY seq"
_DEAD_LETTER = (
    f"UPDATE jobs SET state = ?, deadline = NULL, finished_at = ?, reason = ?, error = ? WHERE seq = ? AND {NOWHERE}"
)
# Rows with an invalid state are not counted: they are dead once they are repaired.
_WRONG = f"""
    WITH really AS (SELECT queue, state, count(*) AS n FROM jobs WHERE NOT {NOWHERE} GROUP BY queue, state)
    SELECT CAST(queue AS BLOB), state FROM (
      SELECT queue, state, n FROM counts WHERE n > 0 EXCEPT SELECT queue, state, n FROM really
      UNION SELECT queue, state, n FROM (SELECT * FROM really EXCEPT SELECT queue, state, n FROM counts)
    ) GROUP BY queue, state
"""
_RECOUNT = "INSERT INTO counts (queue, state, n) SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"
_DONE = "UPDATE numbers SET done = (SELECT count(*) FROM jobs WHERE state >= 3 AND state = 3)"


class SqliteFsck:
    """The port."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader) -> None:
        self._writer, self._reader = writer, reader

    async def check(
        self, *, repair: bool, heartbeat_timeout: timedelta, seen: Callable[[int], None] = lambda count: None
    ) -> Sequence[Inconsistency]:
        """See Damages."""
        if repair:
            return await self._writer.do(_repaired)
        return await self._reader.do(lambda db: _found(db, repaired=False))


def _found(db: apsw.Connection, *, repaired: bool) -> list[Inconsistency]:
    lost = [text(id) for _, id, _ in db.execute(_STATES)]
    wrong = [f"{text(queue)} (state {state})" for queue, state in db.execute(_WRONG)]
    kinds = [
        ("state", "a job with an invalid state", "it is dead, with its payload", lost),
        ("counts", "a count of jobs that differs from the rows", "it is counted again", wrong),
    ]
    return [
        Inconsistency(kind, about, repair, len(names), len(names) if repaired else 0, tuple(names[:NAMES_MAX]))
        for kind, about, repair, names in kinds
        if names
    ]


def _repaired(tx: WriteTransaction) -> list[Inconsistency]:
    found = _found(tx.db, repaired=True)
    now = tx.now()
    rows: list[Any] = tx.db.execute(_STATES).fetchall()
    for seq, _, state in rows:
        error = flaw_of(seq, f"its state was {state}")
        tx.db.execute(_DEAD_LETTER, (DEAD, now, Reason.INVALID_PAYLOAD, error, seq))
    if found:
        tx.db.execute("DELETE FROM counts")
        tx.db.execute(_RECOUNT)
        tx.db.execute(_DONE)
    return found
