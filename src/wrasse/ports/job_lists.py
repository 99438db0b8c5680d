"""Job lists: where jobs lie in lists that other programs read, those lists as they are, by their keys.

Promise. Reading changes nothing and shows bytes as they are. A purge is one atomic step that is refused while somebody
gives a sign of life, unless it is forced; it removes jobs and whatever is kept of them, and nothing else.

Costs. Lengths and a purge look through the names of all keys once, in bounded pages; a peek is one read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ListLengths:
    """How long every list is: those with a name of their own, and one per worker that holds something."""

    named: Mapping[str, int]  # by `name(key)`
    processing: Mapping[str, int]  # by key
    heartbeats: int
    limiter_ends: timedelta | None = None  # when the counter of the limiter ends


@dataclass(frozen=True, slots=True)
class Purged:
    """What was deleted, or would be: entries by key. `alive` are the heartbeats for which it was refused."""

    keys: Mapping[str, int]
    alive: tuple[str, ...] = ()


class JobLists(Protocol):
    """The port."""

    @property
    def names(self) -> Mapping[str, str]:
        """The key of each list that has a name: the priorities, completed, dead_letter."""
        ...

    async def lengths(self, limiter: str) -> ListLengths:
        """All of them; `limiter` is the key of the producers' limiter."""
        ...

    async def peek(self, key: str, count: int) -> Sequence[bytes]:
        """What is served next, the next one first; of lists that nobody serves, the oldest."""
        ...

    async def purge(self, limiter: str, *, force: bool, dry: bool) -> Purged:
        """Deletes all jobs of all states."""
        ...
