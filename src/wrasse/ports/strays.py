"""Strays: jobs that a worker holds and that no claim names.

Where other programs claim jobs too, or where a fault left one behind, there is nothing whose deadline could pass: such
a job would be held for ever. A look finds it and adopts it: from then on it is a running job like any other, overdue
one heartbeat timeout later if its worker gives no sign of life until then. That second look is the rescue itself, which
asks again.

Promise. What has a claim, and what a live worker of another program holds, is left alone. A look that is repeated, or
made by two at once, adopts nothing twice. A dry look changes nothing, not even where the next one begins.

Costs. One look reads a bounded part of what there is and answers within a few round trips; a round of looks sees every
stray that was there all the while.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StrayScan:
    """What one look saw. `cursor` continues the round; `ended` says that this look was the last of one."""

    holders: int  # workers whose jobs were looked at
    seen: int  # jobs without a claim, of workers that give no sign of life or keep holds themselves
    adopted: int  # of those, the ones that have a claim from now on
    cursor: str
    ended: bool


class Strays(Protocol):
    """The port."""

    async def look(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        """One look, at about `limit` names. Without a cursor it goes on where the last look of anybody stopped; with
        one it goes on there. What is adopted is overdue `heartbeat_timeout` from now."""
        ...
