"""What a taker gets: the rows of a grant as jobs. The hottest loop outside SQLite.

A frozen dataclass sets each field through `object.__setattr__`, which for the three objects of a taken job costs more
than all the rest of a take. Here their slots are filled directly, which is the same without the detour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime, timedelta

from wrasse.backends.sqlite.rows import BodyRow, Invalid, decode_bodies, decode_extras
from wrasse.backends.sqlite.takes import Granted
from wrasse.bounded import DURATION_MAX, UNREADABLE, why
from wrasse.clock import from_micros
from wrasse.ports.jobs import NOTHING, Hold, Job, Taken, TakenJob

_NO_DELAY = timedelta(0)
_STORED = (
    "id", "kind", "queue", "priority", "payload", "headers", "not_before", "delay", "timeout", "lasting",
)  # fmt: skip
_new = object.__new__


def _setters(kind: type, *names: str) -> Iterator[Callable[[object, object], None]]:
    """What fills each of these slots."""
    return (kind.__dict__[name].__set__ for name in names)


_id, _kind, _queue, _priority, _payload, _headers, _not_before, _delay, _timeout, _lasting = _setters(Job, *_STORED)
_others = [(next(_setters(Job, field.name)), field.default) for field in fields(Job) if field.name not in _STORED]
_unique, _window, _keep, _group, _minted = _setters(Job, "unique", "window", "keep", "group", "minted")
_hold_id, _token, _nonce = _setters(Hold, "id", "token", "nonce")
_job, _hold, _attempt, _failures, _rescues, _interruptions, _created_at, _until = _setters(
    TakenJob, "job", "hold", "attempt", "failures", "rescues", "interruptions", "created_at", "until"
)


def given(granted: Granted | int) -> tuple[Taken, list[Invalid]]:
    """The answer as the port gives it, and the rows of the grant that are no jobs."""
    if isinstance(granted, int):
        return Taken((), from_micros(granted)), []
    token, nonce, long = granted.grant.token, granted.grant.nonce, granted.long
    until, more = from_micros(granted.until), int(granted.fresh)
    instants: dict[int, datetime] = {}  # jobs that were put together have the same, and making one is not cheap
    jobs = []
    invalid: list[Invalid] = []
    for batch in granted.bodies:
        rows, others = decode_bodies(batch)
        invalid += others
        for row in rows:
            try:
                job, ends_at = job_of(row, long), until if row.until is None else from_micros(row.until)
                created_at = instants.get(row.created_at)
                if created_at is None:
                    created_at = instants[row.created_at] = from_micros(row.created_at)
            except UNREADABLE as error:
                invalid.append(Invalid(row.seq, why(error)))
                continue
            hold = _new(Hold)
            _hold_id(hold, row.id)
            _token(hold, token)
            _nonce(hold, nonce)
            taken = _new(TakenJob)
            _job(taken, job)
            _hold(taken, hold)
            _attempt(taken, row.attempts + more)
            _failures(taken, row.failures)
            _rescues(taken, row.rescues)
            _interruptions(taken, row.interruptions)
            _created_at(taken, created_at)
            _until(taken, ends_at)
            jobs.append(taken)
    return Taken(tuple(jobs), from_micros(granted.now)), invalid


def job_of(row: BodyRow, long: Mapping[int, bytes]) -> Job:
    """As its producer put it; `long` has the payloads that stand apart."""
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
        _minted(job, False)  # said for a put only
    return job


def _duration(micros: int) -> timedelta:
    found = timedelta(microseconds=micros)
    if not -DURATION_MAX <= found <= DURATION_MAX:
        raise ValueError(f"{micros} microseconds are more than 100 years")
    return found


def _headers_in(text: str) -> dict[str, str]:
    found = json.loads(text)
    if type(found) is not dict or not all(type(value) is str for value in found.values()):
        raise ValueError("its headers are not texts by name")
    return found
