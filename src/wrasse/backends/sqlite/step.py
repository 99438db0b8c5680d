"""One write transaction, and what the operations of a group share in it.

Numbers, counts and remembered answers are changed in memory while the operations run and written once at the end, by
`close`, in the same transaction. If anything is rolled back, the whole Step is thrown away with it.
"""

from __future__ import annotations

from collections import defaultdict

import apsw

from wrasse.backends.sqlite.bulk import texts, write_rows
from wrasse.clock import Clock, to_micros
from wrasse.ports.jobs import REQUESTS_KEPT

READY, DELAYED, HELD, DONE, DEAD = range(5)  # the column `place`

_KEPT_SECONDS = REQUESTS_KEPT.total_seconds()
# Monotonic time decides, for as long as the machine runs; what was written before it started is judged by the wall.
_FRESH = (
    "CASE WHEN ticks <= :ticks THEN :ticks - ticks <= :kept ELSE abs(:now - answered_at) <= 1000000 * :kept END"
)
_KNOWN = "SELECT queue, place FROM counts WHERE queue IN carray(?)"
_ADD = """) UPDATE counts SET n = counts.n + one.n FROM one
    WHERE counts.queue = one.queue AND counts.place = one.place"""


class Step:
    """What an operation gets to work with."""

    __slots__ = (
        "_answers", "_back", "_clock", "_done", "_front", "_gone", "_left", "_loaded", "_moved", "_next_due",
        "db", "rung",
    )  # fmt: skip

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        self.db = db
        self.rung: set[str] = set()  # queues in which a job became ready
        self._clock = clock
        self._loaded: tuple[int, int, int] | None = None
        self._back = self._front = self._gone = 0
        self._moved: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._left = False  # jobs went outside: only then can a queue become empty
        self._done: int | None = None
        self._next_due: tuple[int | None] | None = None
        self._answers: dict[str, bytes] = {}

    def now(self) -> int:
        """The backend's clock; an operation asks once."""
        return to_micros(self._clock.now())

    def draw(self, count: int = 1) -> int:
        """The first of so many fresh numbers: greater than any drawn before, by anybody."""
        self._load()
        self._back += count
        return self._back - count

    def draw_front(self, count: int = 1) -> int:
        """The highest of so many fresh turns before all others; the next ones lie right below."""
        self._load()
        self._front -= count
        return self._front + count

    def gone(self, count: int) -> int:
        """Notes that so many more deleted records are remembered, and gives how many there are now."""
        self._load()
        self._gone += count
        return self._gone

    def moved(self, queue: str, start: int | None, end: int | None, count: int = 1) -> None:
        """Notes that jobs left one place and came to another; None is outside."""
        if start is not None:
            self._moved[queue, start] -= count
        if end is not None:
            self._moved[queue, end] += count
        else:
            self._left = True
        if self._done is not None:
            self._done += count * ((end == DONE) - (start == DONE))
        if end == READY:
            self.rung.add(queue)

    def done(self) -> int:
        """How many jobs are done."""
        if self._done is None:
            stored = self.db.execute("SELECT coalesce(sum(n), 0) FROM counts WHERE place = 3").get
            self._done = stored + sum(n for (_, place), n in self._moved.items() if place == DONE)
        return self._done

    def next_due(self) -> int | None:
        """When the next delayed job is due."""
        if self._next_due is None:
            self._next_due = (self.db.execute("SELECT min(ready_at) FROM jobs WHERE place = 1").get,)
        return self._next_due[0]

    def due_changed(self, added: int | None = None) -> None:
        """Delayed jobs came, due no earlier than `added`, or (None) went."""
        if added is None:
            self._next_due = None
        elif self._next_due is not None:
            due = self._next_due[0]
            self._next_due = (added if due is None else min(added, due),)

    def recall(self, request: str, now: int) -> bytes | None:
        """The answer that was given to this request, if it was not too long ago."""
        if request in self._answers:
            return self._answers[request]
        ticks = self._clock.monotonic()
        found: bytes | None = self.db.execute(
            f"SELECT answer FROM requests WHERE request = :request AND {_FRESH}",
            {"request": request, "ticks": ticks, "now": now, "kept": _KEPT_SECONDS},
        ).get
        return found

    def remember(self, request: str, answer: bytes) -> None:
        """Keeps the answer to a request that `recall` did not know."""
        self._answers[request] = answer

    def forget(self, request: str) -> None:
        """Forgets the answer to a request: it is as if nobody had asked."""
        self._answers.pop(request, None)
        self.db.execute("DELETE FROM requests WHERE request = ?", (request,))

    def close(self) -> None:
        """Writes what was noted; the last thing before the commit."""
        if self._loaded is not None and self._loaded != (self._back, self._front, self._gone):
            self.db.execute("UPDATE numbers SET back = ?, front = ?, gone = ?", (self._back, self._front, self._gone))
        self._write_counts()
        if self._answers:
            self._keep_answers()

    def _write_counts(self) -> None:
        moved = [(queue, place, n) for (queue, place), n in self._moved.items() if n]
        if not moved:
            return
        before = self.db.total_changes()
        write_rows(self.db, "WITH one (queue, place, n) AS (", moved, _ADD)
        if self.db.total_changes() - before < len(moved):
            # Rows that are not there yet: what comes to them is all that comes, so it is not negative.
            known = set(self.db.execute(_KNOWN, (texts(queue for queue, _, _ in moved),)))
            fresh = [row for row in moved if row[:2] not in known]
            write_rows(self.db, "INSERT INTO counts (queue, place, n)", fresh)
        if self._left:
            self.db.execute("DELETE FROM counts WHERE n = 0")

    def _keep_answers(self) -> None:
        now, ticks = self.now(), self._clock.monotonic()
        rows = [(request, answer, now, ticks) for request, answer in self._answers.items()]
        write_rows(self.db, "INSERT OR REPLACE INTO requests (request, answer, answered_at, ticks)", rows)
        # Twice as many as came, so that the table shrinks to what is worth keeping however it grew.
        self.db.execute(
            f"DELETE FROM requests WHERE n IN (SELECT n FROM requests ORDER BY n LIMIT :many) AND NOT {_FRESH}",
            {"many": 2 * len(rows), "ticks": ticks, "now": now, "kept": _KEPT_SECONDS},
        )

    def _load(self) -> None:
        if self._loaded is None:
            self._loaded = self.db.execute("SELECT back, front, gone FROM numbers").get
            self._back, self._front, self._gone = self._loaded
