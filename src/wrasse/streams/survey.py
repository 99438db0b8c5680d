"""A survey of streams for backends that have none of their own: one stream at a time."""

from __future__ import annotations

from wrasse.ports.page import Page
from wrasse.ports.streams import Streams, StreamState


class PlainSurvey:
    """Queries each stream separately."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See the port."""
        names = await self._streams.subjects(pattern, after, limit)
        states = [(name, await self._streams.info(name)) for name in names]
        found = [state for _, state in states if state is not None]
        if not found and names.more:
            return await self.survey(pattern, names.cursor, limit)
        items = tuple(found)
        # The last cursor is that of the last name, so that a deleted stream is not queried again.
        cursors = [state.subject for state in items]
        if names.more and items:
            cursors[-1] = names.cursors[-1]
        return Page(items, tuple(cursors), names.at, names.more)
