"""Which streams a consumer reads: its subject, or all that match its pattern, including later ones.

A stream that appears later is read from its first entry, wherever the group was to begin on the existing streams.
"""

from __future__ import annotations

import socket
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


def consumer_name(clock: Clock) -> str:
    """A unique name: the host's name, and an id."""
    return f"{socket.gethostname()}-{Ids(clock).new()}"


class Membership:
    """The membership of one consumer in one group, on each of its streams."""

    def __init__(
        self,
        streams: Streams,
        groups: Groups,
        clock: Clock,
        pattern: str,
        group: str,
        start: StartAt,
        every: timedelta,
        most: int = STREAMS_MAX,
        ack_timeout: timedelta | None = None,
    ) -> None:
        self.subjects: tuple[str, ...] = ()
        self._streams = streams
        self._groups = groups
        self._clock = clock
        self._pattern = pattern
        self._group = group
        self._start = start
        self._every = every.total_seconds()
        self._most = most
        self._ack_timeout = ack_timeout
        self._refreshed_at: float | None = None
        self._wild = is_wild(pattern)

    async def refresh(self) -> None:
        """Joins the group on new streams, if a refresh is due."""
        now = self._clock.monotonic()
        first = self._refreshed_at is None
        if not first and (not self._wild or now - (self._refreshed_at or 0.0) < self._every):
            return
        found = await self._matching() if self._wild else (self._pattern,)
        for subject in sorted(set(found) - set(self.subjects)):
            start = self._start if first else StartAt(first=True)
            await self._groups.join(subject, self._group, start, ack_timeout=self._ack_timeout)
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
            if len(found) > self._most:
                break
        else:
            return tuple(found)
        # An error, not a truncated list: streams that are silently not read would stay stuck.
        raise UsageError(
            f"more than {self._most} streams match {self._pattern!r}", do="use several consumers with narrower patterns"
        )
