"""Inconsistencies: what a backend keeps of a job in several structures, where these contradict each other.

No step of ours leaves one. They come from outside: keys that were evicted or deleted by hand, a backup that is older
than the jobs, another program that purges lists, a server that lost its last second.

Promise. A check that repairs nothing changes nothing. What JobFsck names is inconsistent at the moment of a last read
that is one atomic step; a repair is made in that same step, so that what changed meanwhile is left alone. Both are safe
while workers run. No repair loses a job; a job may run again.

Costs. All structures are read once, a bounded page at a time; memory follows the number of running and dead jobs and of
given ids, a few hundred bytes each.

Strays are jobs in a worker's processing list that have no claim: where other programs claim jobs too, or after a fault.
Such a job has no deadline and would never be rescued. A scan finds and adopts it: it then has a claim that is overdue
one heartbeat timeout later, unless its worker sends a heartbeat until then; the rescue checks that again.

Promise. Jobs with a claim, and jobs of a live worker of another program, are left alone. A repeated scan, or two at the
same time, adopt nothing twice. A dry scan changes nothing, not even the cursor.

Costs. One scan reads a bounded number of names in a few round trips; a round of scans finds every stray that existed
during the whole round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

NAMES_MAX = 10  # listed of each kind


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """One kind of inconsistency: what it is, what a repair makes of it, how often it was found and repaired."""

    kind: str
    about: str
    repair: str
    count: int
    repaired: int = 0
    names: tuple[str, ...] = ()


class JobFsck(Protocol):
    """The check of all jobs, and their repair."""

    async def check(
        self, *, repair: bool, heartbeat_timeout: timedelta, seen: Callable[[int], None] = lambda count: None
    ) -> Sequence[Inconsistency]:
        """The kinds that were found, each once, in a fixed order. `seen` is told how much was read. A job that gets a
        claim by the repair is overdue `heartbeat_timeout` later."""
        ...


@dataclass(frozen=True, slots=True)
class StrayScan:
    """The result of one scan. `cursor` continues the round; `ended` says that this scan was the last of its round."""

    holders: int  # workers whose jobs were read
    seen: int  # jobs without a claim, of workers that send no heartbeat or keep claims themselves
    adopted: int  # of those, the ones that now have a claim
    cursor: str
    ended: bool


class Strays(Protocol):
    """The search for strays."""

    async def scan(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        """One scan of about `limit` names. Without a cursor it continues where the last scan of any process stopped;
        with one it continues there. Adopted jobs are overdue `heartbeat_timeout` from now."""
        ...
