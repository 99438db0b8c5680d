"""Streams on Redis, 7.0 or newer: native streams under the seed's keys, so that its programs read and write them too.

Every change is one script with the server's clock. Ids continue after the last one in the stream, `ms` by the clock and
never back, `seq` one higher each time; so where all entries are ours, their ids count them. Where another program
writes too, sizes and lags are the server's own: an estimate, or unknown. One field of an entry, `envelope`, is its
body; the others are its fields. An entry without that field is another program's, and all of its fields count as such.

Streams of other programs are found by a SCAN in small steps (`Discovery`), and registered like our own. A pass over all
keys begins every PASS seconds at most; each caller continues it for a bounded number of steps. So a new stream is found
within a minute if there is a call per second and there are fewer than some ten million keys. Unregistered streams are
never trimmed. A stream whose key is not a subject, such as one with a space, cannot be registered: those that a pattern
would match are logged, once each, and the doctor names them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

import msgspec

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient, sections
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import ReplyTooLarge
from wrasse.backends.redis.keys import StreamKeys, literal_glob
from wrasse.backends.redis.replies import fitting, reads_replies
from wrasse.backends.redis.scripts import Script, load
from wrasse.backends.tcp import printable
from wrasse.clock import Clock, from_micros
from wrasse.errors import ConfigError, StoreBroken
from wrasse.ports.groups import Delivery
from wrasse.ports.page import Page, check_limit
from wrasse.ports.rules.subjects import check_pattern, check_subject, fixed_part, is_wild, matches, subject_of
from wrasse.ports.streams import (
    PLAIN,
    TOO_LONG,
    Draft,
    Entry,
    EntryChunk,
    EntryId,
    GroupState,
    StreamState,
    Trimmed,
    check_drafts,
)

ENVELOPE = b"envelope"
_numbers = msgspec.json.Decoder(list[int]).decode
_log = logging.getLogger("wrasse.streams")
NAMELESS_ADVICE = "let its program write to a key of letters, digits, - and _ with single colons between"
PASS = 30.0  # seconds between the beginnings of two passes
_STEP = 2_000  # keys that one SCAN reads
_STEPS_MAX = 200  # in one call
_NAMELESS_MAX = 1_000  # streams without a subject that are remembered
_START = b"0"
_DEDUP_WINDOW = timedelta(minutes=2)
_MICROSECOND = timedelta(microseconds=1)
_OLDEST = (7, 0)
_PAGE_BYTES = 32 << 20  # the intended maximum of one page
_FIRST_PAGE = 128  # entries of the first page of a stream, whose sizes are unknown
_SIZES_MAX = 10_000
_NAMES, _SURVEY_NAMES = 1_000, 2_000
_AT_ONCE = 250  # streams of one script: a few milliseconds of the server
_STEADY = 3  # attempts to get two answers over one connection


def id_of(text: bytes) -> EntryId:
    """An id in the server's format."""
    ms, _, seq = text.partition(b"-")
    return EntryId(int(ms), int(seq))


def ids_of(texts: Sequence[bytes]) -> Iterable[EntryId]:
    """Ids in the server's format. Many at once are parsed as one JSON list, three times as fast as one by one."""
    parts = _numbers(b"[" + b",".join(texts).replace(b"-", b",") + b"]")
    return map(EntryId, parts[::2], parts[1::2])


def entry_of(subject: str, id: bytes, words: Sequence[bytes]) -> Entry:
    """The entry with these names and values."""
    if len(words) == 2 and words[0] == ENVELOPE:
        return Entry(id_of(id), subject, words[1])
    names = [name.decode("utf-8", "backslashreplace") for name in words[::2]]
    fields = dict(zip(names, words[1::2], strict=True))
    return Entry(id_of(id), subject, fields.pop("envelope", b""), fields)


def columns_of(found: Sequence[Any]) -> tuple[list[bytes], list[bytes], Mapping[int, Mapping[str, bytes]]]:
    """Ids, bodies, and by position the fields beside them, from a server's answer."""
    words = [word for _, pairs in found for word in pairs]
    if len(words) == 2 * len(found) and words[::2].count(ENVELOPE) == len(found):
        return [id for id, _ in found], words[1::2], PLAIN
    beside: dict[int, Mapping[str, bytes]] = {}
    bodies: list[bytes] = []
    for place, (id, pairs) in enumerate(found):
        entry = entry_of("", id, pairs)
        bodies.append(entry.body)
        if entry.fields:
            beside[place] = entry.fields
    return [id for id, _ in found], bodies, beside


