"""Taking jobs: in one step ready jobs become held, with a token, a nonce and a deadline. For the writer.

The rows come back as text and are made into jobs after the commit, by whoever asked: other processes wait for us only
as long as SQLite works.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from wrasse.backends.sqlite.bulk import numbers
from wrasse.backends.sqlite.puts import promote
from wrasse.backends.sqlite.rows import BODY, INLINE_BYTES_MAX, decode_bodies, job_of, long_payloads
from wrasse.backends.sqlite.step import HELD, READY, Step
from wrasse.clock import from_micros
from wrasse.ports.jobs import Hold, Taken, TakenJob

TAKE_BYTES_MAX = 32 << 20  # payloads in one answer, unless the first one alone is longer

_READY = f"""
    SELECT json_group_array(seq), json_group_array(size), json_group_array({BODY})
    FROM (SELECT * FROM jobs WHERE place = 0 AND queue = ? ORDER BY rank LIMIT ?)
"""
_HOLD = """
    UPDATE jobs SET place = 2, token = ?, nonce = ?, worker = ?, until = ?, taken_at = ?, beat_at = ?,
      attempts = attempts + 1
    WHERE seq IN carray(?)
"""
_AGAIN = f"""
    SELECT json_group_array(seq), json_group_array(size), json_group_array({BODY})
    FROM (SELECT * FROM jobs WHERE seq IN carray(?) AND place = 2 AND token = ? AND nonce = ? ORDER BY rank)
"""
_LEFT = "SELECT seq, queue FROM jobs WHERE seq IN carray(?) AND place = 2 AND token = ? AND nonce = ?"
# Their rank was not touched, so they are back where they stood.
_GIVE_BACK = """
    UPDATE jobs SET place = 0, worker = '', until = NULL, taken_at = NULL, beat_at = NULL, attempts = attempts - 1
    WHERE seq IN carray(?)
"""
_decode_numbers = msgspec.json.Decoder(list[int]).decode


@dataclass(frozen=True, slots=True)
class Want:
    """What a taker asks for."""

    queues: Sequence[str]
    limit: int
    worker: str
    silence: int
    request: str


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
    bodies: tuple[str, ...]
    long: Mapping[int, bytes]
    now: int
    until: int = 0
    fresh: bool = False


def take(step: Step, want: Want) -> Granted | int:
    """Holds ready jobs, or finds those again that this request was given; only the time if there are none."""
    now = step.now()
    known = f"take {want.request}"
    if (answer := step.recall(known, now)) is not None:
        return _again(step, _decode_grant(answer), now)
    promote(step, now)
    seqs: list[int] = []
    sizes: list[int] = []
    bodies: list[str] = []
    for queue in want.queues:
        more, more_sizes, body = _ready(step, queue, want.limit - len(seqs), sizes)
        if more:
            seqs += more
            sizes += more_sizes
            bodies.append(body)
            step.moved(queue, READY, HELD, len(more))
        if len(seqs) == want.limit:
            break
    if not seqs:
        return now
    grant = Grant(step.draw(), secrets.token_hex(6), seqs)
    until = now + want.silence
    step.db.execute(_HOLD, (grant.token, grant.nonce, want.worker, until, now, now, numbers(seqs)))
    step.remember(known, msgspec.json.encode(grant))
    return Granted(grant, tuple(bodies), _long(step, seqs, sizes), now, until, fresh=True)


def _ready(step: Step, queue: str, limit: int, before: Sequence[int]) -> tuple[list[int], list[int], str]:
    """The first ready jobs of a queue: their numbers, sizes and rows, as many as fit after those sizes."""
    seqs, sizes_text, bodies = step.db.execute(_READY, (queue, limit)).get
    sizes = _decode_numbers(sizes_text)
    room = TAKE_BYTES_MAX - sum(before)
    fit = 0
    while fit < len(sizes) and ((room := room - sizes[fit]) >= 0 or not (before or fit)):
        fit += 1
    if 0 < fit < len(sizes):
        return _ready(step, queue, fit, before)
    return (_decode_numbers(seqs), sizes, bodies) if fit else ([], [], bodies)


def _again(step: Step, grant: Grant, now: int) -> Granted:
    seqs, sizes, bodies = step.db.execute(_AGAIN, (numbers(grant.seqs), grant.token, grant.nonce)).get
    return Granted(grant, (bodies,), _long(step, _decode_numbers(seqs), _decode_numbers(sizes)), now)


def _long(step: Step, seqs: Sequence[int], sizes: Sequence[int]) -> dict[int, bytes]:
    apart = [seq for seq, size in zip(seqs, sizes, strict=True) if size > INLINE_BYTES_MAX]
    return long_payloads(step.db, apart)


def given(granted: Granted | int) -> Taken:
    """The answer as the port gives it."""
    if isinstance(granted, int):
        return Taken((), from_micros(granted))
    token, nonce = granted.grant.token, granted.grant.nonce
    until, more = from_micros(granted.until), int(granted.fresh)
    jobs = tuple(
        TakenJob(
            job_of(row, granted.long),
            Hold(row.id, token, nonce),
            row.attempts + more,
            row.failures,
            row.rescues,
            row.interruptions,
            from_micros(row.created_at),
            until if row.until is None else from_micros(row.until),
        )
        for text in granted.bodies
        for row in decode_bodies(text)
    )
    return Taken(jobs, from_micros(granted.now))


def give_back(step: Step, grant: Grant) -> None:
    """Undoes a take whose taker went away before it had the answer: as if it had not been."""
    left: dict[int, str] = dict(step.db.execute(_LEFT, (numbers(grant.seqs), grant.token, grant.nonce)))
    if left:
        step.db.execute(_GIVE_BACK, (numbers(left),))
    for queue in left.values():
        step.moved(queue, HELD, READY)
