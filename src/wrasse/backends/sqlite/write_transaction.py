"""One write transaction: the numbers that its operations share, and statements for many rows.

The numbers are read in one statement when the first operation needs them, kept in memory while operations run and
written once at the end, by `close`, in the same transaction. If anything is rolled back, the whole WriteTransaction is
discarded with it.

apsw releases the interpreter's lock at every step of a statement, and while another thread computes it takes up to 5 ms
to get it back. So a batch must not be one step per job: rows are written as one long VALUES, keys are passed as one
array, and rows are read as one JSON text.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import apsw
import msgspec

from wrasse.clock import Clock, to_micros
from wrasse.ports.jobs import REQUESTS_KEPT

_ROWS_MAX = 256
_TEXT_MAX = 16_000  # apsw caches compiled statements of up to 16 KiB
_VARIABLES_MAX = 32_766
READY, SCHEDULED, RUNNING, DONE, DEAD = range(5)  # the column `state`
NOWHERE = "(state < 0 OR state > 4)"  # invalid states, which wrasse never writes; they have an index of their own

# Within one boot of the machine monotonic time decides; answers from before it are judged by the wall clock.
_LOAD = """
    SELECT back, front, gone, done,
      (SELECT min(ready_at) FROM jobs WHERE state = 1),
      (SELECT json_group_array(json_array(request, hex(answer))) FROM requests
       WHERE request IN carray(:asked) AND CASE WHEN ticks <= :ticks THEN :ticks - ticks <= :kept
         ELSE abs(:now - answered_at) <= 1000000 * :kept END)
    FROM numbers
"""
_ADD = """) UPDATE counts SET n = max(0, min(counts.n + one.n, 1 << 53)) FROM one
    WHERE counts.queue = one.queue AND counts.state = one.state"""
_KNOWN = "SELECT queue, state FROM counts WHERE queue IN carray(?)"
_KEPT_SECONDS = REQUESTS_KEPT.total_seconds()
decode_numbers = msgspec.json.Decoder(list[int]).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_answers = msgspec.json.Decoder(list[tuple[str, str]]).decode


class _Numbers(msgspec.Struct):
    """The row of the table `numbers`."""

    back: int
    front: int
    gone: int
    done: int


class WriteTransaction:
    """The context of an operation. `asked` has the requests that the group may recall."""

    def __init__(self, db: apsw.Connection, clock: Clock, asked: Sequence[str] = ()) -> None:
        self.db = db
        self.ready_queues: set[str] = set()  # queues in which a job became ready
        self._clock = clock
        self._asked = asked
        self._stored: _Numbers | None = None
        self._loaded: _Numbers | None = None
        self._next_due: tuple[int | None] | None = None
        self._known: dict[str, bytes] = {}
        self._answers: dict[str, bytes] = {}
        self._moved: defaultdict[tuple[str, int], int] = defaultdict(int)

    def now(self) -> int:
        """The backend's clock; an operation reads it once."""
        return to_micros(self._clock.now())

    def draw(self, count: int = 1) -> int:
        """The first of `count` fresh numbers: greater than any drawn before by any process."""
        numbers = self._numbers()
        numbers.back += count
        return numbers.back - count

    def draw_front(self) -> int:
        """A fresh rank before all others."""
        numbers = self._numbers()
        numbers.front -= 1
        return numbers.front + 1

    def gone(self, count: int) -> int:
        """Adds to the number of remembered deleted records, and returns it."""
        numbers = self._numbers()
        numbers.gone += count
        return numbers.gone

    def done(self) -> int:
        """How many jobs are done."""
        return self._numbers().done

    def moved(self, queue: str, start: int | None, end: int | None, count: int = 1) -> None:
        """Notes that jobs left one state and entered another; None is outside."""
        if start is not None:
            self._moved[queue, start] -= count
        if end is not None:
            self._moved[queue, end] += count
        self._numbers().done += count * ((end == DONE) - (start == DONE))
        if end == READY:
            self.ready_queues.add(queue)

    def next_due(self) -> int | None:
        """When the next scheduled job is due."""
        self._numbers()
        if self._next_due is None:
            self._next_due = (self.db.execute("SELECT min(ready_at) FROM jobs WHERE state = 1").get,)
        return self._next_due[0]

    def due_changed(self, added: int | None = None) -> None:
        """Scheduled jobs were added, due no earlier than `added`, or (None) removed."""
        if added is None:
            self._next_due = None
        elif self._next_due is not None:
            due = self._next_due[0]
            self._next_due = (added if due is None else min(added, due),)

    def recall(self, request: str) -> bytes | None:
        """The answer to an earlier try of this request, if it is recent enough."""
        assert request in self._asked, "every request of the group was passed to the writer"
        self._numbers()
        return self._known.get(request)

    def remember(self, request: str, answer: bytes) -> None:
        """Stores the answer to a request that `recall` did not know."""
        self._known[request] = self._answers[request] = answer

    def forget(self, request: str) -> None:
        """Deletes the answer to a request, as if it had not been made."""
        self._known.pop(request, None)
        self._answers.pop(request, None)
        self.db.execute("DELETE FROM requests WHERE request = ?", (request,))

    def close(self) -> None:
        """Writes the noted changes; the last call before the commit."""
        if self._loaded is not None and self._loaded != self._stored:
            new = self._loaded
            values = (new.back, new.front, new.gone, new.done)
            self.db.execute("UPDATE numbers SET back = ?, front = ?, gone = ?, done = ?", values)
        moved = [(queue, state, n) for (queue, state), n in self._moved.items() if n]
        if moved:
            before = self.db.total_changes()
            write_rows(self.db, "WITH one (queue, state, n) AS (", moved, _ADD)
            if self.db.total_changes() - before < len(moved):
                self._add_counts(moved)
        if self._answers:
            now, ticks = self.now(), self._clock.monotonic()
            rows = [(request, answer, now, ticks) for request, answer in self._answers.items()]
            # A trigger deletes old ones.
            write_rows(self.db, "INSERT OR REPLACE INTO requests (request, answer, answered_at, ticks)", rows)

    def _add_counts(self, moved: Sequence[tuple[str, int, int]]) -> None:
        """Rows that do not exist yet: only additions go there, so the sum is not negative."""
        known = set(self.db.execute(_KNOWN, (texts(queue for queue, _, _ in moved),)))
        # A count that another program corrupted never fails a transaction; fsck counts again.
        new = [(queue, state, max(0, n)) for queue, state, n in moved if (queue, state) not in known]
        write_rows(self.db, "INSERT INTO counts (queue, state, n)", new)

    def _numbers(self) -> _Numbers:
        if self._loaded is None:
            values = {"asked": texts(self._asked or ("",)), "ticks": self._clock.monotonic(), "now": self.now()}
            found = self.db.execute(_LOAD, values | {"kept": _KEPT_SECONDS}).get
            back, front, gone, done, next_due, answers = found
            self._stored, self._loaded = _Numbers(back, front, gone, done), _Numbers(back, front, gone, done)
            self._next_due = (next_due,)
            self._known |= {request: bytes.fromhex(answer) for request, answer in _decode_answers(answers)}
        return self._loaded


