"""A network that misbehaves, in front of any port.

Every call passes a `Network`, which asks its plan what is to go wrong with it: the request is slow, the request never
arrives, the request arrives long after the caller gave up, the reply is slow, the reply is lost after the change was
made, or the caller dies. A plan is a script or a seeded random, so that the same seed tells the same story.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

from wrasse.errors import StoreUnavailable
from wrasse.ports.guard import HealthCheck, HealthSample
from wrasse.ports.jobs import (
    IDS_KEPT,
    NO_PROGRESS,
    Claim,
    Claimed,
    Counts,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobQueue,
    JobRecord,
    JobState,
    Move,
    Progress,
    Rate,
    Settlement,
    WorkerInfo,
)
from wrasse.ports.journal import Intent, Journal, Line, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import IndexEntry, Record, Records, Written
from wrasse.ports.streams import Draft

T = TypeVar("T")

# Whether the call under way was sent long before: whoever judges it must know what its sender could know.
arrived_late: ContextVar[bool] = ContextVar("arrived_late", default=False)


class Crashed(BaseException):
    """The process that made the call is gone. Not an Exception: nobody handles their own death."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. Durations are seconds of the event loop's time."""

    slow_request: float = 0.0
    lost_request: bool = False
    late: float | None = None  # the caller is told that it failed, and the request arrives this much later
    slow_reply: float = 0.0
    lost_reply: bool = False
    crash: bool = False  # the caller dies before the call


GOOD = Fault()
LOST_REPLY = Fault(lost_reply=True)
LOST_REQUEST = Fault(lost_request=True)
CRASH = Fault(crash=True)


class Plan(Protocol):
    """What is to go wrong with the next call."""

    def next(self, call: str) -> Fault: ...


@dataclass(slots=True)
class Script:
    """The nth call (from 0), of all calls or of the method `only`, gets the fault of that number; others are good."""

    faults: Mapping[int, Fault]
    only: str | None = None
    calls: list[str] = field(default_factory=list)

    def next(self, call: str) -> Fault:
        if self.only is not None and call != self.only:
            return GOOD
        self.calls.append(call)
        return self.faults.get(len(self.calls) - 1, GOOD)


@dataclass(slots=True)
class Seeded:
    """Faults at random, each with its chance."""

    random: random.Random
    lost_request: float = 0.02
    lost_reply: float = 0.03
    late: float = 0.01
    late_of: Mapping[str, float] = field(default_factory=dict)  # the chance of single methods, where it differs
    late_max: float = 20.0
    delay_max: float = 0.2
    calm: bool = False  # from now on only slow

    def next(self, call: str) -> Fault:
        draw = self.random
        slow_request, slow_reply = draw.uniform(0, self.delay_max), draw.uniform(0, self.delay_max)
        chance, late = draw.random(), draw.uniform(0, self.late_max)
        if self.calm:
            return Fault(slow_request=slow_request, slow_reply=slow_reply)
        of_late = self.late_of.get(call, self.late)
        if chance < of_late:
            return Fault(slow_request=slow_request, late=late)
        chance -= of_late
        return Fault(
            slow_request=slow_request,
            lost_request=chance < self.lost_request,
            slow_reply=slow_reply,
            lost_reply=self.lost_request <= chance < self.lost_request + self.lost_reply,
        )


