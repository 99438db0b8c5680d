"""What ends a run early: its budget, and its guards. Asked before every batch, by every sweep of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from wrasse.engine.budget import Spending
from wrasse.engine.report import BACKEND_DOWN, describe
from wrasse.errors import StoreUnavailable
from wrasse.ports.guard import Guard

T = TypeVar("T")
CALL_MAX = 60.0  # seconds one call of a port may take; its backend's own timeouts are shorter


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended before the end of its listing."""

    by: str
    why: str


class Bounds:
    """The budget and the guards of one run, or of one group."""

    __slots__ = ("guards", "spending")

    def __init__(self, spending: Spending, guards: Sequence[Guard]) -> None:
        self.spending = spending
        self.guards = tuple(guards)

    def exhausted(self) -> Stop | None:
        """Whether the budget is used up."""
        limit = self.spending.exhausted()
        return None if limit is None else Stop(limit, f"the budget's {limit} was reached; the next run goes on here")

    async def held(self) -> Stop | None:
        """The first guard that holds, if any."""
        return await first_held(self.guards)

    def notes(self) -> tuple[str, ...]:
        """What guards that let the run go on have to say."""
        return tuple(note for guard in self.guards if (note := guard.note()))


async def first_held(guards: Sequence[Guard]) -> Stop | None:
    """The first of these guards that holds. One that cannot tell holds: no proof, no action."""
    for guard in guards:
        try:
            reason = await within(guard.held())
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
