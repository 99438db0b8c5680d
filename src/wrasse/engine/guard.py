"""Guards about what uses a backend: other operations, the lease of the run, and workers that stop together.

The decisions in here are pure functions of what was seen and what is remembered; the classes around them only look.
Guards about the backend itself are in `health.py`.

The lock that the sweeper of the design document takes on Redis: held, and renewed, before each batch of a run, so
that a sweeper of the origin and ours do not run at the same time. It is released after the run, and ends by itself
when the process was killed. A dry run only looks who has it.

All sweeps of ours are one owner: which process runs one is what its lease says, and a process that was killed must not
keep the next one from its work. So one sweep may release what another still needs; that one takes it again before its
next batch. Until then it may run beside the origin's, where the preconditions of each change save the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.leases.lease_scope import RenewedLease
from wrasse.ports.guard import Guard
from wrasse.ports.jobs import Counts, WorkerState
from wrasse.ports.named_locks import PlainLocks

STOPPING = "stopping"  # the guard of an engine that was asked to stop


class Activity:
    """Notes that somebody uses what an idle sweep would tidy. Noting costs next to nothing."""

    __slots__ = ("_clock", "last")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last: float | None = None

    def note(self) -> None:
        """An operation is under way, now."""
        self.last = self._clock.monotonic()


class Traffic(Guard):
    """Lets an idle sweep start only after `grace` without operations, and stops it within one batch of one."""

    name = "traffic"
    __slots__ = ("_activity", "_clock", "_grace")

    def __init__(self, activity: Activity, grace: timedelta, clock: Clock) -> None:
        self._activity = activity
        self._grace = grace
        self._clock = clock

    async def pause_reason(self) -> str | None:
        last = self._activity.last
        if last is None or self._clock.monotonic() - last >= self._grace.total_seconds():
            return None
        return f"in use less than {format_duration(self._grace)} ago"


class LeaseGuard(Guard):
    """Stops a run whose lease is over, by monotonic time: an economy, since the preconditions save the data."""

    name = "lost_lease"
    __slots__ = ("_holding",)

    def __init__(self, holding: RenewedLease) -> None:
        self._holding = holding

    async def pause_reason(self) -> str | None:
        return None if self._holding.alive else f"the lease {self._holding.key} ended or changed hands"


@dataclass(frozen=True, slots=True)
class Wave:
    """What mass_death remembers: when it last looked and saw nothing of the kind, since when it pauses, the last moment
    of a missed deadline that belongs to that wave, and up to when deaths have been dealt with."""

    looked_at: datetime | None = None
    since: datetime | None = None
    last: datetime | None = None
    dealt_until: datetime | None = None


_WAVE = msgspec.json.Decoder(Wave)


@dataclass(frozen=True, slots=True)
class MassDeathVerdict:
    """Whether to pause, what to remember, and what to say when it goes on all the same."""

    wave: Wave
    reason: str | None = None
    note: str = ""


def mass_death(
    workers: Sequence[WorkerState],
    at: datetime,
    wave: Wave,
    heartbeat_timeout: timedelta,
    share: float,
    holders_min: int,
) -> MassDeathVerdict:
    """Most workers at once do not die: something between them and the backend did. So it waits for them to come back,
    twice the heartbeat timeout at most, and then takes them for dead. A wave is what stopped within one heartbeat
    timeout; another one that came meanwhile is waited for in its own right."""
    alive = sum(1 for worker in workers if worker.deadline > at)
    overdue = sorted(worker.deadline for worker in workers if worker.deadline <= at)
    horizon, dealt_until, note = _horizon(wave, at, heartbeat_timeout), wave.dealt_until, ""
    if wave.since is not None and wave.last is not None:
        since = min(at, wave.since)  # the store's clock may have been set back
        gone = sum(wave.last - heartbeat_timeout < each <= wave.last for each in overdue)
        if _massive(gone, alive, share, holders_min):
            what = f"{gone} of {alive + gone} workers lost their heartbeat"
            if at - since < 2 * heartbeat_timeout:
                return MassDeathVerdict(
                    replace(wave, since=since), f"{what} within {format_duration(heartbeat_timeout)}"
                )
            dealt_until = min(at, wave.last)
            note = f"{what} and did not come back in {format_duration(2 * heartbeat_timeout)}; they count as dead"
        horizon = wave.last
    first, gone = _most_within(heartbeat_timeout, [each for each in overdue if horizon < each])
    if first is None or not _massive(gone, alive, share, holders_min):
        return MassDeathVerdict(Wave(looked_at=at, dealt_until=dealt_until), None, note)
    found = Wave(
        wave.looked_at, since=at, last=first + heartbeat_timeout - timedelta.resolution, dealt_until=dealt_until
    )
    what = f"{gone} of {alive + gone} workers lost their heartbeat within {format_duration(heartbeat_timeout)}"
    return MassDeathVerdict(found, what, note)


def _massive(gone: int, alive: int, share: float, holders_min: int) -> bool:
    return gone >= holders_min and gone > share * (alive + gone)


def _horizon(wave: Wave, at: datetime, heartbeat_timeout: timedelta) -> datetime:
    """Deaths up to here have been judged by an earlier look."""
    horizon = min(at, wave.looked_at or at) - heartbeat_timeout
    if wave.dealt_until is not None and wave.dealt_until <= at:
        horizon = max(horizon, wave.dealt_until)
    return horizon


def _most_within(heartbeat_timeout: timedelta, ordered: Sequence[datetime]) -> tuple[datetime | None, int]:
    """The largest number of instants that fit into one heartbeat timeout, and the first of them: two looks may lie
    further apart than that."""
    began: datetime | None = None
    most = first = 0
    for index, instant in enumerate(ordered):
        while instant - ordered[first] >= heartbeat_timeout:
            first += 1
        if index - first + 1 > most:
            began, most = ordered[first], index - first + 1
    return began, most


class WorkerCounts(Protocol):
    """Something whose workers can be told."""

    async def counts(self) -> Counts:
        """Among other numbers, the workers."""
        ...


class MassDeath(Guard):
    """Pauses when most holders vanished at once."""

    name = "mass_death"
    __slots__ = ("_heartbeat_timeout", "_holders_min", "_jobs", "_note", "_share", "_wave")

    def __init__(
        self, jobs: WorkerCounts, heartbeat_timeout: timedelta, *, share: float = 0.5, holders_min: int = 5
    ) -> None:
        self._jobs = jobs
        self._heartbeat_timeout = heartbeat_timeout
        self._share = share
        self._holders_min = holders_min
        self._wave = Wave()
        self._note = ""

    async def pause_reason(self) -> str | None:
        counts = await self._jobs.counts()
        found = mass_death(
            counts.workers, counts.at, self._wave, self._heartbeat_timeout, self._share, self._holders_min
        )
        self._wave = found.wave
        self._note = found.note or self._note
        return found.reason

    def note(self) -> str:
        return self._note

    def recall(self, memory: str | None) -> None:
        self._wave = Wave() if memory is None else decoded(_WAVE.decode, memory.encode())
        self._note = ""  # a new run has nothing to say yet

    def memory(self) -> str | None:
        return msgspec.json.encode(self._wave).decode()


DOCUMENT_LOCK = "gbe:lock:sweeper"
OWNER = "wrasse"


class PlainLockGuard(Guard):
    """Pauses a run while somebody else has the lock."""

    name = "sweeper_lock"
    __slots__ = ("_locks", "_taken", "_ttl")

    def __init__(self, locks: PlainLocks, ttl: timedelta) -> None:
        self._locks = locks
        self._ttl = ttl
        self._taken = False

    async def pause_reason(self) -> str | None:
        self._taken = True  # also where the answer is lost
        return self._unless_ours(await self._locks.hold(DOCUMENT_LOCK, OWNER, self._ttl))

    async def foreseen(self) -> str | None:
        return self._unless_ours(await self._locks.holder(DOCUMENT_LOCK))

    async def release(self) -> None:
        if self._taken:
            self._taken = False
            await self._locks.release(DOCUMENT_LOCK, OWNER)

    def _unless_ours(self, holder: str) -> str | None:
        return None if holder in (OWNER, "") else f"{DOCUMENT_LOCK} is held by {holder}"
