"""Guards pause the run of a sweep while its evidence proves nothing, or while the backend is used otherwise.

By what uses the backend: `Traffic` (other operations), `LeaseGuard` (the lease of the run), `MassDeath` (workers that
stop together), `PlainLockGuard` (a lock shared with other programs). By the backend's health: `BackendDown` (does it
answer), `BackendRestarted` (is it still the same one), `ClockSkew` (do our clocks agree).

After an outage, a restart or an eviction heartbeats may be missing that workers sent; after a jump of our own clock, or
while this host was suspended, deadlines pass too early. A missing heartbeat proves nothing then, so the guards of
health pause runs for one `heartbeat_timeout` from the first good answer: long enough for every living worker to send
one again.

The decisions are pure functions of an observation and of what the guard remembers; the classes around them only read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.engine.report import BACKEND_DOWN, describe
from wrasse.errors import StoreUnavailable
from wrasse.leases.lease_scope import RenewedLease
from wrasse.ports.guard import Guard, HealthCheck, HealthSample, NamedLocks
from wrasse.ports.jobs import Counts, WorkerState

DOCUMENT_LOCK = "gbe:lock:sweeper"
OWNER = "wrasse"
STOPPING = "stopping"  # the guard of an engine that was asked to stop
HEALTH_CHECK_MAX = 5.0  # seconds until a backend counts as down
SKEW_MAX = timedelta(seconds=5)
JUMP_MAX = timedelta(seconds=5)


class Activity:
    """When the data that an idle sweep cleans up was last used."""

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
    """What mass_death remembers: when it last saw no wave, since when it pauses, the last missed deadline that belongs
    to the wave, and up to when deaths have been judged."""

    looked_at: datetime | None = None
    since: datetime | None = None
    last: datetime | None = None
    dealt_until: datetime | None = None


_WAVE = msgspec.json.Decoder(Wave)


@dataclass(frozen=True, slots=True)
class MassDeathVerdict:
    """Whether to pause, what to remember, and what the report says if the run continues after a wave."""

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
    """If most workers stop at once, the cause is rather between them and the backend. So the sweep waits for them to
    come back, twice the heartbeat timeout at most, and then counts them as dead. A wave is the workers that stopped
    within one heartbeat timeout; a second wave meanwhile gets a wait of its own."""
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
    """Deaths up to here have been judged by an earlier check."""
    horizon = min(at, wave.looked_at or at) - heartbeat_timeout
    if wave.dealt_until is not None and wave.dealt_until <= at:
        horizon = max(horizon, wave.dealt_until)
    return horizon


def _most_within(heartbeat_timeout: timedelta, ordered: Sequence[datetime]) -> tuple[datetime | None, int]:
    """The largest number of instants that fit into one heartbeat timeout, and the first of them: two checks may lie
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
    """The workers of a job queue."""

    async def counts(self) -> Counts:
        """The counts, of which only the workers are read."""
        ...


class MassDeath(Guard):
    """Pauses when most workers stopped at once."""

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


class PlainLockGuard(Guard):
    """Pauses a run while another program has the lock that the sweeper of the design document takes on Redis.

    The lock is acquired, or renewed, before each batch of a run, so that a sweeper of the origin and ours do not run at
    the same time. It is released after the run, and expires if the process was killed. A dry run only reads who has it.

    All our sweeps are one owner: the lease of a sweep says which process runs it, and a killed process must not block
    the next one. So one sweep may release the lock while another runs; that one acquires it again before its next
    batch. Until then it may run beside the origin's, where the precondition of each change saves the data.
    """

    name = "sweeper_lock"
    __slots__ = ("_acquired", "_locks", "_ttl")

    def __init__(self, locks: NamedLocks, ttl: timedelta) -> None:
        self._locks = locks
        self._ttl = ttl
        self._acquired = False

    async def pause_reason(self) -> str | None:
        self._acquired = True  # even if the answer is lost
        return self._unless_ours(await self._locks.hold(DOCUMENT_LOCK, OWNER, self._ttl))

    async def foreseen(self) -> str | None:
        return self._unless_ours(await self._locks.holder(DOCUMENT_LOCK))

    async def release(self) -> None:
        if self._acquired:
            self._acquired = False
            await self._locks.release(DOCUMENT_LOCK, OWNER)

    def _unless_ours(self, holder: str) -> str | None:
        return None if holder in (OWNER, "") else f"{DOCUMENT_LOCK} is held by {holder}"


