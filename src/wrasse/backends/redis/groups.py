"""Groups on Redis: native groups, so that the seed's programs share them and see their progress.

Pending entries are in the server's own list. Their due times are stored separately: an entry of a sorted set for each
batch that was delivered together, and one for each single entry that was delivered again, extended or nacked. Entries
that wait to be due belong to a consumer of our own. A consumer is alive until the moment it named in its last request.
A consumer that waits blocks on the streams themselves, on a connection of its own, and sees entries of other programs
as soon as ours.

`DeliveryReader` requests deliveries in one atomic step. One script does all of it. For a single stream with messages of
a known size the new entries are read by the server's own command between two small scripts, in the same transaction:
that costs the server a third. It may return more than was wanted if something was due as well; the excess is reverted
as if it had never been delivered. Large pages are requested one after the other: a server computes the next answer
before it has sent the rest of a large one, so with two requests at once it would send both late, and then be idle while
both are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from typing import Any

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import ELEMENT_BYTES, RedisRefusal, Word
from wrasse.backends.redis.failure import ReplyTooLarge, ours
from wrasse.backends.redis.keys import GroupKeys, StreamKeys
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.streams import deliveries_of, draft_words, new_deliveries
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
    no_group,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Entry, EntryId

_ANSWER_BYTES = 32 << 20  # the intended maximum of one answer
_SENT_AT_ONCE = 64 << 10  # bytes that a server writes to one connection before it turns to the next command
_TURN_SECONDS_MAX = 0.02
_SIZES_MAX = 10_000
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
        return bool(await self._client.run(load("groups.join"), names, [subject, group, _begin(start)]))

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
        answer = await self._client.run(load("groups.extend"), places.names, args)
        return tuple(letter == ord("1") for letter in answer)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        check_answers(answers)
        if not answers:
            return ()
        answer = await self._client.run(load("group_answer"), *_answer_words(answers, self._keys))
        if answer.count(b"d") == len(answers):
            return (Outcome.DONE,) * len(answers)
        return tuple(Outcome.DONE if letter == ord("d") else Outcome.CONFLICT for letter in answer)

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        keys = self._keys.group(subject, group)
        names = [keys.log, keys.due, self._keys.of(subject).facts]
        answer = await self._client.run(load("groups.mark"), names, [group, str(upto)])
        if answer == b"beyond":
            raise Refused(
                f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                do="read the stream again: a mark there would count future entries as acked",
            )
        return Outcome(answer.decode())

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        keys = self._keys.group(subject, group)
        now, *words = await self._client.run(load("groups.consumers"), [keys.log, keys.consumers], [group])
        found = [_consumer(subject, group, now, *words[at : at + 4]) for at in range(0, len(words), 4)]
        return tuple(sorted(found, key=lambda state: state.consumer))

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        keys = self._keys.group(subject, group)
        names = [keys.log, keys.due, keys.consumers, keys.wake, self._keys.of(subject).facts]
        args: list[Word] = [group, consumer, FOREIGN_IDLE_MAX // timedelta(milliseconds=1)]
        page_loop, pieces = PageLoop(self._client.options.where, "the removal of a consumer"), 0
        while (answer := await self._client.run(load("groups.retire"), names, args)) == b"more":
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
            await self._delivery_reader.revert(given.deliveries)
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


class DeliveryRequest:
    """One request for deliveries."""

    __slots__ = ("args", "consumer", "group", "limit", "logs", "names", "subjects", "until")

    def __init__(
        self, subjects: tuple[str, ...], group: str, consumer: str, limit: int, ack_timeout: timedelta, keys: StreamKeys
    ) -> None:
        self.subjects, self.group, self.consumer, self.limit = subjects, group, consumer, limit
        self.until = ack_timeout // _MICROSECOND
        self.names: list[str] = []
        self.logs: list[str] = []  # the keys a wait blocks on: each stream, and the wake list of the group
        for subject in subjects:
            of = keys.group(subject, group)
            self.names += (of.log, of.held, of.due, of.consumers, of.wake)
            self.logs += (of.log, of.wake)
        self.names += [keys.of(subject).facts for subject in subjects]
        self.args: list[Word] = [group, consumer, limit, self.until]


@dataclass(frozen=True, slots=True)
class DeliveryAnswer:
    """The answer: deliveries, or when the next is due (-1: never) and the positions to wait from."""

    now: int
    deliveries: list[Delivery]
    due: int = -1
    positions: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of the last page of a stream, and its longest message."""

    page: int
    longest: int


class ScriptKeys:
    """KEYS of a script that names several groups, each once."""

    __slots__ = ("_bases", "_keys", "names")

    def __init__(self, keys: StreamKeys, *first: str) -> None:
        self._keys = keys
        self._bases: dict[tuple[str, str], int] = {}
        self.names: list[str] = [*first]

    def of(self, subject: str, group: str, chosen: Callable[[GroupKeys], tuple[str, ...]]) -> int:
        """The number of the first key of this group."""
        base = self._bases.get((subject, group))
        if base is None:
            base = self._bases[subject, group] = len(self.names) + 1
            self.names += chosen(self._keys.group(subject, group))
        return base