def deliveries_of(
    words: Sequence[Any], subjects: Sequence[str], group: str, consumer: str, until: datetime
) -> list[Delivery]:
    """The deliveries in the answer of the script."""
    given: list[Delivery] = []
    at, end = 0, len(words)
    while at < end:
        subject, id, number, length = subjects[words[at] - 1], words[at + 1], words[at + 2], words[at + 3]
        at += 4
        if length < -1:  # it would lead back to the same position for ever
            raise ValueError(f"an entry of {length} words")
        if length == -1:
            length, entry = 1, Entry(id_of(id), subject, b"", {TOO_LONG: b"%d" % words[at]})
        elif length == 1:
            entry = Entry(id_of(id), subject, words[at])
        else:
            entry = entry_of(subject, id, words[at : at + length])
        at += length
        given.append(Delivery(entry, group, consumer, number, until))
    return given


def new_deliveries(found: Sequence[Any], subject: str, group: str, consumer: str, until: datetime) -> list[Delivery]:
    """The deliveries in the server's answer to a read by group."""
    ids, bodies, beside = columns_of(found)
    if beside is PLAIN:
        entries = map(Entry, ids_of(ids), repeat(subject), bodies)
        return [*map(Delivery, entries, repeat(group), repeat(consumer), repeat(1), repeat(until))]
    return [Delivery(entry_of(subject, id, words), group, consumer, 1, until) for id, words in found]


def draft_words(draft: Draft) -> list[Word]:
    """A draft in the format of the scripts."""
    beside = [word for pair in draft.fields.items() for word in pair] if draft.fields else []
    return [draft.key, draft.body, len(beside), *beside]


class AppendBatch:
    """The drafts of one append, by stream."""

    __slots__ = ("_by_subject", "_drafts", "_plain")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._drafts = drafts
        self._by_subject: dict[str, Sequence[Draft]] = {}
        self._plain: set[str] = set()  # streams whose drafts have only a body
        subjects = dict.fromkeys(draft.subject for draft in drafts)
        for subject in subjects:
            own = drafts if len(subjects) == 1 else [draft for draft in drafts if draft.subject == subject]
            self._by_subject[subject] = own

    def keys(self, keys: StreamKeys) -> list[str]:
        """KEYS of the script."""
        names = [keys.registry]
        for subject in self._by_subject:
            of = keys.of(subject)
            names += (of.log, of.facts, of.known, of.known_expiry)
        return names

    def args(self) -> list[Word]:
        """ARGV of the script."""
        args: list[Word] = [len(self._by_subject)]
        for subject, drafts in self._by_subject.items():
            bodies = [draft.body for draft in drafts if not draft.key and not draft.fields]
            if len(bodies) == len(drafts):
                self._plain.add(subject)
                args += (subject, "bodies", len(bodies), sum(map(len, bodies)), *bodies)
            else:
                args += (subject, "drafts", len(drafts), 0)
                for draft in drafts:
                    args += draft_words(draft)
        return args

    def ids(self, answer: Sequence[Any]) -> Sequence[EntryId]:
        """The ids in the answer of the script, in the order of the drafts."""
        found: dict[str, list[EntryId]] = {}
        for (subject, drafts), ids in zip(self._by_subject.items(), answer, strict=True):
            plain = subject in self._plain
            found[subject] = _row(int(ids[0]), int(ids[1]), len(drafts)) if plain else [id_of(id) for id in ids]
        if len(found) == 1:
            return tuple(*found.values())
        following = {subject: iter(ids) for subject, ids in found.items()}
        return tuple(next(following[draft.subject]) for draft in self._drafts)


def _row(ms: int, first: int, count: int) -> list[EntryId]:
    return [EntryId(ms, seq) for seq in range(first, first + count)]


