"""Claiming jobs: in one transaction ready jobs become running, with a token, a nonce and a deadline. For the writer.

The rows are returned as text and decoded to jobs after the commit, by `decode_claim`: other processes wait
for us only while SQLite works. Decoding them is the hottest loop outside SQLite.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import apsw
import msgspec

from wrasse.backends.sqlite.jobs.enqueue import promote
from wrasse.backends.sqlite.rows import (
    BODY,
    BodyRow,
    Invalid,
    decode_bodies,
    decode_extras,
    long_payloads,
    span,
)
from wrasse.backends.sqlite.write_transaction import READY, RUNNING, WriteTransaction, decode_numbers, numbers
from wrasse.bounded import DURATION_MAX, UNREADABLE, why
from wrasse.clock import from_micros
from wrasse.ports.jobs import NOTHING, Claimed, Job, Rate
from wrasse.ports.rules.job_transitions import claimed_job, setters

_CLAIMED = "SELECT coalesce(sum(n), 0) FROM limited_claims WHERE queue = ? AND at > ?"
_COUNT_CLAIMS = "INSERT INTO limited_claims VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_FORGET = "DELETE FROM limited_claims WHERE queue = ? AND at <= ?"
_TIMES = "SELECT at, n FROM limited_claims WHERE queue = ? AND at > ? ORDER BY at DESC"


def claims_left(tx: WriteTransaction, queue: str, rates: Sequence[Rate], now: int) -> int | None:
    """How many jobs of this queue may be claimed now; None if no rate limits it."""
    left = [
        rate.limit - int(tx.db.execute(_CLAIMED, (queue, now - span(rate.per))).get)
        for rate in rates
        if rate.queue == queue
    ]
    return min(left, default=None)


def note_claims(tx: WriteTransaction, queue: str, count: int, rates: Sequence[Rate], now: int) -> None:
    """Notes that `count` jobs were claimed, and deletes expired notes."""
    longest = max(span(rate.per) for rate in rates if rate.queue == queue)
    tx.db.execute(_FORGET, (queue, now - longest))
    tx.db.execute(_COUNT_CLAIMS, (queue, now, count))


def next_at(db: apsw.Connection, queues: Sequence[str], rates: Sequence[Rate], now: int) -> int | None:
    """When the first of the queues that are at their limit may be claimed from again."""
    ends = [_free_at(db, rate, now) for rate in rates if rate.queue in queues]
    return min((end for end in ends if end is not None), default=None)


def _free_at(db: apsw.Connection, rate: Rate, now: int) -> int | None:
    """When the claim that fills the limit leaves the window; None if it is not full."""
    claimed = 0
    for at, n in db.execute(_TIMES, (rate.queue, now - span(rate.per))):
        claimed += n
        if claimed >= rate.limit:
            return int(at) + span(rate.per)
    return None


CLAIM_BYTES_MAX = 32 << 20  # payloads in one answer, unless the first one alone is longer

# As a blob: text that is not UTF-8 is found where the rows are decoded. As a float: no size makes the sum overflow.
_ROWS = f"SELECT json_group_array(seq), sum(CAST(size AS REAL)), max(size), CAST(json_group_array({BODY}) AS BLOB)"
SELECT_READY = f"{_ROWS} FROM (SELECT * FROM jobs WHERE state = 0 AND queue = ? ORDER BY rank LIMIT ?)"
_SIZES = "SELECT seq, size FROM jobs WHERE state = 0 AND queue = ? ORDER BY rank LIMIT ?"
UPDATE_RUNNING = """
    UPDATE jobs SET state = 2, token = ?, nonce = ?, worker = ?, deadline = ?, claimed_at = ?, heartbeat_at = ?,
      attempts = min(attempts, 9007199254740991) + 1
    WHERE seq IN carray(?)
"""
_AGAIN = f"""
    {_ROWS} FROM (SELECT * FROM jobs WHERE seq IN carray(?) AND state = 2 AND token = ? AND nonce = ? ORDER BY rank)
