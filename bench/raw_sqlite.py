"""The raw limit: plain loops on one connection in one thread, with wrasse's own tables and statements.

No port, no event loop, no other thread, no objects made of rows: what is left is what SQLite and the disk take for the
same work, plus what it takes to know which job to run.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import apsw
import msgspec

from wrasse.backends.sqlite.connection import File, load_steps, prepare
from wrasse.backends.sqlite.jobs import changes, claim
from wrasse.ports.jobs import BATCH_MAX

DONE_MAX = 10_000
QUEUE = "low"
HEARTBEAT_TIMEOUT = 30_000_000

_INSERT = """
    INSERT INTO jobs (seq, id, state, queue, rank, ready_at, created_at, kind, priority, size, lasting, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

Row = tuple[int | str | bytes | None, ...]


def open_raw(place: Path) -> apsw.Connection:
    """A connection with the settings and tables of a wrasse database."""
    db = File.at(place / "raw.db", timedelta(seconds=10)).open(creates=True)
    prepare(db, "raw.db", load_steps())
    return db


def rows_of(ids: Sequence[str], payload: bytes) -> list[Row]:
    """The rows that an enqueue of these jobs makes."""
    now = _now()
    return [(seq, id, 0, QUEUE, seq, now, now, "", "low", len(payload), 0, payload) for seq, id in enumerate(ids, 1)]


def insert(db: apsw.Connection, rows: Sequence[Row]) -> None:
    """Inserts them, a batch to a transaction."""
    for start in range(0, len(rows), BATCH_MAX):
        batch = rows[start : start + BATCH_MAX]
        db.execute("BEGIN IMMEDIATE")
        db.executemany(_INSERT, batch)
        db.execute("COMMIT")


def note_ready(db: apsw.Connection, count: int) -> None:
    """What else an enqueue changes."""
    db.execute("UPDATE numbers SET back = back + ?", (count,))
    db.execute("INSERT INTO counts VALUES (?, 0, ?), (?, 2, 0), (?, 3, 0)", (QUEUE, count, QUEUE, QUEUE))


class RawLoop:
    """Claims, runs and completes jobs in batches until none is ready."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._done = 0
        self._number = 0
        self.ran = 0

    def run(self, enough: int) -> None:
        """The loop, until at least so many ran."""
        while self.ran < enough and (ids := self._claim()):
            self._complete(ids)

    def _claim(self) -> list[str]:
        db, now = self._db, _now()
        self._number += 1
        db.execute("BEGIN IMMEDIATE")
        seqs, size, _, bodies = db.execute(claim.SELECT_READY, (QUEUE, BATCH_MAX)).get
        if size is None:
            db.execute("COMMIT")
            return []
        numbers = msgspec.json.decode(seqs)
        grant = (self._number, "nonce", "worker", now + HEARTBEAT_TIMEOUT, now, now)
        db.execute(claim.UPDATE_RUNNING, (*grant, apsw.carray(array("q", numbers))))
        db.execute("UPDATE numbers SET back = back + 1")
        self._count((0, -len(numbers)), (2, len(numbers)))
        self._answer(f"claim {self._number}", seqs.encode(), now)
        db.execute("COMMIT")
        ids = []
        for row in msgspec.json.decode(bodies):
            self._handle(bytes.fromhex(row[5]))
            ids.append(row[1])
        return ids

    def _complete(self, ids: list[str]) -> None:
        db, now = self._db, _now()
        db.execute("BEGIN IMMEDIATE")
        seqs, queues, _ = db.execute(changes.SELECT_CURRENT, (apsw.carray(tuple(ids)), self._number, "nonce")).get
        numbers = msgspec.json.decode(seqs)
        assert len(msgspec.json.decode(queues)) == len(ids), "every claim is current"
        db.execute(changes.UPDATE_DONE, (now, apsw.carray(array("q", numbers))))
        self._done += len(ids)
        excess = max(self._done - DONE_MAX, 0)
        if excess:
            old = msgspec.json.decode(db.execute(changes.SELECT_OLDEST_DONE, (now, excess)).get[0])
            db.execute("DELETE FROM jobs WHERE seq IN carray(?)", (apsw.carray(array("q", old)),))
            self._done -= excess
        self._count((2, -len(ids)), (3, len(ids) - excess))
        self._answer(f"settle {self._number}", bytes(len(ids)), now)
        db.execute("COMMIT")

    def _handle(self, payload: bytes) -> None:
        self.ran += 1

    def _count(self, *moved: tuple[int, int]) -> None:
        for state, n in moved:
            self._db.execute("UPDATE counts SET n = n + ? WHERE queue = ? AND state = ?", (n, QUEUE, state))

    def _answer(self, request: str, answer: bytes, now: int) -> None:
        asked = self._db.execute("SELECT answer FROM requests WHERE request = ?", (request,)).get
        assert asked is None, "every request is new"
        values = (request, answer, now, time.monotonic())
        self._db.execute("INSERT INTO requests (request, answer, answered_at, ticks) VALUES (?, ?, ?, ?)", values)


def _now() -> int:
    return time.time_ns() // 1_000
