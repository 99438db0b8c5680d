"""Guards that check the backend's health: does it answer, is it still the same one, and do our clocks agree?

After an outage, a restart or an eviction heartbeats may be missing that workers sent; after a jump of our own clock, or
while this host was suspended, deadlines pass too early. A missing heartbeat proves nothing then, so these guards pause
runs for one `heartbeat_timeout` from the first good answer: long enough for every living worker to send one again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.engine.report import BACKEND_DOWN, describe
from wrasse.errors import StoreUnavailable
from wrasse.ports.guard import Guard
from wrasse.ports.health_check import HealthCheck, HealthSample

HEALTH_CHECK_MAX = 5.0  # seconds until a backend counts as down
SKEW_MAX = timedelta(seconds=5)
JUMP_MAX = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class TimedSample:
    """One answer, when it came by our clocks, and its number."""

    sample: HealthSample
    number: int
    now: datetime


class SharedHealthChecks:
    """Shares answers between guards: each judges every answer once, so three guards cost one round trip a look."""

    __slots__ = ("_clock", "_health_check", "_last")

    def __init__(self, health_check: HealthCheck, clock: Clock) -> None:
        self._health_check = health_check
        self._clock = clock
        self._last: TimedSample | None = None

    async def newer(self, than: TimedSample | None) -> TimedSample:
        """An answer that the caller has not judged yet; asks only if there is none."""
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
    return KnownBackend(
        sample.identity, sample.evicted, changed_at, what
    ), f"{what}, less than {format_duration(heartbeat_timeout)} ago"


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
    """What the clock guard remembers: both our clocks at the last look, and until when it pauses, monotonic."""

    now: datetime
    monotonic: float
    paused_until: float | None = None


def after_clock_sample(
    last: ClockSample | None, now: datetime, monotonic: float, heartbeat_timeout: timedelta, jump_max: timedelta
) -> tuple[ClockSample, str | None]:
    """What to remember after a look at our own clocks, and why to pause: they parted by more than `jump_max`."""
    paused_until = None if last is None else last.paused_until
    if last is not None and heartbeat_timeout > timedelta(0):
        parted = (now - last.now).total_seconds() - (monotonic - last.monotonic)
        if abs(parted) > min(jump_max, heartbeat_timeout / 3).total_seconds():
            paused_until = monotonic + heartbeat_timeout.total_seconds()
    if paused_until is None or monotonic >= paused_until:
        return ClockSample(now, monotonic), None
    return ClockSample(
        now, monotonic, paused_until
    ), f"this host's clock jumped, less than {format_duration(heartbeat_timeout)} ago"


class ClockSkew(Guard):
    """Pauses while our clock and the backend's differ too much, and one heartbeat timeout after ours jumped."""

    name = "clock"
    __slots__ = ("_clock", "_heartbeat_timeout", "_looked", "_seen", "_shared", "jump_max", "skew", "skew_max")

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
        self._looked: ClockSample | None = None
        self._seen: TimedSample | None = None
        self.skew_max = skew_max
        self.jump_max = jump_max
        self.skew = timedelta(0)  # ours minus the backend's, at the last look

    async def pause_reason(self) -> str | None:
        self._seen = await self._shared.newer(self._seen)
        self.skew = self._seen.now - self._seen.sample.at
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._looked, reason = after_clock_sample(self._looked, now, monotonic, self._heartbeat_timeout, self.jump_max)
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
    down, skewed = (
        BackendDown(shared, clock, heartbeat_timeout),
        ClockSkew(shared, clock, heartbeat_timeout, skew_max=skew_max),
    )
    return (
        (down, BackendRestarted(shared, heartbeat_timeout), skewed)
        if heartbeat_timeout > timedelta(0)
        else (down, skewed)
    )
