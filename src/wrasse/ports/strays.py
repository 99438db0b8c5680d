"""Strays: jobs in a worker's processing list that have no claim.

Where other programs claim jobs too, or after a fault, a job can be in a processing list without a claim, so that it has
no deadline and would never be rescued. A scan finds such a job and adopts it: it then has a claim that is overdue one
heartbeat timeout later, unless its worker sends a heartbeat until then; the rescue checks that again.

Promise. Jobs with a claim, and jobs of a live worker of another program, are left alone. A repeated scan, or two at the
same time, adopt nothing twice. A dry scan changes nothing, not even the cursor.

Costs. One scan reads a bounded number of names in a few round trips; a round of scans finds every stray that existed
during the whole round.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StrayScan:
    """The result of one scan. `cursor` continues the round; `ended` says that this scan was the last of its round."""

    holders: int  # workers whose jobs were read
    seen: int  # jobs without a claim, of workers that send no heartbeat or keep claims themselves
    adopted: int  # of those, the ones that now have a claim
    cursor: str
    ended: bool


class Strays(Protocol):
    """The port."""

    async def look(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        """One scan of about `limit` names. Without a cursor it continues where the last scan of any process stopped;
        with one it continues there. Adopted jobs are overdue `heartbeat_timeout` from now."""
        ...