"""
_LEFT = "SELECT seq, queue FROM jobs WHERE seq IN carray(?) AND state = 2 AND token = ? AND nonce = ?"
# Their rank was not changed, so they return to their old positions.
_RELEASE = """
    UPDATE jobs SET state = 0, worker = '', deadline = NULL, claimed_at = NULL, heartbeat_at = NULL,
      attempts = attempts - 1
    WHERE seq IN carray(?)
"""


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """The request of a worker."""

    queues: Sequence[str]
    limit: int
    worker: str
    heartbeat_timeout: int
    request: str
    rates: tuple[Rate, ...] = ()

    @property
    def known(self) -> str:
        """The name under which the answer is remembered."""
        return f"take {self.request}"


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """The jobs that a request got: all under one token and one nonce."""

    token: int
    nonce: str
    seqs: list[int]


_decode_grant = msgspec.json.Decoder(Grant).decode


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """A grant with its rows, as they were right before it (`fresh`) or as they are now."""

    grant: Grant
    bodies: tuple[bytes, ...]
    long: Mapping[int, bytes]
    now: int
    deadline: int = 0
    fresh: bool = False


def claim(tx: WriteTransaction, want: ClaimOptions) -> ClaimedRows | int:
    """Claims ready jobs, or finds those again that this request got before; only the time if there are none."""
    now = tx.now()
    if (answer := tx.recall(want.known)) is not None:
        return _again(tx, _decode_grant(answer), now)
    promote(tx, now)
    rows = _Rows()
    for queue in want.queues:
        room = want.limit - len(rows.seqs)
        allowed = claims_left(tx, queue, want.rates, now) if want.rates else None
        if allowed is not None and (room := min(room, allowed)) <= 0:
            continue
        count = rows.add(tx, queue, room)
        if count:
            tx.moved(queue, READY, RUNNING, count)
            if allowed is not None:
                note_claims(tx, queue, count, want.rates, now)
        if rows.full or len(rows.seqs) == want.limit:
            break
    if not rows.seqs:
        return now
    grant = Grant(tx.draw(), secrets.token_hex(6), rows.seqs)
    deadline = now + want.heartbeat_timeout
    tx.db.execute(UPDATE_RUNNING, (grant.token, grant.nonce, want.worker, deadline, now, now, numbers(rows.seqs)))
    tx.remember(want.known, msgspec.json.encode(grant))
    return ClaimedRows(
        grant, tuple(rows.bodies), long_payloads(tx.db, rows.seqs, rows.longest), now, deadline, fresh=True
    )


class _Rows:
    """The rows of a claim so far."""

    __slots__ = ("bodies", "full", "longest", "room", "seqs")

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.bodies: list[bytes] = []
        self.longest = 0
        self.room: float = CLAIM_BYTES_MAX
        self.full = False

    def add(self, tx: WriteTransaction, queue: str, limit: int) -> int:
        """Adds the first ready jobs of a queue, as many as fit; returns how many."""
        seqs, size, longest, bodies = tx.db.execute(SELECT_READY, (queue, limit)).get
        if size is None:
            return 0
        if size > self.room:
            self.full = True
            fit = self._fit(size for _, size in tx.db.execute(_SIZES, (queue, limit)))
            if fit == 0:
                return 0
            seqs, size, longest, bodies = tx.db.execute(SELECT_READY, (queue, fit)).get
        found = decode_numbers(seqs)
        self.seqs += found
        self.bodies.append(bodies)
        self.longest = max(self.longest, longest)
        self.room -= size
        return len(found)

    def _fit(self, sizes: Iterable[int]) -> int:
        """How many fit; the very first always does."""
        left, fit = self.room, 0
        for size in sizes:
            left -= size
            if left < 0 and (self.seqs or fit):
                break
            fit += 1
        return fit


def _again(tx: WriteTransaction, grant: Grant, now: int) -> ClaimedRows:
    found = tx.db.execute(_AGAIN, (numbers(grant.seqs), grant.token, grant.nonce)).get
    seqs, _, longest, bodies = found
    return ClaimedRows(grant, (bodies,), long_payloads(tx.db, decode_numbers(seqs), longest or 0), now)


def release(tx: WriteTransaction, grant: Grant, known: str) -> None:
    """Undoes a claim whose worker was cancelled before it got the answer: as if it had not been made."""
    tx.forget(known)
    left: dict[int, str] = dict(tx.db.execute(_LEFT, (numbers(grant.seqs), grant.token, grant.nonce)))
    if left:
        tx.db.execute(_RELEASE, (numbers(left),))
    for queue in left.values():
        tx.moved(queue, RUNNING, READY)


_NO_DELAY = timedelta(0)
_STORED = (
    "id", "kind", "queue", "priority", "payload", "headers", "not_before", "delay", "timeout", "lasting",
)  # fmt: skip
_new = object.__new__
_id, _kind, _queue, _priority, _payload, _headers, _not_before, _delay, _timeout, _lasting = setters(Job, *_STORED)
_others = [(next(setters(Job, field.name)), field.default) for field in fields(Job) if field.name not in _STORED]
_unique, _window, _keep, _group, _minted = setters(Job, "unique", "window", "keep", "group", "minted")


def decode_claim(granted: ClaimedRows | int) -> tuple[Claimed, list[Invalid]]:
    """The answer for the port, and the rows of the grant that are invalid."""
    if isinstance(granted, int):
        return Claimed((), from_micros(granted)), []
    token, nonce, long = granted.grant.token, granted.grant.nonce, granted.long
    deadline, more = from_micros(granted.deadline), int(granted.fresh)
    instants: dict[int, datetime] = {}  # jobs that were enqueued together have the same, and making one is slow
    jobs = []
    invalid: list[Invalid] = []
    for batch in granted.bodies:
        rows, others = decode_bodies(batch)
        invalid += others
        for row in rows:
            try:
                job, ends_at = job_of(row, long), deadline if row.deadline is None else from_micros(row.deadline)
                created_at = instants.get(row.created_at)
                if created_at is None:
                    created_at = instants[row.created_at] = from_micros(row.created_at)
            except UNREADABLE as error:
                invalid.append(Invalid(row.seq, why(error)))
                continue
            counts = row.attempts + more, row.failures, row.rescues, row.interruptions
            jobs.append(claimed_job(job, token, nonce, counts, created_at, ends_at))
    return Claimed(tuple(jobs), from_micros(granted.now)), invalid


def job_of(row: BodyRow, long: Mapping[int, bytes]) -> Job:
    """The job that was enqueued; `long` has the payloads that are stored separately."""
    job = _new(Job)
    _id(job, row.id)
    _kind(job, row.kind)
    _queue(job, row.queue)
    _priority(job, row.priority)
    _payload(job, long[row.seq] if row.payload is None else bytes.fromhex(row.payload))
    _headers(job, NOTHING if row.headers is None else _headers_in(row.headers))
    _not_before(job, None if row.not_before is None else from_micros(row.not_before))
    _delay(job, _NO_DELAY if row.delay is None else _duration(row.delay))
    _timeout(job, None if row.timeout is None else _duration(row.timeout))
    _lasting(job, row.lasting == 1)
    if row.extras is None:
        for fill, default in _others:
            fill(job, default)
    else:
        extras = decode_extras(row.extras)
        _unique(job, extras.unique)
        _window(job, _duration(extras.window))
        _keep(job, _duration(extras.keep))
        _group(job, extras.group)
        _minted(job, False)  # only for an enqueue
    return job


def _duration(micros: int) -> timedelta:
    found = timedelta(microseconds=micros)
    if not -DURATION_MAX <= found <= DURATION_MAX:
        raise ValueError(f"{micros} microseconds are more than 100 years")
    return found


def _headers_in(text: str) -> dict[str, str]:
    found = json.loads(text)
    if type(found) is not dict or not all(type(value) is str for value in found.values()):
        raise ValueError("its headers are not a map of texts")
    return found