class Network:
    """Between one process and a backend. `down` while nothing gets through, `dead` once the process is gone."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._late: list[asyncio.Task[None]] = []
        self._epoch = 0
        self._stalled_until = 0.0
        self.down = False
        self.dead = False

    async def call(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        """Makes the call, or what the plan makes of it."""
        fault, epoch = self._plan.next(name), self._epoch
        if fault.crash:
            self.dead = True
        await self._live()
        await _pass(fault.slow_request)
        if self.down or fault.lost_request or epoch != self._epoch:
            raise StoreUnavailable(f"{name} did not arrive")
        if fault.late is not None:
            self._late.append(asyncio.ensure_future(self._arrive(fault.late, act)))
            raise StoreUnavailable(f"{name} took too long")
        answer = await act()
        await _pass(fault.slow_reply)
        await self._live()
        if self.down or fault.lost_reply or epoch != self._epoch:
            raise StoreUnavailable(f"the reply to {name} was lost")
        return answer

    def stall(self, seconds: float) -> None:
        """The process stands still for so long: it asks nothing and does not look at any reply."""
        self._stalled_until = max(self._stalled_until, asyncio.get_running_loop().time() + seconds)

    def wake(self) -> None:
        """Ends a stall for whoever asks from now on."""
        self._stalled_until = 0.0

    def drop(self) -> None:
        """Whatever is under way is lost, as when the other end of a connection goes away."""
        self._epoch += 1

    async def close(self) -> None:
        """Waits for the requests that are still under way."""
        late, self._late = self._late, []
        await asyncio.gather(*late)

    async def _live(self) -> None:
        """As long as the process stands still; not at all once it is gone."""
        left = self._stalled_until - asyncio.get_running_loop().time()
        if self.dead:
            raise Crashed("the process is gone")
        if left > 0:
            await asyncio.sleep(left)
            await self._live()  # it may have been stalled again meanwhile

    async def _arrive(self, after: float, act: Callable[[], Awaitable[object]]) -> None:
        epoch = self._epoch
        await asyncio.sleep(after)
        if epoch == self._epoch and not self.down:
            arrived_late.set(True)
            await act()


async def _pass(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


class FaultyJobs:
    """A JobQueue behind a network."""

    def __init__(self, jobs: JobQueue, network: Network) -> None:
        self._jobs = jobs
        self._network = network

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        return await self._network.call("enqueue", lambda: self._jobs.enqueue(jobs, request=request, groups=groups))

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        take = partial(self._jobs.claim, queues, limit, worker=worker, heartbeat_timeout=heartbeat_timeout)
        return await self._network.call("claim", lambda: take(request=request, wait=wait, rates=rates))

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        beat = partial(self._jobs.heartbeat, worker, claims, heartbeat_timeout=heartbeat_timeout, progress=progress)
        return await self._network.call("heartbeat", beat)

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        return await self._network.call("settle", lambda: self._jobs.settle(settlements, request=request))

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        return await self._network.call("move", lambda: self._jobs.move(moves))

    async def get(self, id: str) -> JobRecord | None:
        return await self._network.call("get", lambda: self._jobs.get(id))

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        return await self._network.call("page", lambda: self._jobs.page(state, where, after, limit, newest=newest))

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        return await self._network.call("overdue", lambda: self._jobs.overdue(after, limit))

    async def counts(self) -> Counts:
        return await self._network.call("counts", self._jobs.counts)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        return await self._network.call("delete", lambda: self._jobs.delete(deletes, ids_kept=ids_kept))


class FaultyRecords:
    """Records behind a network."""

    def __init__(self, records: Records, network: Network) -> None:
        self._records = records
        self._network = network

    @property
    def resolution(self) -> timedelta:
        return self._records.resolution

    @property
    def emits(self) -> bool:
        return self._records.emits

    @property
    def status_index(self) -> None:
        return None

    @property
    def shared(self) -> None:
        return None

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        return await self._network.call(
            "create",
            lambda: self._records.create(key, value, due_at=due_at, nonce=nonce, emit=emit, index_entry=index_entry),
        )

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        return await self._network.call("get", lambda: self._records.get(key, entering=entering))

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        at: str,
        due_at: datetime | None = None,
        nonce: str | None = None,
        entry_stays: bool = False,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        return await self._network.call(
            "put",
            lambda: self._records.put(
                key,
                value,
                at=at,
                due_at=due_at,
                nonce=nonce,
                entry_stays=entry_stays,
                emit=emit,
                index_entry=index_entry,
            ),
        )

    async def leave(self, key: str, due_at: datetime) -> None:
        await self._network.call("leave", lambda: self._records.leave(key, due_at))

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        return await self._network.call("delete", lambda: self._records.delete(key, at=at, nonce=nonce))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        return await self._network.call("page", lambda: self._records.page(prefix, after, limit))

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        return await self._network.call("due", lambda: self._records.due(before, after, limit))


class FaultyJournal:
    """A Journal behind a network."""

    def __init__(self, journal: Journal, network: Network) -> None:
        self._journal = journal
        self._network = network

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        return await self._network.call("intend", lambda: self._journal.intend(intents))

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        return await self._network.call("settle", lambda: self._journal.settle(outcomes))

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        return await self._network.call("page", lambda: self._journal.page(where, after, limit, newest=newest))

    async def delete(self, before: datetime, limit: int) -> int:
        return await self._network.call("delete", lambda: self._journal.delete(before, limit))


class FaultyHeart:
    """A pulse behind a network."""

    def __init__(self, heart: HealthCheck, network: Network) -> None:
        self._heart = heart
        self._network = network

    async def health_sample(self) -> HealthSample:
        return await self._network.call("pulse", self._heart.health_sample)
