"""A survey of streams on Redis: one question for their names, and one script for some hundred of them at a time."""

from __future__ import annotations

from collections.abc import Sequence

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.discovery import Discovery
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.backends.redis.stream_states import read_state
from wrasse.backends.rounds import Rounds
from wrasse.clock import Clock, from_micros
from wrasse.ports.page import Page
from wrasse.ports.streams import StreamState, check_page
from wrasse.ports.subjects import check_pattern, fixed_part, matches

_AT_ONCE = 250  # streams of one script: a few milliseconds of the server
_NAMES = 2_000


@reads_replies
class RedisSurvey:
    """The port."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._keys = StreamKeys(link.options)
        self._discovery = Discovery(link, self._keys, clock)

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See the port. Streams of other programs are looked for first, as `Streams.subjects` does."""
        check_pattern(pattern)
        check_page(limit)
        await self._discovery.look()
        names, more = await self._names(pattern, after, limit)
        states: list[StreamState] = []
        at = 0
        for begin in range(0, len(names), _AT_ONCE):
            at, found = await self._states(names[begin : begin + _AT_ONCE])
            states += found
        if not at:
            (seconds, micros) = await self._link.ask("TIME")
            at = self._link.told or int(seconds) * 1_000_000 + int(micros)
        cursors = [state.subject for state in states]
        if not states and more:
            return await self.survey(pattern, names[-1], limit)
        if more:
            cursors[-1] = names[-1]  # what vanished meanwhile is not asked for again
        return Page(tuple(states), tuple(cursors), from_micros(at), more)

    async def _names(self, pattern: str, after: str | None, limit: int) -> tuple[list[str], bool]:
        """Registered subjects that match, and whether there are more."""
        found: list[str] = []
        start, at = fixed_part(pattern), after
        rounds = Rounds(self._link.options.where, f"ZRANGEBYLEX {self._keys.registry}")
        while True:
            rounds.turn(at)
            low = f"({at}" if at is not None and at >= start else f"[{start}" if start else "-"
            asked = ("ZRANGEBYLEX", self._keys.registry, low, "+", "LIMIT", 0, _NAMES)
            names = [name.decode() for name in await self._link.ask(*asked)]
            found += [name for name in names if matches(pattern, name)]
            ended = len(names) < _NAMES or not names[-1].startswith(start)
            if ended or len(found) > limit:
                return found[:limit], len(found) > limit
            at = names[-1]

    async def _states(self, names: Sequence[str]) -> tuple[int, list[StreamState]]:
        keys = [key for name in names for key in (self._keys.of(name).log, self._keys.of(name).facts)]
        now, *words = await self._link.run(load("stream_survey"), keys)
        reply = iter(words)
        return now, [read_state(name, reply, now) for name in names if next(reply)]