@dataclass(frozen=True, slots=True)
class TimedSample:
    """One answer, when it came by our clocks, and its number."""

    sample: HealthSample
    number: int
    now: datetime


class SharedHealthChecks:
    """Shares answers between guards: each judges every answer once, so that three guards cost one round trip."""

    __slots__ = ("_clock", "_health_check", "_last")

    def __init__(self, health_check: HealthCheck, clock: Clock) -> None:
        self._health_check = health_check
        self._clock = clock
        self._last: TimedSample | None = None

    async def newer(self, than: TimedSample | None) -> TimedSample:
        """An answer that the caller has not judged yet; a new one only if there is none."""
        number = 0 if than is None else than.number
        if self._last is None or self._last.number <= number:
            async with asyncio.timeout(HEALTH_CHECK_MAX):
                sample = await self._health_check.health_sample()
            self._last = TimedSample(sample, number + 1, self._clock.now())
        return self._last


@dataclass(frozen=True, slots=True)
class Outage:
    """What backend_down remembers, in monotonic seconds: since when there is no answer, and how long it pauses."""

    since: float | None = None
    paused_until: float | None = None


def after_outage(outage: Outage, now: float, heartbeat_timeout: timedelta) -> Outage:
    """The memory after a good answer. An outage of a third of a heartbeat timeout may have swallowed a heartbeat."""
    if outage.since is None:
        return outage
    long_enough = heartbeat_timeout > timedelta(0) and now - outage.since >= heartbeat_timeout.total_seconds() / 3
    return Outage(None, now + heartbeat_timeout.total_seconds() if long_enough else outage.paused_until)


class BackendDown(Guard):
    """Pauses while the backend does not answer, and one heartbeat timeout longer if that went on for a while."""

    name = BACKEND_DOWN
    __slots__ = ("_clock", "_heartbeat_timeout", "_outage", "_seen", "_shared")

    def __init__(self, shared: SharedHealthChecks, clock: Clock, heartbeat_timeout: timedelta) -> None:
        self._shared = shared
        self._clock = clock
        self._heartbeat_timeout = heartbeat_timeout
        self._outage = Outage()
        self._seen: TimedSample | None = None

    async def pause_reason(self) -> str | None:
        try:
            self._seen = await self._shared.newer(self._seen)
        except (StoreUnavailable, TimeoutError) as error:
            if self._outage.since is None:
                self._outage = replace(self._outage, since=self._clock.monotonic())
            return describe(error)
        now = self._clock.monotonic()
        self._outage = after_outage(self._outage, now, self._heartbeat_timeout)
        if self._outage.paused_until is not None and now < self._outage.paused_until:
            return f"the backend answers again since less than {format_duration(self._heartbeat_timeout)}"
        return None


@dataclass(frozen=True, slots=True)
class KnownBackend:
    """What backend_restarted remembers about the backend, in the backend's own time."""

    identity: str
    evicted: int
    changed_at: datetime | None = None
    what: str = ""


def after_sample(
    known: KnownBackend | None, sample: HealthSample, heartbeat_timeout: timedelta
) -> tuple[KnownBackend, str | None]:
    """What to remember after an answer, and why to pause. The first backend ever seen has not changed."""
    if known is None:
        return KnownBackend(sample.identity, sample.evicted), None
    changed_at, what = known.changed_at, known.what
    if sample.identity != known.identity:
        changed_at, what = sample.at, "the backend restarted or another took over"
    elif sample.evicted > known.evicted:
        changed_at, what = sample.at, "the backend evicted keys to make room"
    elif changed_at is not None and sample.at < changed_at:
        changed_at = sample.at  # its clock was set back; without this the pause would last as long as the step
    if changed_at is None or sample.at - changed_at >= heartbeat_timeout:
        return KnownBackend(sample.identity, sample.evicted), None
    reason = f"{what}, less than {format_duration(heartbeat_timeout)} ago"
    return KnownBackend(sample.identity, sample.evicted, changed_at, what), reason


