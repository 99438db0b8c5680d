"""A job as a program describes it, before it is enqueued, and its conversion into a job of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from wrasse.duration import format_duration, parse_duration
from wrasse.errors import UsageError
from wrasse.jobs.producer import Producer
from wrasse.ports.jobs import NOTHING, Job, JobGroup

Duration = timedelta | str  # 30s, 5m, 1h30m, or a timedelta
NO_TIME = timedelta(0)
_UNSET = (None, None, None)


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job for `enqueue_many` or `group`: the arguments of `enqueue` as a value. Bytes are sent as they are,
    anything else as JSON."""

    kind: str = ""
    data: object = b""
    priority: str | None = None
    queue: str | None = None
    delay: Duration = NO_TIME
    not_before: datetime | None = None
    id: str | None = None
    timeout: Duration | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    unique: str = ""
    window: Duration = NO_TIME
    keep: Duration | None = None


def made(producer: Producer, new: NewJob) -> Job:
    """The job that this describes."""
    times = (new.not_before, new.timeout, new.keep)
    if new.id is None and new.delay is NO_TIME and new.window is NO_TIME and times == _UNSET:
        # Most jobs use the defaults: arguments that are not passed need no checks.
        return producer.job(
            new.kind,
            encoded(new.data),
            priority=new.priority,
            queue=new.queue,
            headers=new.headers,
            unique=new.unique,
        )
    return producer.job(
        new.kind,
        encoded(new.data),
        id=new.id,
        priority=new.priority,
        queue=new.queue,
        delay=as_duration(new.delay),
        not_before=new.not_before,
        timeout=None if new.timeout is None else as_duration(new.timeout),
        headers=new.headers,
        unique=new.unique,
        window=as_duration(new.window),
        keep=None if new.keep is None else as_duration(new.keep),
    )


def made_group(
    producer: Producer, id: str, members: list[NewJob], then: NewJob, *, lasting: bool
) -> tuple[JobGroup, list[Job]]:
    """The group and its members. A member without an id gets one from the group's, so that a callback can find its
    members, and so that a group which is enqueued again is the same one."""
    jobs: list[Job] = []
    for number, new in enumerate(members):
        job = made(producer, _named(new, f"{id}/{number}"))
        if job.unique:
            raise UsageError(
                f"the member {job.id!r} of a group has a unique name, and a group waits for all its members",
                do="leave unique= out",
            )
        jobs.append(replace(job, group=id, lasting=lasting or new.id is not None))
    return JobGroup(id, len(jobs), made(producer, _named(then, f"{id}/then"))), jobs


def _named(new: NewJob, id: str) -> NewJob:
    return new if new.id is not None else replace(new, id=id)


def encoded(data: object) -> bytes:
    """The payload of some data: bytes as they are, None as no bytes, anything else as JSON."""
    if type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if data is None:
        return b""
    try:
        return msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError) as why:
        raise UsageError(
            f"data of type {type(data).__name__} cannot be written as JSON: {why}",
            do="give bytes, or something made of dicts, lists, texts and numbers",
        ) from None


def as_duration(value: Duration) -> timedelta:
    """A duration as a person or a program gives it."""
    duration = parse_duration(value) if isinstance(value, str) else value
    if duration < NO_TIME:
        raise UsageError(f"a duration of {format_duration(duration)}", do="give zero or more")
    return duration
