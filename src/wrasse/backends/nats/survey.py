"""A survey of streams on NATS: their names, and then all of a page asked about at once, some hundred at a time."""

from __future__ import annotations

import asyncio

from wrasse.backends.nats.streams import NatsStreams
from wrasse.ports.page import Page
from wrasse.ports.streams import StreamState

_AT_ONCE = 250  # so that their answers find room


class NatsSurvey:
    """The port."""

    def __init__(self, streams: NatsStreams) -> None:
        self._streams = streams

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See the port."""
        names = await self._streams.subjects(pattern, after, limit)
        states: list[StreamState] = []
        for begin in range(0, len(names.items), _AT_ONCE):
            asked = (self._streams.info(name) for name in names.items[begin : begin + _AT_ONCE])
            states += [state for state in await asyncio.gather(*asked) if state is not None]
        if not states and names.more:
            return await self.survey(pattern, names.items[-1], limit)
        cursors = [state.subject for state in states]
        if names.more:
            cursors[-1] = names.items[-1]  # what vanished meanwhile is not asked for again
        return Page(tuple(states), tuple(cursors), names.at, names.more)