_KNOWN = msgspec.json.Decoder(KnownBackend)


class BackendRestarted(Guard):
    """Pauses one heartbeat timeout after the backend became another one, or dropped keys."""

    name = "backend_restarted"
    __slots__ = ("_heartbeat_timeout", "_known", "_seen", "_shared")

    def __init__(self, shared: SharedHealthChecks, heartbeat_timeout: timedelta) -> None:
        self._shared = shared
        self._heartbeat_timeout = heartbeat_timeout
        self._known: KnownBackend | None = None
        self._seen: TimedSample | None = None

    async def pause_reason(self) -> str | None:
        self._seen = await self._shared.newer(self._seen)
        self._known, reason = after_sample(self._known, self._seen.sample, self._heartbeat_timeout)
        return reason

    def recall(self, memory: str | None) -> None:
        if memory is not None:
            self._known = decoded(_KNOWN.decode, memory.encode())

    def memory(self) -> str | None:
        return None if self._known is None else msgspec.json.encode(self._known).decode()


@dataclass(frozen=True, slots=True)
class ClockSample:
    """What the clock guard remembers: both our clocks at the last check, and until when it pauses, monotonic."""

    now: datetime
    monotonic: float
    paused_until: float | None = None


def after_clock_sample(
    last: ClockSample | None, now: datetime, monotonic: float, heartbeat_timeout: timedelta, jump_max: timedelta
) -> tuple[ClockSample, str | None]:
    """What to remember after reading our own clocks, and why to pause: they diverged by more than `jump_max`."""
    paused_until = None if last is None else last.paused_until
    if last is not None and heartbeat_timeout > timedelta(0):
        diverged = (now - last.now).total_seconds() - (monotonic - last.monotonic)
        if abs(diverged) > min(jump_max, heartbeat_timeout / 3).total_seconds():
            paused_until = monotonic + heartbeat_timeout.total_seconds()
    if paused_until is None or monotonic >= paused_until:
        return ClockSample(now, monotonic), None
    reason = f"this host's clock jumped, less than {format_duration(heartbeat_timeout)} ago"
    return ClockSample(now, monotonic, paused_until), reason


class ClockSkew(Guard):
    """Pauses while our clock and the backend's differ too much, and one heartbeat timeout after ours jumped."""

    name = "clock"
    __slots__ = ("_clock", "_heartbeat_timeout", "_last", "_seen", "_shared", "jump_max", "skew", "skew_max")

    def __init__(
        self,
        shared: SharedHealthChecks,
        clock: Clock,
        heartbeat_timeout: timedelta,
        *,
        skew_max: timedelta = SKEW_MAX,
        jump_max: timedelta = JUMP_MAX,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._heartbeat_timeout = heartbeat_timeout
        self._last: ClockSample | None = None
        self._seen: TimedSample | None = None
        self.skew_max = skew_max
        self.jump_max = jump_max
        self.skew = timedelta(0)  # ours minus the backend's, at the last check

    async def pause_reason(self) -> str | None:
        self._seen = await self._shared.newer(self._seen)
        self.skew = self._seen.now - self._seen.sample.at
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._last, reason = after_clock_sample(self._last, now, monotonic, self._heartbeat_timeout, self.jump_max)
        if abs(self.skew) > self.skew_max:
            side = "ahead of" if self.skew > timedelta(0) else "behind"
            return f"this host's clock is {format_duration(abs(self.skew))} {side} the backend's"
        return reason


def backend_guards(
    health_check: HealthCheck,
    clock: Clock,
    heartbeat_timeout: timedelta = timedelta(0),
    *,
    skew_max: timedelta = SKEW_MAX,
) -> tuple[Guard, ...]:
    """The guards about one backend. `heartbeat_timeout` is how long to pause after an outage; zero: not at all."""
    shared = SharedHealthChecks(health_check, clock)
    down = BackendDown(shared, clock, heartbeat_timeout)
    skew = ClockSkew(shared, clock, heartbeat_timeout, skew_max=skew_max)
    return (down, BackendRestarted(shared, heartbeat_timeout), skew) if heartbeat_timeout else (down, skew)
