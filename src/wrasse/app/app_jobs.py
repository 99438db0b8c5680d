"""Jobs as a program puts and watches them: `app.jobs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from wrasse.duration import format_duration, parse_duration
from wrasse.errors import JobFailed, UsageError
from wrasse.jobs.producer import Producer, Put
from wrasse.ports.jobs import (
    NOTHING,
    Cancel,
    Counts,
    Job,
    JobFilter,
    JobQueue,
    JobRecord,
    JobState,
    Place,
    Revive,
)
from wrasse.ports.outcome import Outcome

Duration = timedelta | str  # 30s, 5m, 1h30m, or a timedelta
PAGE = 200
_POLL_FIRST, _POLL_MAX = 0.02, 0.5  # seconds


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job for `put_many`: what `put` takes, as a value. Bytes go out as they are, anything else as JSON."""

    kind: str = ""
    data: object = b""
    priority: str | None = None
    queue: str | None = None
    delay: Duration = timedelta(0)
    not_before: datetime | None = None
    id: str | None = None
    timeout: Duration | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)


class Jobs:
    """Puts, finds, cancels and revives jobs. Opened on first use."""

    __slots__ = ("_open",)

    def __init__(self, open: Callable[[], Awaitable[tuple[Producer, JobQueue]]]) -> None:
        self._open = open

    async def put(
        self,
        kind: str = "",
        data: object = b"",
        *,
        priority: str | None = None,
        queue: str | None = None,
        delay: Duration = timedelta(0),
        not_before: datetime | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] = NOTHING,
    ) -> Put:
        """Puts one job; stored when this returns. Bytes go out as they are, anything else as JSON. An id that is known
        already is left as it is, and the answer says so."""
        new = NewJob(kind, data, priority, queue, delay, not_before, id, timeout, headers)
        return (await self.put_many([new]))[0]

    async def put_many(self, jobs: Iterable[NewJob]) -> Sequence[Put]:
        """Puts many, a thousand in one step; gives an answer for each, in their order."""
        producer, _ = await self._open()
        return await producer.put_many(_made(producer, new) for new in jobs)

    async def get(self, id: str) -> JobRecord | None:
        """One job, whole: its state, payload, history and result."""
        _, queue = await self._open()
        return await queue.get(id)

    async def wait(self, id: str, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and gives its handler's result; JobFailed if it ends dead, TimeoutError if it
        takes longer."""
        _, queue = await self._open()
        pause = _POLL_FIRST
        async with asyncio.timeout(as_duration(timeout).total_seconds()):
            while True:
                record = await queue.get(id)
                if record is None:
                    raise UsageError(f"there is no job {id!r}", do="put it first; done jobs are kept for a while only")
                if record.state.place is Place.DONE:
                    return None if record.result is None else msgspec.json.decode(record.result)
                if record.state.place is Place.DEAD:
                    raise JobFailed(f"the job {id!r} is dead: {record.state.reason}", do=f"see `wrasse jobs show {id}`")
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _POLL_MAX)

    async def cancel(self, id: str, why: str = "") -> bool:
        """Stops a job that waits or runs; False if it was finished, or is unknown."""
        _, queue = await self._open()
        return (await queue.move([Cancel(id, why)]))[0] is Outcome.DONE

    async def requeue(self, id: str, *, delay: Duration = timedelta(0)) -> bool:
        """Makes a dead job ready again, with its budgets full; False if it is not dead."""
        _, queue = await self._open()
        record = await queue.get(id)
        if record is None or record.state.place is not Place.DEAD:
            return False
        return (await queue.move([Revive(record.state.hold, as_duration(delay))]))[0] is Outcome.DONE

    async def list(self, place: Place | str, where: JobFilter | None = None) -> AsyncIterator[JobState]:
        """Every job of a place, read page by page as it is asked for."""
        _, queue = await self._open()
        after: str | None = None
        while True:
            page = await queue.page(Place(place), where or JobFilter(), after, PAGE)
            for state in page:
                yield state
            after = page.cursor
            if after is None:
                return

    async def counts(self) -> Counts:
        """How many jobs are where, and who works."""
        _, queue = await self._open()
        return await queue.counts()


def as_duration(value: Duration) -> timedelta:
    """A duration as a person or a program gives it."""
    duration = parse_duration(value) if isinstance(value, str) else value
    if duration < timedelta(0):
        raise UsageError(f"a duration of {format_duration(duration)}", do="give zero or more")
    return duration


def encoded(data: object) -> bytes:
    """The payload of some data: bytes as they are, nothing as nothing, anything else as JSON."""
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


def _made(producer: Producer, new: NewJob) -> Job:
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
    )
