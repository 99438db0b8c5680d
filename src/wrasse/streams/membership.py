"""Which streams a consumer reads: its subject, or all that match its pattern, including later ones.

A stream that appears later is read from its first entry, wherever the group was to begin on the existing streams.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.ids import Ids
from wrasse.ports.groups import Groups, StartAt
from wrasse.ports.page import pages
from wrasse.ports.rules.subjects import is_wild
from wrasse.ports.streams import Streams

_PAGE = 1_000
STREAMS_MAX = 10_000
_LATEST = StartAt()


def consumer_name(clock: Clock) -> str:
    """A unique name: the host's name, and an id."""
    return f"{socket.gethostname()}-{Ids(clock).new()}"


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How a consumer joins a group."""

    start: StartAt = _LATEST  # where a new group begins
    discover: timedelta = timedelta(seconds=1)  # how soon a new stream that matches is found
    ack_timeout: timedelta | None = None
    streams_max: int = STREAMS_MAX


class Membership:
    """The membership of one consumer in one group, on each of its streams."""

    def __init__(
        self, streams: Streams, groups: Groups, clock: Clock, pattern: str, group: str, options: JoinOptions
    ) -> None:
        self.subjects: tuple[str, ...] = ()
        self._streams, self._groups, self._clock = streams, groups, clock
        self._pattern, self._group, self._options = pattern, group, options
        self._refreshed_at: float | None = None
        self._wild = is_wild(pattern)

    async def refresh(self) -> None:
        """Joins the group on new streams, if a refresh is due."""
        now = self._clock.monotonic()
        first = self._refreshed_at is None
        if not first and (not self._wild or now - (self._refreshed_at or 0.0) < self._options.discover.total_seconds()):
            return
        found = await self._matching() if self._wild else (self._pattern,)
        for subject in sorted(set(found) - set(self.subjects)):
            start = self._options.start if first else StartAt(first=True)
            await self._groups.join(subject, self._group, start, ack_timeout=self._options.ack_timeout)
        self.subjects = found
        self._refreshed_at = now

    async def leave(self, consumer: str) -> None:
        """Deregisters the consumer from the group; its unanswered entries become due for others at once."""
        if self.subjects:
            await self._groups.deliver(self.subjects, self._group, consumer, 0, ack_timeout=timedelta(0))
        for subject in self.subjects:
            await self._groups.retire(subject, self._group, consumer)

    async def _matching(self) -> tuple[str, ...]:
        found: list[str] = []
        async for page in pages(lambda after: self._streams.subjects(self._pattern, after, _PAGE)):
            found += page.items
            if len(found) > self._options.streams_max:
                break
        else:
            return tuple(found)
        # An error, not a truncated list: streams that are silently not read would stay stuck.
        raise UsageError(
            f"more than {self._options.streams_max} streams match {self._pattern!r}",
            do="use several consumers with narrower patterns",
        )
