"""What a queue on records remembers beside its jobs: answers that may be asked again, and ids of jobs that are gone.

A record itself knows the requests that put and settled it. Answers are kept here for jobs whose record is gone, and for
takes; only in this process: whoever restarts has no request left to ask again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Generic, TypeVar

from wrasse.clock import Clock
from wrasse.jobs.recorded_names import plain
from wrasse.jobs.recorded_takes import Claim
from wrasse.jobs.task_time import StoreTime
from wrasse.ports.jobs import REQUESTS_KEPT, Put
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records

_OLD_MAX = 100  # forgotten at one keeping
ANSWERS_MAX = 10_000
T = TypeVar("T")


class Remembered(Generic[T]):
    """Answers by request id, for as long as a request is remembered; beyond a number the oldest go first."""

    __slots__ = ("_answers", "_clock", "_order")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, T] = {}
        self._order: deque[tuple[float, str]] = deque()

    def get(self, request: str) -> T | None:
        """The first answer, if it is not too long ago."""
        horizon = self._clock.monotonic() - REQUESTS_KEPT.total_seconds()
        while self._order and (self._order[0][0] < horizon or len(self._order) > ANSWERS_MAX):
            self._answers.pop(self._order.popleft()[1], None)
        return self._answers.get(request)

    def keep(self, request: str, answer: T) -> None:
        """Remembers an answer."""
        self._answers[request] = answer
        self._order.append((self._clock.monotonic(), request))

    def forget(self, request: str) -> None:
        """It got nothing: asking again is asking anew."""
        self._answers.pop(request, None)


class Answers:
    """One memory for each call, since one request id may name a put, a take and a settle."""

    __slots__ = ("puts", "settles", "takes")

    def __init__(self, clock: Clock) -> None:
        self.puts: Remembered[Sequence[Put]] = Remembered(clock)
        self.takes: Remembered[Claim] = Remembered(clock)
        self.settles: Remembered[Sequence[Outcome]] = Remembered(clock)


class KnownIds:
    """Ids that are refused although their job is gone."""

    def __init__(self, records: Records, time: StoreTime) -> None:
        self._records, self._time = records, time

    async def known(self, id: str, at: datetime) -> bool:
        """Whether this id is still refused."""
        record = await self._records.get(plain(id))
        return record is not None and record.due_at is not None and record.due_at > at

    async def keep(self, id: str, until: datetime) -> None:
        """Remembers the id of a job that is about to go, and forgets some that were remembered for long enough."""
        key = plain(id)
        found = await self._records.get(key)
        if found is None:
            await self._records.create(key, b"{}", due_at=until)
        else:
            await self._records.put(key, b"{}", at=found.version, due_at=until)
        at = await self._time.now()
        for record in await self._records.due(None, None, _OLD_MAX):
            if record.due_at is not None and record.due_at <= at:
                await self._records.delete(record.key, at=record.version)