def read_state(subject: str, reply: Iterator[Any], now: int, history: str = "") -> StreamState:
    """One stream in numbers, as the scripts of lua/stream_state.lua answer it, from the words that come next."""
    length, size, appended, first, last, groups = (next(reply) for _ in range(6))
    states = [_group_state(next(reply) for _ in range(7)) for _ in range(groups)]
    return StreamState(
        subject,
        length=length,
        bytes=size,
        appended=appended,
        first=id_of(first) if first else None,
        last=id_of(last) if last else None,
        groups=tuple(sorted(states, key=lambda state: state.name)),
        at=from_micros(now),
        history=history,
    )


def _group_state(words: Iterator[Any]) -> GroupState:
    name, delivered, pending, lowest, lag, consumers, lost = words
    first = id_of(lowest) if lowest else None
    read = id_of(delivered)
    return GroupState(
        name.decode("utf-8", "backslashreplace"),
        floor=read if first is None else first.previous,
        delivered=read,
        pending=int(pending),
        oldest_pending_at=None if first is None else first.at,
        consumers=int(consumers),
        lag=int(lag) if lag else None,
        lost=int(lost),
    )


@reads_replies
class RedisStreams:
    """All streams of one Redis."""

    def __init__(self, client: RedisClient, clock: Clock, *, to_read: bool = False) -> None:
        self._client = client
        self._keys = StreamKeys(client.options)
        self._discovery = Discovery(client, self._keys, clock, to_read=to_read)
        self._sizes: dict[str, int] = {}
        self._history = 0, ""  # by the number of connections

    @property
    def dedup_window(self) -> timedelta:
        return _DEDUP_WINDOW

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        check_drafts(drafts)
        if not drafts:
            return ()
        batch = AppendBatch(drafts)
        return batch.ids(await self._client.run(load("stream_append"), batch.keys(self._keys), batch.args()))

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        found, at, more = await self._found(subject, after, limit)
        shown = [entry_of(subject, id, words) for id, words in found]
        self._note_size(subject, [sum(map(len, words)) for _, words in found])
        return Page(tuple(shown), tuple(id.decode() for id, _ in found), at, more)

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        """Entries in columns, for `Streams.chunk`."""
        found, at, more = await self._found(subject, after, limit)
        ids, bodies, beside = columns_of(found)
        self._note_size(subject, [*map(len, bodies), *(sum(map(len, each.values())) for each in beside.values())])
        return EntryChunk(subject, ids, bodies, beside, at, more)

    async def _found(self, subject: str, after: EntryId, limit: int) -> tuple[list[Any], datetime, bool]:
        """Entries in the server's format, its clock, and whether there are more."""
        check_subject(subject)
        check_limit(limit, "entries")
        wanted = min(limit, _PAGE_BYTES // self._sizes[subject] + 1 if subject in self._sizes else _FIRST_PAGE)
        command = "XRANGE", self._keys.of(subject).log, f"({after}", "+", "COUNT"
        try:
            (found, time), asked = await fitting(
                wanted + 1, lambda count: self._client.ask_many([(*command, count), ("TIME",)])
            )
        except ReplyTooLarge as why:
            raise _unreadable(subject, after, why) from why
        # An entry that was read alone is shown; whether more follow is not known then.
        shown = wanted if asked > wanted else asked
        at = from_micros(self._client.time_in(time))
        return found[:shown], at, len(found) > shown or (asked <= wanted and len(found) == asked)

    async def info(self, subject: str) -> StreamState | None:
        check_subject(subject)
        keys = self._keys.of(subject)
        answer, history = await self._by_one_server(load("stream_state.info"), [keys.log, keys.facts])
        if not answer:
            return None
        now, *words = answer
        return read_state(subject, iter(words), now, history)

    async def _by_one_server(self, script: Script, keys: Sequence[str]) -> tuple[Any, str]:
        """A script's answer, and the history of the very server that answered; empty if connections keep changing."""
        answer: Any = None
        for _ in range(_STEADY):
            connections = self._client.connections
            answer = await self._client.run(script, keys)
            if self._history[0] != connections:
                facts = sections(b"\n".join(await self._client.ask_many([("INFO", "server"), ("INFO", "replication")])))
                self._history = connections, f"{facts.get('run_id', '')} {facts.get('master_replid', '')}"
            if self._client.connections == connections:
                return answer, self._history[1]
        return answer, ""

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        check_pattern(pattern)
        check_limit(limit, "streams")
        if is_wild(pattern):
            await self._discovery.advance()
            self._discovery.log_nameless(pattern)
        elif after is None:
            await self._discovery.register([pattern])
        found: list[str] = []
        async for names in self._registered(pattern, after, _NAMES):
            found += await self._there(names)
            if len(found) > limit:
                break
        now = from_micros(self._client.time_in(await self._client.ask("TIME")))
        return Page.of(found, limit, now, str)

    async def nameless(self) -> Sequence[str]:
        """Keys of streams that no subject has, in order: they are neither listed nor archived nor trimmed."""
        return await self._discovery.find_nameless()

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See `Surveys`: one request for the names, and one script for _AT_ONCE of them at a time. Streams of other
        programs are searched for first, as in `subjects`."""
        check_pattern(pattern)
        check_limit(limit, "streams")
        await self._discovery.advance()
        self._discovery.log_nameless(pattern)
        found: list[str] = []
        async for names in self._registered(pattern, after, _SURVEY_NAMES):
            found += names
            if len(found) > limit:
                break
        shown, more, states, at = found[:limit], len(found) > limit, list[StreamState](), 0
        for begin in range(0, len(shown), _AT_ONCE):
            some = shown[begin : begin + _AT_ONCE]
            keys = [key for name in some for key in (self._keys.of(name).log, self._keys.of(name).facts)]
            at, *words = await self._client.run(load("stream_state.survey"), keys)
            reply = iter(words)
            states += [read_state(name, reply, at) for name in some if next(reply)]
        if not at:
            at = self._client.time_in(await self._client.ask("TIME"))
        if not states and more:
            return await self.survey(pattern, shown[-1], limit)
        cursors = [state.subject for state in states]
        if more:
            cursors[-1] = shown[-1]  # a stream deleted meanwhile is not requested again
        return Page(tuple(states), tuple(cursors), from_micros(at), more)

    async def _registered(self, pattern: str, after: str | None, at_once: int) -> AsyncIterator[list[str]]:
        """Registered subjects that match, in order."""
        start, at = fixed_part(pattern).encode(), None if after is None else after.encode()
        page_loop = PageLoop(self._client.options.where, f"ZRANGEBYLEX {self._keys.registry}")
        while True:
            page_loop.turn(at)
            low = b"(" + at if at is not None and at >= start else b"[" + start
            asked = "ZRANGEBYLEX", self._keys.registry, low, "+", "LIMIT", 0, at_once
            names = await self._client.ask(*asked)
            last = len(names) < at_once or not names[-1].startswith(start)
            beside = [
                each for each in self._discovery.unregistered
                if (at is None or each > at) and (last or each <= names[-1])
            ]  # fmt: skip
            subjects = map(self._keys.registered, sorted({*names, *beside}) if beside else names)
            yield [name for name in subjects if name is not None and matches(pattern, name)]
            if last:
                return
            at = names[-1]

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        check_subject(subject)
        check_limit(limit, "entries")
        keys = self._keys.of(subject)
        names = [self._keys.registry, keys.log, keys.facts]
        oldest = "" if age is None else age // _MICROSECOND
        highest = "" if below is None else str(below.previous)
        answer = await self._client.run(load("stream_trim"), names, [subject, oldest, highest, limit, *protect])
        now, count, floor, held_by, more = answer
        name = protect[held_by - 1] if held_by else ""
        return Trimmed(count, id_of(floor), name, bool(more), from_micros(now))

    async def _there(self, names: Sequence[str]) -> list[str]:
        """Those that exist; registered ones that were deleted are removed from the registry."""
        if not names:
            return []
        here = await self._client.ask_many([("EXISTS", self._keys.of(name).log) for name in names])
        gone = [name for name, exists in zip(names, here, strict=True) if not exists]
        await self._discovery.register(gone)
        return [name for name, exists in zip(names, here, strict=True) if exists]

    def _note_size(self, subject: str, sizes: Sequence[int]) -> None:
        if sizes and (subject in self._sizes or len(self._sizes) < _SIZES_MAX):
            self._sizes[subject] = max(max(sizes) // 4, sum(sizes) // len(sizes), 1)


def _unreadable(subject: str, after: EntryId, why: ReplyTooLarge) -> StoreBroken:
    return StoreBroken(
        f"the entry of {subject!r} that follows {after} is larger than redis.reply_bytes_max",
        do=f"{why.do}; XRANGE {subject.replace('.', ':')} ({after} + COUNT 1 shows it",
    )


class Discovery:
    """Finds the streams of one Redis."""

    __slots__ = (
        "_began", "_client", "_clock", "_cursor", "_keys", "_lock", "_logged", "_nameless", "_to_read", "unregistered",
    )  # fmt: skip

    def __init__(self, client: RedisClient, keys: StreamKeys, clock: Clock, *, to_read: bool) -> None:
        self._client = client
        self._clock = clock
        self._keys = keys
        self._lock = asyncio.Lock()
        self._cursor = _START
        self._began: float | None = None
        self._nameless: set[str] = set()  # keys of other programs' streams that no subject has
        self._logged: set[str] = set()
        self._to_read = to_read
        self.unregistered: set[bytes] = set()  # found by a store that was opened to read

    async def advance(self) -> None:
        """Continues the pass, if one is due. A concurrent caller does not wait for it."""
        now = self._clock.monotonic()
        idle = self._cursor == _START and self._began is not None and now - self._began < PASS
        if idle or self._lock.locked():
            return
        async with self._lock:
            if self._cursor == _START:
                self._began = now
            for _ in range(_STEPS_MAX):
                if await self._step():
                    return

    def log_nameless(self, pattern: str) -> None:
        """Logs streams that this pattern would match if their keys were subjects; not for a pattern that matches
        all."""
        for key in self._nameless - self._logged if fixed_part(pattern) else ():
            if matches(pattern, subject_of(key.removeprefix(self._keys.prefix))):
                self._logged.add(key)
                _log.error("the stream %r is skipped, since its key is not a subject: %s", key, NAMELESS_ADVICE)

    async def register(self, subjects: Sequence[str]) -> None:
        """Registers existing streams, and removes deleted ones. A store that was opened to read writes nothing."""
        if not subjects:
            return
        if self._to_read:
            types = await self._client.ask_many([("TYPE", self._keys.of(subject).log) for subject in subjects])
            self.unregistered |= {
                each.encode() for each, kind in zip(subjects, types, strict=True) if kind == b"stream"
            }
            return
        names = [self._keys.registry]
        for subject in subjects:
            keys = self._keys.of(subject)
            names += (keys.log, keys.facts)
        await self._client.run(load("stream_register"), names, list(subjects))

    async def _step(self) -> bool:
        """One step; True if the pass is over."""
        self._cursor, named = await self._scan(self._cursor)
        scores = await self._client.ask_many([("ZSCORE", self._keys.registry, subject) for _, subject in named])
        await self.register([subject for (_, subject), score in zip(named, scores, strict=True) if score is None])
        return bool(self._cursor == _START)

    async def find_nameless(self) -> Sequence[str]:
        """Keys of streams that no subject has, in order. Registers nothing, and reads a bounded number of keys."""
        cursor = _START
        for _ in range(_STEPS_MAX):
            cursor, _ = await self._scan(cursor)
            if cursor == _START:
                break
        return sorted(self._nameless)

    async def _scan(self, cursor: bytes) -> tuple[bytes, Sequence[tuple[bytes, str]]]:
        """Streams with their subjects, and the next cursor. Keys without a subject are remembered, except our own."""
        pattern = literal_glob(self._keys.prefix) + "*"
        cursor, found = await self._client.ask("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP, "TYPE", "stream")
        named = [(key, subject) for key in found if (subject := self._keys.subject(key)) is not None]
        shown = {printable(key.decode(errors="backslashreplace")) for key in {*found} - {key for key, _ in named}}
        fresh = sorted(each for each in shown - self._nameless if not each.startswith(f"{self._keys.root}:"))
        self._nameless |= set(fresh[: _NAMELESS_MAX - len(self._nameless)])
        return cursor, named


async def check_streams(client: RedisClient) -> None:
    """Refuses a server that is too old: trims and groups need commands of Redis 7.0."""
    version = sections(await client.ask("INFO", "server")).get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
        raise ConfigError(
            f"{client.options.where} is Redis {version}, and streams need 7.0 or newer",
            do="use Redis 7.0 or newer, or Valkey; or keep streams in sqlite:wrasse.db (backends.streams)",
        )
