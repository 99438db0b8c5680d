"""Server ages: what a server removes by age on its own, also while no sweep runs, and without asking any group.

Promise. Only a stream that wrasse made gets an age, only while no group and no durable consumer of another program
reads it, and none but ours is ever changed. Whoever makes a group has the age ended before the group counts. A backend
may have this; elsewhere sweeps alone remove what is old.

Costs. A few round trips per change; nothing while nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from wrasse.ports.outcome import Outcome


@dataclass(frozen=True, slots=True)
class ServerAge:
    """What the server of one stream does by itself. `age` is None where it keeps everything. `ours`: wrasse made the
    stream, and whatever age it has was set by wrasse. `read`: another program has a durable consumer there."""

    age: timedelta | None = None
    ours: bool = False
    read: bool = False
    least: timedelta = timedelta(0)  # a shorter age the server does not take


class ServerAges(Protocol):
    """The port. Streams that have it tell the age in `StreamState.server_age`."""

    async def keep_for(self, subject: str, age: timedelta | None) -> Outcome:
        """Has the server remove what is older than this by itself, None: nothing any more. `conflict` if the stream is
        not ours, if somebody else set its age, or if somebody reads it in a group, also one that came meanwhile."""
        ...
