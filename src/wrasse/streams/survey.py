"""A survey of streams where the backend has none of its own: one after another."""

from __future__ import annotations

from wrasse.ports.page import Page
from wrasse.ports.streams import Streams, StreamState


class PlainSurvey:
    """Asks for each stream by itself."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See the port."""
        names = await self._streams.subjects(pattern, after, limit)
        asked = [(name, await self._streams.info(name)) for name in names]
        found = [state for _, state in asked if state is not None]
        if not found and names.more:
            return await self.survey(pattern, names.cursor, limit)
        shown = tuple(found)
        # The last cursor is that of the last name, so that a stream which vanished is not asked for again.
        cursors = [state.subject for state in shown]
        if names.more and shown:
            cursors[-1] = names.cursors[-1]
        return Page(shown, tuple(cursors), names.at, names.more)
