"""What a put gives back: the job's id, whether it is new, and how to wait for what becomes of it.

A result is there for as long as its job is: at least `keep` of its put after the job is done, and otherwise while it is
among the newest `worker.done_max` done ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec

from wrasse.duration import format_duration, parse_duration
from wrasse.errors import JobFailed, UsageError
from wrasse.ports.jobs import Cancel, JobQueue, JobState, Place
from wrasse.ports.outcome import Outcome

Duration = timedelta | str  # 30s, 5m, 1h30m, or a timedelta
_ZERO = timedelta(0)
_POLL_FIRST, _POLL_MAX = 0.02, 0.5  # seconds


class JobHandle:
    """A job that was put. True when it is new; if it is not, `id` is that of the job that was there already. The
    handle of a callback may be made before its job is: it is put when its group is finished."""

    __slots__ = ("_open", "_to_come", "id", "new")

    def __init__(self, open: Callable[[], Awaitable[JobQueue]], id: str, new: bool, *, to_come: bool = False) -> None:
        self._open = open
        self._to_come = to_come
        self.id = id
        self.new = new

    def __bool__(self) -> bool:
        return self.new

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id!r}, new={self.new})"

    async def result(self, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and gives its handler's result; JobFailed if it ends dead, TimeoutError if it
        takes longer."""
        return await result_of(await self._open(), self.id, as_duration(timeout), to_come=self._to_come)

    async def state(self) -> JobState | None:
        """Where the job is now; None if it is gone, or still to come."""
        record = await (await self._open()).get(self.id)
        return None if record is None else record.state

    async def cancel(self, why: str = "") -> bool:
        """Stops the job if it waits or runs; False if it was finished, or is gone."""
        return (await (await self._open()).move([Cancel(self.id, why)]))[0] is Outcome.DONE


async def result_of(queue: JobQueue, id: str, timeout: timedelta, *, to_come: bool = False) -> object:
    """The result of a job, once it is done."""
    pause = _POLL_FIRST
    async with asyncio.timeout(timeout.total_seconds()):
        while True:
            record = await queue.get(id)
            if record is None:
                if not to_come:
                    raise UsageError(
                        f"there is no job {id!r}", do="put it first; a done job is gone after a while, see keep="
                    )
            elif record.state.place is Place.DONE:
                return read_result(record.result)
            elif record.state.place is Place.DEAD:
                raise JobFailed(
                    f"the job {id!r} is dead: {record.state.reason}: {record.state.error}".removesuffix(": "),
                    do=f"see `wrasse jobs show {id}`",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX)


def read_result(result: bytes | None) -> object:
    """What a handler returned: read as JSON, or the bytes as they are where they are none."""
    if result is None:
        return None
    try:
        return msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return result


def as_duration(value: Duration) -> timedelta:
    """A duration as a person or a program gives it."""
    duration = parse_duration(value) if isinstance(value, str) else value
    if duration < _ZERO:
        raise UsageError(f"a duration of {format_duration(duration)}", do="give zero or more")
    return duration
