"""The limiter in the memory of one process."""

from __future__ import annotations

from wrasse.clock import Clock, to_micros
from wrasse.ports.limiter import Allowance, Spent


class MemoryLimiter:
    """Budgets of one process."""

    __slots__ = ("_clock", "_spent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent: dict[str, Spent] = {}

    async def allow(self, key: str, count: int, *, rate: int, burst: int) -> Allowance:
        """Takes up to `count` from the budget of this key."""
        self._spent[key], allowance = self._of(key).allow(self._now(), count, rate=rate, burst=burst)
        return allowance

    async def give_back(self, key: str, count: int, *, rate: int) -> None:
        """Returns an unused part to the budget."""
        self._spent[key] = self._of(key).give_back(self._now(), count, rate=rate)

    def _of(self, key: str) -> Spent:
        return self._spent.get(key, Spent(0))

    def _now(self) -> int:
        return 1_000 * to_micros(self._clock.now())
