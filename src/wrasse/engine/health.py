"""Guards that feel the backend's pulse: does it answer, is it still the same one, and do our clocks agree?

After an outage, a restart, an eviction or a jump of our own clock nobody could beat, or beats were forgotten, or time
passed that nobody lived through. Silence proves nothing then, so these guards hold for one `silence` from the first
good answer: long enough for every worker that lives to be heard again.
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
    """What backend_down remembers, in monotonic seconds: since when there is no answer, and how long it holds."""

    since: float | None = None
    hold_until: float | None = None


def after_outage(outage: Outage, now: float, silence: timedelta) -> Outage:
    """The memory after a good answer. An outage of a third of a silence may have swallowed a beat."""
    if outage.since is None:
        return outage
    long_enough = silence > timedelta(0) and now - outage.since >= silence.total_seconds() / 3
    return Outage(None, now + silence.total_seconds() if long_enough else outage.hold_until)


class BackendDown(Guard):
    """Holds while the backend does not answer, and one silence longer if that went on for a while."""

    name = BACKEND_DOWN
    __slots__ = ("_clock", "_outage", "_seen", "_shared", "_silence")

    def __init__(self, shared: SharedHealthChecks, clock: Clock, silence: timedelta) -> None:
        self._shared = shared
        self._clock = clock
        self._silence = silence
        self._outage = Outage()
        self._seen: TimedSample | None = None

    async def held(self) -> str | None:
        try:
            self._seen = await self._shared.newer(self._seen)
        except (StoreUnavailable, TimeoutError) as error:
            if self._outage.since is None:
                self._outage = replace(self._outage, since=self._clock.monotonic())
            return describe(error)
        now = self._clock.monotonic()
        self._outage = after_outage(self._outage, now, self._silence)
        if self._outage.hold_until is not None and now < self._outage.hold_until:
            return f"the backend answers again since less than {format_duration(self._silence)}"
        return None


@dataclass(frozen=True, slots=True)
class KnownBackend:
    """What backend_restarted remembers about the backend, in the backend's own time."""

    identity: str
    evicted: int
    changed_at: datetime | None = None
    what: str = ""


def after_sample(
    known: KnownBackend | None, sample: HealthSample, silence: timedelta
) -> tuple[KnownBackend, str | None]:
    """What to remember after an answer, and why to hold. The first backend ever seen has not changed."""
    if known is None:
        return KnownBackend(sample.identity, sample.evicted), None
    changed_at, what = known.changed_at, known.what
    if sample.identity != known.identity:
        changed_at, what = sample.at, "the backend restarted or another took over"
    elif sample.evicted > known.evicted:
        changed_at, what = sample.at, "the backend evicted keys to make room"
    elif changed_at is not None and sample.at < changed_at:
        changed_at = sample.at  # its clock was set back; without this the hold would last as long as the step
    if changed_at is None or sample.at - changed_at >= silence:
        return KnownBackend(sample.identity, sample.evicted), None
    return KnownBackend(
        sample.identity, sample.evicted, changed_at, what
    ), f"{what}, less than {format_duration(silence)} ago"


_KNOWN = msgspec.json.Decoder(KnownBackend)


class BackendRestarted(Guard):
    """Holds one silence after the backend became another one, or dropped keys."""

    name = "backend_restarted"
    __slots__ = ("_known", "_seen", "_shared", "_silence")

    def __init__(self, shared: SharedHealthChecks, silence: timedelta) -> None:
        self._shared = shared
        self._silence = silence
        self._known: KnownBackend | None = None
        self._seen: TimedSample | None = None

    async def held(self) -> str | None:
        self._seen = await self._shared.newer(self._seen)
        self._known, reason = after_sample(self._known, self._seen.sample, self._silence)
        return reason

    def recall(self, memory: str | None) -> None:
        if memory is not None:
            self._known = decoded(_KNOWN.decode, memory.encode())

    def memory(self) -> str | None:
        return None if self._known is None else msgspec.json.encode(self._known).decode()


@dataclass(frozen=True, slots=True)
class ClockSample:
    """What the clock guard remembers: both our clocks at the last look, and how long it holds, in monotonic seconds."""

    now: datetime
    monotonic: float
    hold_until: float | None = None


def after_clock_sample(
    last: ClockSample | None, now: datetime, monotonic: float, silence: timedelta, jump_max: timedelta
) -> tuple[ClockSample, str | None]:
    """What to remember after a look at our own clocks, and why to hold: they parted by more than `jump_max`."""
    hold_until = None if last is None else last.hold_until
    if last is not None and silence > timedelta(0):
        parted = (now - last.now).total_seconds() - (monotonic - last.monotonic)
        if abs(parted) > min(jump_max, silence / 3).total_seconds():
            hold_until = monotonic + silence.total_seconds()
    if hold_until is None or monotonic >= hold_until:
        return ClockSample(now, monotonic), None
    return ClockSample(
        now, monotonic, hold_until
    ), f"this host's clock jumped, less than {format_duration(silence)} ago"


class ClockSkew(Guard):
    """Holds while our clock and the backend's differ too much, and one silence after ours jumped or slept."""

    name = "clock"
    __slots__ = ("_clock", "_looked", "_seen", "_shared", "_silence", "jump_max", "skew", "skew_max")

    def __init__(
        self,
        shared: SharedHealthChecks,
        clock: Clock,
        silence: timedelta,
        *,
        skew_max: timedelta = SKEW_MAX,
        jump_max: timedelta = JUMP_MAX,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._silence = silence
        self._looked: ClockSample | None = None
        self._seen: TimedSample | None = None
        self.skew_max = skew_max
        self.jump_max = jump_max
        self.skew = timedelta(0)  # ours minus the backend's, at the last look

    async def held(self) -> str | None:
        self._seen = await self._shared.newer(self._seen)
        self.skew = self._seen.now - self._seen.sample.at
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._looked, reason = after_clock_sample(self._looked, now, monotonic, self._silence, self.jump_max)
        if abs(self.skew) > self.skew_max:
            side = "ahead of" if self.skew > timedelta(0) else "behind"
            return f"this host's clock is {format_duration(abs(self.skew))} {side} the backend's"
        return reason


def backend_guards(
    health_check: HealthCheck, clock: Clock, silence: timedelta = timedelta(0), *, skew_max: timedelta = SKEW_MAX
) -> tuple[Guard, ...]:
    """The guards about one backend. `silence` is how long to hold after it was not itself; zero: not at all."""
    shared = SharedHealthChecks(health_check, clock)
    down, skewed = BackendDown(shared, clock, silence), ClockSkew(shared, clock, silence, skew_max=skew_max)
    return (down, BackendRestarted(shared, silence), skewed) if silence > timedelta(0) else (down, skewed)