class DeliveryReader:
    """Delivers entries of one Redis."""

    __slots__ = ("_client", "_keys", "_loaded_on", "_most", "_page_in_transit", "_sizes")

    def __init__(self, client: RedisClient, keys: StreamKeys) -> None:
        self._client = client
        self._keys = keys
        # Bytes of a page, and of the entry that ends it: other programs append longer ones than a publish accepts.
        page = min(_ANSWER_BYTES, client.options.reply_bytes_max // 3)
        self._most = page, client.options.reply_bytes_max - page
        self._sizes: dict[str, _Size] = {}  # of streams that are read alone
        self._loaded_on = 0  # the connection whose server has the scripts loaded
        self._page_in_transit = asyncio.Lock()

    async def ask(self, request: DeliveryRequest) -> DeliveryAnswer:
        """What is due and what is new, up to the limit."""
        native = len(request.subjects) == 1 and request.limit and request.subjects[0] in self._sizes
        given = await self._natively(request) if native else None
        if given is None:
            given = await self._by_script(request)
        self._note_size(request, given.deliveries)
        return given

    async def revert(self, deliveries: Sequence[Delivery]) -> None:
        """Reverts these deliveries as if they had not happened."""
        if not deliveries:
            return
        places = ScriptKeys(self._keys)
        args: list[Word] = [deliveries[0].group, deliveries[0].consumer]
        for each in deliveries:
            base = places.of(each.entry.subject, each.group, lambda keys: (keys.log, keys.due, keys.wake))
            args += (base, str(each.entry.id), each.number)
        await self._client.run(load("deliveries.revert"), places.names, args)

    async def _by_script(self, request: DeliveryRequest) -> DeliveryAnswer:
        answer = await self._client.run(load("deliveries.deliver"), request.names, [*request.args, "all", *self._most])
        _check_group(answer, request)
        now, due, count, words = answer
        return DeliveryAnswer(now, _read(words, request, now)) if count else DeliveryAnswer(now, [], due, words)

    async def _natively(self, request: DeliveryRequest) -> DeliveryAnswer | None:
        """None if the server did not know the scripts; nothing has been delivered then."""
        (subject,), client = request.subjects, self._client
        due, noted = load("deliveries.deliver"), load("deliveries.note")
        if self._loaded_on != client.connections:
            # In time: a page that was delivered without being noted must be reverted, entry by entry.
            await self._load_scripts()
        head: list[Word] = [len(request.names), *request.names, client.told]
        size = self._sizes[subject]
        most = min(request.limit, self._most[0] // size.longest + 1)
        steps: Sequence[Sequence[Word]] = (
            ("EVALSHA", due.sha, *head, *request.args, "due", *self._most),
            ("XREADGROUP", "GROUP", request.group, request.consumer, "COUNT", most, "STREAMS", request.names[0], ">"),
            ("EVALSHA", noted.sha, *head, request.group, request.consumer, request.until),
        )
        try:
            first, read, last = await (self._in_turn(steps) if size.page > _SENT_AT_ONCE else client.together(steps))
        except ReplyTooLarge:
            # Delivered, and due again after their time; the script that delivers them then counts their bytes.
            self._sizes.pop(subject, None)
            raise
        if not isinstance(first, RedisRefusal):
            _check_group(first, request)
        now, _, _, words = (0, -1, 0, ()) if isinstance(first, RedisRefusal) else first
        found = read[0][1] if isinstance(read, list) else ()
        until = from_micros(now + request.until)
        given = _read(words, request, now) + new_deliveries(found, subject, request.group, request.consumer, until)
        refusals = [each for each in (first, read, last) if isinstance(each, RedisRefusal)]
        await self.revert(given if refusals else given[request.limit :])
        if any(refusal.code == "NOSCRIPT" for refusal in refusals):
            await self._load_scripts()
            return None
        for refusal in refusals:
            raise ours(refusal, client.options.where, request.names) from refusal
        return DeliveryAnswer(now, given[: request.limit], last[0], last[1:])

    async def _load_scripts(self) -> None:
        connection = self._client.connections
        await self._client.ask_many(
            [("SCRIPT", "LOAD", load(name).text) for name in ("deliveries.deliver", "deliveries.note")]
        )
        self._loaded_on = connection

    async def _in_turn(self, steps: Sequence[Sequence[Word]]) -> list[Any]:
        mine = await self._turn()
        try:
            answers = await self._client.together(steps)
        finally:
            if mine:
                self._page_in_transit.release()
        # The next request is sent before this page is parsed, also one that is made at this moment, as a task of its
        # own: so the server works meanwhile.
        for _ in range(2):
            await asyncio.sleep(0)
        return answers

    async def _turn(self) -> bool:
        """Waits for the earlier page; after a long wait the request is sent anyway: the server is slow or silent."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TURN_SECONDS_MAX):
                return await self._page_in_transit.acquire()
        return False

    def _note_size(self, request: DeliveryRequest, deliveries: Sequence[Delivery]) -> None:
        if len(request.subjects) > 1 or not request.limit:
            return
        subject = request.subjects[0]
        before = self._sizes.get(subject)
        if deliveries and (before is not None or len(self._sizes) < _SIZES_MAX):
            sizes = [_size_of(each.entry) for each in deliveries]
            self._sizes[subject] = _Size(sum(sizes), max(*sizes, 1))
        elif before is not None:
            self._sizes[subject] = replace(before, page=0)


def _size_of(entry: Entry) -> int:
    beside = entry.fields.items() if entry.fields else ()
    return len(entry.body) + sum(len(name) + len(value) + 2 * ELEMENT_BYTES for name, value in beside)


def _read(words: Sequence[Any], request: DeliveryRequest, now: int) -> list[Delivery]:
    return deliveries_of(words, request.subjects, request.group, request.consumer, from_micros(now + request.until))


def _check_group(answer: Sequence[Any], request: DeliveryRequest) -> None:
    if answer[0] == b"none":
        raise no_group(request.group, request.subjects[answer[1] - 1])


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
