"""JobLists: the Redis lists that other programs read jobs from, as they are, by their keys.

Promise. Reading changes nothing and returns bytes as they are. A purge is one atomic step that is refused while there
is a live heartbeat, unless it is forced; it removes jobs and all data stored for them, and nothing else.

Costs. Lengths and a purge scan all keys once, in bounded pages; a peek is one read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ListLengths:
    """How long every list is: the named ones, and one per worker that has claimed jobs."""

    named: Mapping[str, int]  # by `name(key)`
    processing: Mapping[str, int]  # by key
    heartbeats: int
    limiter_ends: timedelta | None = None  # when the counter of the limiter ends


@dataclass(frozen=True, slots=True)
class Purged:
    """What was deleted, or would be: entries by key. `alive`: the live heartbeats that made it refuse."""

    keys: Mapping[str, int]
    alive: tuple[str, ...] = ()


class JobLists(Protocol):
    """The lists of one root."""

    @property
    def names(self) -> Mapping[str, str]:
        """The key of each list that has a name: the priorities, completed, dead_letter."""
        ...

    async def lengths(self, limiter: str) -> ListLengths:
        """All of them; `limiter` is the key of the producers' limiter."""
        ...

    async def peek(self, key: str, count: int) -> Sequence[bytes]:
        """The entries that are claimed next, the next one first; of lists without workers, the oldest."""
        ...

    async def purge(self, limiter: str, *, force: bool, dry: bool) -> Purged:
        """Deletes all jobs of all states."""
        ...
