"""How much one run may do: actions, time, and a pause between batches. Exact to one batch.

A run never takes more actions than `actions_max`, since a batch is cut to what is left. It starts no batch after
`runtime_max`, so that it is over by at most the one that was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from wrasse.clock import Clock
from wrasse.engine.report import BACKEND_DOWN, describe
from wrasse.errors import StoreUnavailable
from wrasse.ports.guard import Guard

ACTIONS_MAX = "actions_max"
RUNTIME_MAX = "runtime_max"


@dataclass(frozen=True, slots=True)
class RunBudget:
    """The limits of one run. Every action counts, however it ends; looking is free but takes time."""

    actions_max: int = 1_000
    runtime_max: timedelta = timedelta(seconds=30)
    pause: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        assert self.actions_max >= 0, "a budget is not negative"


class Spending:
    """What a run has used of its budget. Sweeps of one group share one."""

    __slots__ = ("_clock", "_spent", "_started", "budget")

    def __init__(self, budget: RunBudget, clock: Clock) -> None:
        self.budget = budget
        self._clock = clock
        self._spent = 0
        self._started = clock.monotonic()

    def begin(self) -> None:
        """The time counts from here: what comes before is preparation."""
        self._started = self._clock.monotonic()

    @property
    def left(self) -> int:
        """How many actions are left."""
        return self.budget.actions_max - self._spent

    def spend(self, actions: int) -> None:
        """Counts a batch, before it is applied."""
        assert actions <= self.left, "a batch beyond the budget"
        self._spent += actions

    def exhausted(self) -> str | None:
        """Which limit has been reached, if any."""
        if self.left <= 0:
            return ACTIONS_MAX
        if self._clock.monotonic() - self._started >= self.budget.runtime_max.total_seconds():
            return RUNTIME_MAX
        return None


T = TypeVar("T")
CALL_MAX = 60.0  # seconds one call of a port may take; its backend's own timeouts are shorter


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended before the end of its listing."""

    by: str
    why: str


class Bounds:
    """The budget and the guards of one run, or of one group."""

    __slots__ = ("_dry_run", "guards", "spending")

    def __init__(self, spending: Spending, guards: Sequence[Guard], *, dry_run: bool = False) -> None:
        self.spending = spending
        self.guards = tuple(guards)
        self._dry_run = dry_run

    def exhausted(self) -> Stop | None:
        """Whether the budget is used up."""
        limit = self.spending.exhausted()
        return None if limit is None else Stop(limit, f"the budget's {limit} was reached; the next run goes on here")

    async def pause(self) -> Stop | None:
        """The first guard that pauses the run, if any."""
        return await first_pause(self.guards, foreseen=self._dry_run)

    async def release(self) -> None:
        """Lets guards give back what they hold. What cannot be given back now ends by itself."""
        for guard in () if self._dry_run else self.guards:
            with suppress(StoreUnavailable, TimeoutError):
                await within(guard.release())

    def notes(self) -> tuple[str, ...]:
        """What guards that let the run go on have to say."""
        return tuple(note for guard in self.guards if (note := guard.note()))


async def first_pause(guards: Sequence[Guard], *, foreseen: bool = False) -> Stop | None:
    """The first of these guards that pauses a run, or would. One that cannot tell pauses it: no proof, no action."""
    for guard in guards:
        try:
            reason = await within(guard.foreseen() if foreseen else guard.pause_reason())
        except (StoreUnavailable, TimeoutError) as error:
            return Stop(BACKEND_DOWN, describe(error))
        except Exception as error:
            return Stop(guard.name, f"the guard itself failed: {describe(error)}")
        if reason is not None:
            return Stop(guard.name, reason)
    return None


async def within(call: Awaitable[T]) -> T:
    """The answer of one call, or TimeoutError: no wait without an end."""
    async with asyncio.timeout(CALL_MAX):
        return await call
