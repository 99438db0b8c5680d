"""Groups on Redis: native groups, so that the seed's programs share them and see their progress.

Pending entries are in the server's own list. Their due times are stored separately: an entry of a sorted set for each
batch that was delivered together, and one for each single entry that was delivered again, extended or nacked. Entries
that wait to be due belong to a consumer of our own. A consumer is alive until the moment it named in its last request.

A consumer that waits blocks on the streams themselves, on a connection of its own, and sees entries of other programs
as soon as ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.deliveries import DeliveryAnswer, DeliveryReader, DeliveryRequest, ScriptKeys
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.stream_entries import draft_words
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import Refused
from wrasse.ports.groups import (
    Ack,
    Answer,
    ConsumerState,
    DeadLetter,
    Delivery,
    Nak,
    StartAt,
    check_answers,
    check_deliver,
    check_group,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, EntryId

_MICROSECOND = timedelta(microseconds=1)
_SHORTEST_WAIT = 0.001
_BLOCK_MAX = 5.0  # seconds; then entries that other programs left pending are searched for again
_POLL = 0.05  # seconds, when every connection is in use
FOREIGN_IDLE_MAX = timedelta(days=1)  # how long a consumer of another program is idle before it counts as dead


@reads_replies
class RedisGroups:
    """All groups of one Redis."""

    def __init__(self, client: RedisClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._keys = StreamKeys(client.options)
        self._delivery_reader = DeliveryReader(client, self._keys)

    async def join(
        self, subject: str, group: str, start: StartAt, *, ack_timeout: timedelta | None = None, cursor: bool = False
    ) -> bool:
        check_group(subject, group)
        names = [self._keys.registry, self._keys.of(subject).log]
        return bool(await self._client.run(load("group_join"), names, [subject, group, _begin(start)]))

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
        request = DeliveryRequest(tuple(dict.fromkeys(subjects)), group, consumer, limit, ack_timeout, self._keys)
        began, waited = self._clock.monotonic(), 0.0
        while request.subjects:
            given = await self._ask(request)
            left = wait.total_seconds() - max(waited, self._clock.monotonic() - began)
            if given.deliveries or not limit or left <= 0:
                return given.deliveries
            waited += await self._wait_for_change(request, given, left)
        return ()

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        if not deliveries:
            return ()
        places = ScriptKeys(self._keys)
        args: list[Word] = [consumer, ack_timeout // _MICROSECOND]
        for each in deliveries:
            base = places.of(each.entry.subject, each.group, lambda keys: (keys.log, keys.due, keys.consumers))
            args += (base, each.group, str(each.entry.id), each.number)
        answer = await self._client.run(load("group_extend"), places.names, args)
        return tuple(dead_letter == ord("1") for dead_letter in answer)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        check_answers(answers)
        if not answers:
            return ()
        answer = await self._client.run(load("group_answer"), *_answer_words(answers, self._keys))
        if answer.count(b"d") == len(answers):
            return (Outcome.DONE,) * len(answers)
        return tuple(Outcome.DONE if dead_letter == ord("d") else Outcome.CONFLICT for dead_letter in answer)

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        keys = self._keys.group(subject, group)
        names = [keys.log, keys.due, self._keys.of(subject).facts]
        answer = await self._client.run(load("group_mark"), names, [group, str(upto)])
        if answer == b"beyond":
            raise Refused(
                f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                do="read the stream again: a mark there would count future entries as acked",
            )
        return Outcome(answer.decode())

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        keys = self._keys.group(subject, group)
        now, *words = await self._client.run(load("group_consumers"), [keys.log, keys.consumers], [group])
        found = [_consumer(subject, group, now, *words[at : at + 4]) for at in range(0, len(words), 4)]
        return tuple(sorted(found, key=lambda state: state.consumer))

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        keys = self._keys.group(subject, group)
        names = [keys.log, keys.due, keys.consumers, keys.wake, self._keys.of(subject).facts]
        args: list[Word] = [group, consumer, FOREIGN_IDLE_MAX // timedelta(milliseconds=1)]
        page_loop, pieces = PageLoop(self._client.options.where, "the removal of a consumer"), 0
        while (answer := await self._client.run(load("group_retire"), names, args)) == b"more":
            pieces += 1  # its entries are transferred in pieces; it is dead, so no more are added
            page_loop.turn(pieces)
        return Outcome(answer.decode())

    async def _ask(self, request: DeliveryRequest) -> DeliveryAnswer:
        asked = asyncio.ensure_future(self._delivery_reader.ask(request))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            # The caller is gone, and deliveries that arrive now have no owner.
            given = await asked
            await self._delivery_reader.give_back(given.deliveries)
            raise

    async def _wait_for_change(self, request: DeliveryRequest, given: DeliveryAnswer, left: float) -> float:
        """Waits until there may be something: an entry, a nak, or the time of what is due. Returns the seconds without
        any."""
        if given.due >= 0:
            left = min(left, (given.due - given.now) / 1_000_000)
        seconds = min(max(left, _SHORTEST_WAIT), _BLOCK_MAX)
        if not self._client.has_free_connection:
            await asyncio.sleep(min(seconds, _POLL))
            return min(seconds, _POLL)
        block = max(int(seconds * 1_000), 1)
        heard = await self._client.block(
            "XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *request.logs, *given.positions, timeout=seconds
        )
        return seconds if heard is None else 0.0


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
        until = seen + FOREIGN_IDLE_MAX // _MICROSECOND
    known = name.decode("utf-8", "backslashreplace")
    return ConsumerState(subject, group, known, pending, from_micros(seen), from_micros(until), foreign=not row)


def _answer_words(answers: Sequence[Answer], keys: StreamKeys) -> tuple[list[str], list[Word]]:
    """KEYS and ARGV of the script for these answers: consecutive acks of one group are sent together."""
    places = ScriptKeys(keys, keys.registry)

    def base_of(subject: str, group: str) -> int:
        return places.of(subject, group, lambda of: (of.log, of.due, of.wake, keys.of(subject).facts))

    first, kinds = answers[0], set(map(type, answers))
    same = len({each.subject for each in answers}) == len({each.group for each in answers}) == 1
    if same and kinds == {Ack}:  # the common case
        base = base_of(first.subject, first.group)
        ids = [f"{each.id.ms}-{each.id.seq}" for each in answers]
        return places.names, [0, "ack", base, first.group, len(ids), *ids]
    dead_letters: dict[str, int] = {}
    for each in answers:
        if isinstance(each, DeadLetter) and each.draft.subject not in dead_letters:
            dead_letters[each.draft.subject] = len(places.names) + 1
            to = keys.of(each.draft.subject)
            places.names += (to.log, to.facts, to.known, to.known_expiry)
    words: list[Word] = [len(dead_letters), *(word for pair in dead_letters.items() for word in pair)]
    for (kind, subject, group), run in groupby(answers, key=lambda each: (type(each), each.subject, each.group)):
        base = base_of(subject, group)
        if kind is Ack:
            ids = [f"{each.id.ms}-{each.id.seq}" for each in run]
            words += ("ack", base, group, len(ids), *ids)
            continue
        for each in run:
            if isinstance(each, Nak):
                words += ("nak", base, group, str(each.id), round(each.delay.total_seconds() * 1_000_000))
            else:
                assert isinstance(each, DeadLetter), "there are three kinds of answers"
                words += ("dead", base, group, str(each.id), dead_letters[each.draft.subject], *draft_words(each.draft))
    return places.names, words
