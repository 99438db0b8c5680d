"""Taking jobs: in one step ready jobs become held, with a token, a nonce and a deadline. For the writer.

The rows come back as text and are made into jobs after the commit (see given), by whoever asked: other processes wait
for us only as long as SQLite works.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from wrasse.backends.sqlite import limits
from wrasse.backends.sqlite.bulk import numbers
from wrasse.backends.sqlite.puts import promote
from wrasse.backends.sqlite.rows import BODY, decode_numbers, long_payloads
from wrasse.backends.sqlite.step import HELD, READY, Step
from wrasse.ports.jobs import Rate

TAKE_BYTES_MAX = 32 << 20  # payloads in one answer, unless the first one alone is longer

# As a blob: text that is not UTF-8 is found where the rows are decoded. As a float: no size makes the sum overflow.
_ROWS = (
    f"SELECT json_group_array(seq), sum(CAST(size AS REAL)), max(size), CAST(json_group_array({BODY}) AS BLOB)"
)
SELECT_READY = f"{_ROWS} FROM (SELECT * FROM jobs WHERE place = 0 AND queue = ? ORDER BY rank LIMIT ?)"
_SIZES = "SELECT seq, size FROM jobs WHERE place = 0 AND queue = ? ORDER BY rank LIMIT ?"
UPDATE_HELD = """
    UPDATE jobs SET place = 2, token = ?, nonce = ?, worker = ?, until = ?, taken_at = ?, beat_at = ?,
      attempts = min(attempts, 9007199254740991) + 1
    WHERE seq IN carray(?)
"""
_AGAIN = f"""
    {_ROWS} FROM (SELECT * FROM jobs WHERE seq IN carray(?) AND place = 2 AND token = ? AND nonce = ? ORDER BY rank)
"""
_LEFT = "SELECT seq, queue FROM jobs WHERE seq IN carray(?) AND place = 2 AND token = ? AND nonce = ?"
# Their rank was not touched, so they are back where they stood.
_GIVE_BACK = """
    UPDATE jobs SET place = 0, worker = '', until = NULL, taken_at = NULL, beat_at = NULL, attempts = attempts - 1
    WHERE seq IN carray(?)
"""


@dataclass(frozen=True, slots=True)
class Want:
    """What a taker asks for."""

    queues: Sequence[str]
    limit: int
    worker: str
    silence: int
    request: str
    rates: tuple[Rate, ...] = ()

    @property
    def known(self) -> str:
        """Under which name the answer is remembered."""
        return f"take {self.request}"


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Which jobs a request was given: all under one token and one nonce."""

    token: int
    nonce: str
    seqs: list[int]


_decode_grant = msgspec.json.Decoder(Grant).decode


@dataclass(frozen=True, slots=True)
class Granted:
    """A grant with its rows, as they were right before it (`fresh`) or as they are now."""

    grant: Grant
    bodies: tuple[bytes, ...]
    long: Mapping[int, bytes]
    now: int
    until: int = 0
    fresh: bool = False


def take(step: Step, want: Want) -> Granted | int:
    """Holds ready jobs, or finds those again that this request was given; only the time if there are none."""
    now = step.now()
    if (answer := step.recall(want.known)) is not None:
        return _again(step, _decode_grant(answer), now)
    promote(step, now)
    rows = _Rows()
    for queue in want.queues:
        room = want.limit - len(rows.seqs)
        allowed = limits.allowed(step, queue, want.rates, now) if want.rates else None
        if allowed is not None and (room := min(room, allowed)) <= 0:
            continue
        count = rows.add(step, queue, room)
        if count:
            step.moved(queue, READY, HELD, count)
            if allowed is not None:
                limits.took(step, queue, count, want.rates, now)
        if rows.full or len(rows.seqs) == want.limit:
            break
    if not rows.seqs:
        return now
    grant = Grant(step.draw(), secrets.token_hex(6), rows.seqs)
    until = now + want.silence
    step.db.execute(UPDATE_HELD, (grant.token, grant.nonce, want.worker, until, now, now, numbers(rows.seqs)))
    step.remember(want.known, msgspec.json.encode(grant))
    return Granted(grant, tuple(rows.bodies), long_payloads(step.db, rows.seqs, rows.longest), now, until, fresh=True)


class _Rows:
    """What a take has gathered so far."""

    __slots__ = ("bodies", "full", "longest", "room", "seqs")

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.bodies: list[bytes] = []
        self.longest = 0
        self.room: float = TAKE_BYTES_MAX
        self.full = False

    def add(self, step: Step, queue: str, limit: int) -> int:
        """Adds the first ready jobs of a queue, as many as there is room for; gives how many."""
        seqs, size, longest, bodies = step.db.execute(SELECT_READY, (queue, limit)).get
        if size is None:
            return 0
        if size > self.room:
            self.full = True
            fit = self._fit(size for _, size in step.db.execute(_SIZES, (queue, limit)))
            if fit == 0:
                return 0
            seqs, size, longest, bodies = step.db.execute(SELECT_READY, (queue, fit)).get
        found = decode_numbers(seqs)
        self.seqs += found
        self.bodies.append(bodies)
        self.longest = max(self.longest, longest)
        self.room -= size
        return len(found)

    def _fit(self, sizes: Iterable[int]) -> int:
        """How many there is room for; the very first has room whatever its size."""
        left, fit = self.room, 0
        for size in sizes:
            left -= size
            if left < 0 and (self.seqs or fit):
                break
            fit += 1
        return fit


def _again(step: Step, grant: Grant, now: int) -> Granted:
    found = step.db.execute(_AGAIN, (numbers(grant.seqs), grant.token, grant.nonce)).get
    seqs, _, longest, bodies = found
    return Granted(grant, (bodies,), long_payloads(step.db, decode_numbers(seqs), longest or 0), now)


def give_back(step: Step, grant: Grant, known: str) -> None:
    """Undoes a take whose taker went away before it had the answer: as if it had not been asked for."""
    step.forget(known)
    left: dict[int, str] = dict(step.db.execute(_LEFT, (numbers(grant.seqs), grant.token, grant.nonce)))
    if left:
        step.db.execute(_GIVE_BACK, (numbers(left),))
    for queue in left.values():
        step.moved(queue, HELD, READY)
