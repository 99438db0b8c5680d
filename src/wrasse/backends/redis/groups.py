"""Groups on Redis: native groups, so that the origin's programs share them and see how far they are.

What is pending is the server's own list. Beside it stands when each delivery is due again: an entry of a sorted set for
each batch that was handed out together, and one for each single entry that was delivered again, extended or given back.
What waits to be due belongs to a consumer of our own. A consumer is alive until the moment it named when it last asked.

Who waits blocks on the streams themselves, on a connection of its own, and sees what other programs append as soon as
what we do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from wrasse.backends.redis.answers import Answers
from wrasse.backends.redis.connection import Link
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.stream_entries import check_full, deliveries_of
from wrasse.backends.redis.stream_keys import GroupKeys, StreamKeys
from wrasse.backends.redis.wire import Word
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import Refused, UsageError
from wrasse.ports.groups import (
    Answer,
    ConsumerState,
    Delivery,
    StartAt,
    check_answers,
    check_deliver,
    check_group,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, EntryId

_MICROSECOND = timedelta(microseconds=1)
_SHORTEST_WAIT = 0.001
_BLOCK_MAX = 5.0  # seconds; then what other programs left behind is looked for again
_POLL = 0.05  # seconds, where every connection is taken
FOREIGN_SILENCE = timedelta(days=1)  # how long a consumer of another program is idle before it counts as silent


class RedisGroups:
    """All groups of one Redis."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._keys = StreamKeys(link.options)

    async def join(self, subject: str, group: str, start: StartAt) -> bool:
        check_group(subject, group)
        names = [self._keys.registry, self._keys.of(subject).log]
        return bool(await self._link.run(load("group_join"), names, [subject, group, _begin(start)]))

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = timedelta(0),
    ) -> Sequence[Delivery]:
        limit = check_deliver(limit, ack_timeout)
        asking = _Asking(tuple(dict.fromkeys(subjects)), group, consumer, limit, ack_timeout, self._keys)
        began, waited = self._clock.monotonic(), 0.0
        while asking.subjects:
            answer = await self._ask(asking)
            left = wait.total_seconds() - max(waited, self._clock.monotonic() - began)
            if answer[2] or not limit or left <= 0:
                return asking.read(answer)
            waited += await self._stirred(asking, answer, left)
        return ()

    async def extend(
        self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta
    ) -> Sequence[bool]:
        if not deliveries:
            return ()
        places = _Places(self._keys)
        args: list[Word] = [consumer, ack_timeout // _MICROSECOND]
        for each in deliveries:
            base = places.of(each.entry.subject, each.group, lambda keys: (keys.log, keys.due, keys.consumers))
            args += (base, each.group, str(each.entry.id), each.number)
        answer = await self._link.run(load("group_extend"), places.names, args)
        return tuple(letter == ord("1") for letter in answer)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        check_answers(answers)
        if not answers:
            return ()
        sent = Answers(answers, self._keys)
        answer = await self._link.run(load("group_answer"), sent.names, sent.args)
        check_full(answer)
        return tuple(Outcome.DONE if letter == ord("d") else Outcome.LOST for letter in answer)

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        keys = self._keys.group(subject, group)
        names = [keys.log, keys.due, self._keys.of(subject).facts]
        answer = await self._link.run(load("group_mark"), names, [group, str(upto)])
        if answer == b"beyond":
            raise Refused(
                f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                do="read the stream again: entries still to come would count as acked",
            )
        return Outcome(answer.decode())

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        keys = self._keys.group(subject, group)
        now, *words = await self._link.run(load("group_consumers"), [keys.log, keys.consumers], [group])
        found = [
            _consumer(subject, group, now, *words[at : at + 4]) for at in range(0, len(words), 4)
        ]
        return tuple(sorted(found, key=lambda state: state.consumer))

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        keys = self._keys.group(subject, group)
        names = [keys.log, keys.due, keys.consumers, keys.wake]
        args: list[Word] = [group, consumer, FOREIGN_SILENCE // timedelta(milliseconds=1)]
        while (answer := await self._link.run(load("group_retire"), names, args)) == b"more":
            pass  # what it holds goes over in pieces; it is silent, so there are no more of them to come
        return Outcome(answer.decode())

    async def _ask(self, asking: _Asking) -> list[Any]:
        asked = asyncio.ensure_future(self._link.run(load("group_deliver"), asking.names, asking.args))
        try:
            answer = await asyncio.shield(asked)
        except asyncio.CancelledError:
            await self._take_back(asking, asked)
            raise
        if answer[0] == b"none":
            raise UsageError(
                f"there is no group {asking.group!r} on {asking.subjects[answer[1] - 1]!r}",
                do="join it before asking for deliveries",
            )
        return list(answer)

    async def _take_back(self, asking: _Asking, asked: asyncio.Future[list[Any]]) -> None:
        """Whoever asked is gone, and what came meanwhile is nobody's."""
        answer = await asked
        if answer[0] == b"none" or not answer[2]:
            return
        places = _Places(self._keys)
        args: list[Word] = [asking.group, asking.consumer]
        for each in asking.read(answer):
            base = places.of(each.entry.subject, each.group, lambda keys: (keys.log, keys.due, keys.wake))
            args += (base, str(each.entry.id), each.number)
        await self._link.run(load("group_return"), places.names, args)

    async def _stirred(self, asking: _Asking, answer: Sequence[Any], left: float) -> float:
        """Waits until there may be something: an entry, somebody's nak, or the time of what is due. Gives the seconds
        for which nothing happened."""
        now, due, _, positions = answer
        if due >= 0:
            left = min(left, (due - now) / 1_000_000)
        seconds = min(max(left, _SHORTEST_WAIT), _BLOCK_MAX)
        if not self._link.has_seat:
            await asyncio.sleep(min(seconds, _POLL))
            return min(seconds, _POLL)
        block = max(int(seconds * 1_000), 1)
        heard = await self._link.block(
            "XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *asking.logs, *positions, timeout=seconds
        )
        return seconds if heard is None else 0.0


class _Asking:
    """One question for deliveries."""

    __slots__ = ("_until", "args", "consumer", "group", "logs", "names", "subjects")

    def __init__(
        self,
        subjects: tuple[str, ...],
        group: str,
        consumer: str,
        limit: int,
        ack_timeout: timedelta,
        keys: StreamKeys,
    ) -> None:
        self.subjects, self.group, self.consumer = subjects, group, consumer
        self._until = ack_timeout // _MICROSECOND
        self.names: list[str] = []
        self.logs: list[str] = []  # what a wait blocks on: of each stream itself, and what wakes the group
        for subject in subjects:
            of = keys.group(subject, group)
            self.names += (of.log, of.held, of.due, of.consumers, of.wake)
            self.logs += (of.log, of.wake)
        self.args: list[Word] = [group, consumer, limit, self._until]

    def read(self, answer: Sequence[Any]) -> list[Delivery]:
        """The deliveries in an answer."""
        now, _, count, words = answer
        if not count:
            return []
        return deliveries_of(words, self.subjects, self.group, self.consumer, from_micros(now + self._until))


class _Places:
    """KEYS of a script that names several groups, each once."""

    __slots__ = ("_bases", "_keys", "names")

    def __init__(self, keys: StreamKeys) -> None:
        self._keys = keys
        self._bases: dict[tuple[str, str], int] = {}
        self.names: list[str] = []

    def of(self, subject: str, group: str, chosen: Callable[[GroupKeys], tuple[str, ...]]) -> int:
        """The number of the first key of this group."""
        base = self._bases.get((subject, group))
        if base is None:
            base = self._bases[subject, group] = len(self.names) + 1
            self.names += chosen(self._keys.group(subject, group))
        return base


def _begin(start: StartAt) -> str:
    if start.first:
        return str(START)
    if start.at is not None:
        return str(EntryId(max(to_micros(start.at) // 1_000, 0), 0).previous)
    return "$" if start.after is None else str(start.after)


def _consumer(subject: str, group: str, now: int, name: bytes, pending: int, idle: int, row: bytes) -> ConsumerState:
    if row:
        seen, until = map(int, row.split())
    else:
        seen = now - idle * 1_000
        until = seen + FOREIGN_SILENCE // _MICROSECOND
    known = name.decode("utf-8", "backslashreplace")
    return ConsumerState(subject, group, known, pending, from_micros(seen), from_micros(until))