def write_rows(
    db: apsw.Connection,
    before: str,
    rows: Sequence[Sequence[apsw.SQLiteValue]],
    after: str = "",
    start: tuple[apsw.SQLiteValue, ...] = (),
) -> None:
    """Runs `before VALUES (...), (...) after` for all rows, in few different statements, so that their compiled forms
    are reused. `start` is for the variables of `before`."""
    if not rows:
        return
    row = f"({','.join('?' * len(rows[0]))})"
    most = min(
        _ROWS_MAX,
        (_TEXT_MAX - len(before) - len(after)) // (len(row) + 1),
        (_VARIABLES_MAX - len(start)) // len(rows[0]),
    )
    done = 0
    while left := len(rows) - done:
        # Powers of two: a batch of any size uses a few statements out of a small set.
        count = 1 << (min(left, most).bit_length() - 1)
        values = [*start, *chain.from_iterable(rows[done : done + count])]
        db.execute(f"{before} VALUES {','.join([row] * count)} {after}", values)
        done += count


def text(stored: bytes) -> str:
    """A text that was read as a blob, with a replacement for each byte that is not UTF-8. The driver raises for such a
    text, and the rows after it would not be read."""
    return stored.decode("utf-8", "replace")


def numbers(values: Iterable[int]) -> apsw.CArrayBinding:
    """For `IN carray(?)`; not empty."""
    return apsw.carray(array("q", values))


def texts(values: Iterable[str]) -> apsw.CArrayBinding:
    """For `IN carray(?)`; not empty."""
    return apsw.carray(tuple(values))


def decode_texts(column: bytes) -> list[str]:
    """The texts of a column, with a replacement for each invalid byte."""
    try:
        return _decode_texts(column)
    except UnicodeDecodeError:
        return _decode_texts(column.decode("utf-8", "replace"))
