"""How much one run may do: actions, time, and a pause between batches. Exact to one batch.

A run never takes more actions than `actions_max`, since a batch is cut to what is left. It starts no batch after
`runtime_max`, so that it is over by at most the one that was under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock

ACTIONS_MAX = "actions_max"
RUNTIME_MAX = "runtime_max"


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run. Every action counts, however it ends; looking is free but takes time."""

    actions_max: int = 1_000
    runtime_max: timedelta = timedelta(seconds=30)
    pause: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        assert self.actions_max >= 0, "a budget is not negative"


class Spending:
    """What a run has used of its budget. Sweeps of one group share one."""

    __slots__ = ("_clock", "_spent", "_started", "budget")

    def __init__(self, budget: Budget, clock: Clock) -> None:
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
