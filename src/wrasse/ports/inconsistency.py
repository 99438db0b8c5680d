"""Damage: what a backend keeps of a job in several structures, where these contradict each other.

No step of ours leaves it. It comes from outside: keys that were evicted or deleted by hand, a backup that is older than
the jobs, another program that purges lists, a server that lost its last second.

Promise. A check that repairs nothing changes nothing. What it names is damage at the moment of a last look that is one
atomic step; a repair is made in that same step, so that what changed meanwhile is left alone. Both are safe while
workers run. No repair loses a job; a job may run again.

Costs. All structures are read once, a bounded page at a time; memory follows the number of held and dead jobs and of
given ids, a few hundred bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

NAMES_MAX = 10  # told of each kind


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """One kind of damage: what it is, what a repair makes of it, how often it was found and repaired."""

    kind: str
    about: str
    repair: str
    count: int
    repaired: int = 0
    names: tuple[str, ...] = ()


class JobFsck(Protocol):
    """The port."""

    async def check(
        self, *, repair: bool, heartbeat_timeout: timedelta, seen: Callable[[int], None] = lambda count: None
    ) -> Sequence[Inconsistency]:
        """The kinds of damage that were found, each once, in a fixed order. `seen` is told how much was looked at. A
        job that gets a hold by the repair is overdue `heartbeat_timeout` later."""
        ...
