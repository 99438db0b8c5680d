"""What a take sends, and what a taker gets. The hottest loop outside the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.redis.changes import Held
from wrasse.backends.redis.hold_text import read_hold
from wrasse.backends.redis.job_json import decode, from_ms, job_of
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.puts import in_ms
from wrasse.backends.redis.states import Take, text_of
from wrasse.backends.redis.wire import Word
from wrasse.ports.jobs import Rate, TakenJob
from wrasse.ports.quick import setters, taken_job

_new = object.__new__


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a taker asks for."""

    queues: tuple[str, ...]
    limit: int
    worker: str
    silence: timedelta
    rates: Sequence[Rate]

    def keys(self, keys: Keys) -> list[str]:
        """KEYS of the script."""
        names = [*keys.shared, keys.processing(self.worker), keys.heartbeat(self.worker)]
        for queue in self.queues:
            found = keys.queue(queue)
            names += (found.list, found.delayed, found.rate)
        return names

    def args(self, request: str, nonce: str) -> list[Word]:
        """ARGV of the script."""
        args: list[Word] = [request, self.limit, in_ms(self.silence), self.worker, nonce, len(self.queues)]
        for queue in self.queues:
            rates = [rate for rate in self.rates if rate.queue == queue]
            args += (queue, len(rates))
            for rate in rates:
                args += (rate.limit, in_ms(rate.per))
        return args


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer: jobs and, for whoever ends them, their holds; and what turned out to be no job."""

    jobs: list[TakenJob]
    held: list[Held]
    bad: list[Held]
    now: int


def granted(answer: list[Any], wanted: Wanted, nonce: str) -> Granted:
    """The script's answer, read."""
    now, token, *found = answer
    given = Granted([], [], [], now)
    if token == 0:
        for take, until, text in zip(found[::3], found[1::3], found[2::3], strict=True):
            hold = read_hold(text)
            held = _held(text_of(take), text_of(hold.worker), text_of(hold.queue), hold.taken, hold.bytes)
            known = Take.of(take)
            _add(given, held, known.token, known.nonce, from_ms(float(until)))
        return given
    until = from_ms(now + in_ms(wanted.silence))
    for queue, raws in zip(wanted.queues, found, strict=True):
        for raw in raws:
            _add(given, _held(f"{token}-{nonce}", wanted.worker, queue, now, raw), token, nonce, until)
            token += 1
    return given


def _held(take: str, worker: str, queue: str, taken: int, raw: bytes) -> Held:
    wire = decode(raw)
    held = _new(Held)
    _set_take(held, take)
    _set_worker(held, worker)
    _set_held_queue(held, queue)
    _set_held_id(held, "" if wire is None else wire.id)
    _set_taken(held, taken)
    _set_raw(held, raw)
    _set_wire(held, wire)
    return held


def _add(given: Granted, held: Held, token: int, nonce: str, until: datetime) -> None:
    wire = held.wire
    job = None if wire is None else job_of(wire, held.queue)
    if wire is None or job is None:
        given.bad.append(held)
        return
    counts = wire.attempts + 1, wire.retries, wire.rescues, wire.interruptions
    given.jobs.append(taken_job(job, token, nonce, counts, wire.creation_time, until))
    given.held.append(held)


_set_take, _set_worker, _set_held_queue, _set_held_id, _set_taken, _set_raw, _set_wire = setters(
    Held, "take", "worker", "queue", "id", "taken", "raw", "wire"
)
