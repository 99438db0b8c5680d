"""The breaker of one queue: closed, open, half-open. Pure: time and results are handed in by its owner.

Closed, it counts results, and opens when at least `min_samples` of them lie in the window and the share of failures has
reached the threshold. Open, it lets nothing through until the cooldown is over. Half-open, it lets one job through,
the probe: if that goes well the breaker closes with an empty window, if it fails the breaker opens for a whole
cooldown, and if nothing was decided the probe is given back and the next job may have it.

Every job that is let through carries a ticket, and a result counts only under the ticket of the present: what was
started before the breaker opened neither decides a probe nor fills the window after it. Time is monotonic, so a step of
the wall clock changes nothing.

The window is counted in SLICES pieces, so that it costs the same however many results there are. A result is forgotten
when its slice begins to leave the window: never late, and early by one slice at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

SLICES = 60


class BreakerState(IntEnum):
    """What a breaker lets through; the numbers are those of the metric."""

    CLOSED = 0  # every job
    HALF_OPEN = 1  # one
    OPEN = 2  # none

    @property
    def word(self) -> str:
        """The state as people read it."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a breaker opens, and for how long."""

    failure_threshold: float = 0.5
    window: timedelta = timedelta(seconds=60)
    cooldown: timedelta = timedelta(seconds=30)
    min_samples: int = 20

    def __post_init__(self) -> None:
        assert 0 < self.failure_threshold <= 1, "a threshold is a share"
        assert self.min_samples >= 1, "a breaker opens for a reason"
        assert min(self.window, self.cooldown) > timedelta(0), "a window and a cooldown last"


class _Slice:
    """The results of one stretch of time."""

    __slots__ = ("failed", "number", "total")

    def __init__(self, number: int) -> None:
        self.number = number
        self.total = 0
        self.failed = 0


class _Window:
    """How many results there were lately, and how many of them were failures."""

    __slots__ = ("_length", "_slices", "failed", "total")

    def __init__(self, window: float) -> None:
        self._length = window / SLICES
        self._slices: deque[_Slice] = deque()
        self.clear()

    def clear(self) -> None:
        self._slices.clear()
        self.total = self.failed = 0

    def add(self, ok: bool, now: float) -> None:
        number = int(now // self._length)
        if not self._slices or self._slices[-1].number != number:
            self._forget(now)
            self._slices.append(_Slice(number))
        newest = self._slices[-1]
        newest.total += 1
        self.total += 1
        if not ok:
            newest.failed += 1
            self.failed += 1

    def _forget(self, now: float) -> None:
        oldest = int(now // self._length) - SLICES
        while self._slices and self._slices[0].number <= oldest:
            gone = self._slices.popleft()
            self.total -= gone.total
            self.failed -= gone.failed


class Breaker:
    """Lets jobs of one queue through, or not."""

    __slots__ = ("_cooldown", "_grants", "_min", "_open", "_opened_at", "_probe", "_threshold", "_ticket", "_window",
                 "shut_since", "trips")  # fmt: skip

    def __init__(self, settings: BreakerSettings) -> None:
        self._threshold, self._min = settings.failure_threshold, settings.min_samples
        self._cooldown = settings.cooldown.total_seconds()
        self._window = _Window(settings.window.total_seconds())
        self._open = False
        self._opened_at = 0.0
        self._grants = 1
        self._ticket = 1  # of all jobs while it is closed
        self._probe: int | None = None  # the ticket of the probe that is out
        self.trips = 0  # how often it opened
        self.shut_since: float | None = None  # when it opened first since it was last closed

    def state(self, now: float) -> BreakerState:
        """What it lets through at this moment."""
        if not self._open:
            return BreakerState.CLOSED
        over = now - self._opened_at >= self._cooldown
        return BreakerState.HALF_OPEN if over else BreakerState.OPEN

    def probe_free(self, now: float) -> bool:
        """Would it let a probe through?"""
        return self._probe is None and self.state(now) is BreakerState.HALF_OPEN

    def opens_in(self, now: float) -> float:
        """How many seconds of the cooldown are left."""
        return max(0.0, self._opened_at + self._cooldown - now) if self._open else 0.0

    def admit(self, now: float) -> int | None:
        """A ticket for one job, if it may run. Every ticket is to be answered by `record` or `give_back`."""
        if not self._open:
            return self._ticket
        if not self.probe_free(now):
            return None
        self._grants += 1
        self._probe = self._grants
        return self._probe

    def holds(self, ticket: int) -> bool:
        """Is this ticket of the present: may its job still start?"""
        return ticket == (self._probe if self._open else self._ticket)

    def give_back(self, ticket: int) -> None:
        """The job of this ticket ended without saying anything about its queue."""
        if self._open and ticket == self._probe:
            self._probe = None

    def record(self, ticket: int, ok: bool, now: float) -> BreakerState | None:
        """Takes in how the job of a ticket ended; gives the state if that changed it."""
        if not self.holds(ticket):
            return None
        if self._open:
            if ok:
                return self._close()
            return self._trip(now)
        window = self._window
        window.add(ok, now)
        # A quotient, not a product: 7 of 25 are 0.28, but 0.28 x 25 is more than 7 in floating point.
        if window.failed and window.total >= self._min and window.failed / window.total >= self._threshold:
            return self._trip(now)
        return None

    def _trip(self, now: float) -> BreakerState:
        self._open, self._opened_at, self._probe = True, now, None
        self.trips += 1
        if self.shut_since is None:
            self.shut_since = now
        return BreakerState.OPEN

    def _close(self) -> BreakerState:
        self._open, self._probe, self.shut_since = False, None, None
        self._window.clear()
        self._grants += 1
        self._ticket = self._grants
        return BreakerState.CLOSED
