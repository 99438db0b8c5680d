"""Streams on Redis, 7.0 or newer: native streams under the seed's keys, so that its programs read and write them too.

Every change is one script with the server's clock. Ids continue after the last one in the stream, `ms` by the clock and
never back, `seq` one higher each time; so where all entries are ours, their ids count them. Where another program
writes too, sizes and lags are the server's own: an estimate, or unknown.

Streams of other programs are found by a SCAN in small steps, and registered like our own.

A pass over all keys begins every PASS seconds at most; each caller continues it for a bounded number of steps. So a new
stream is found within a minute if there is a call per second and there are fewer than some ten million keys.
Unregistered streams are never trimmed.

A stream whose key is not a subject, such as one with a space, cannot be registered. Those that a pattern would match
are logged, once each, and the doctor names them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.foreign_protocol import printable
from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient, sections
from wrasse.backends.redis.failure import ReplyTooLarge
from wrasse.backends.redis.keys import literal_glob
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.reply_limit import fitting
from wrasse.backends.redis.scripts import Script, load
from wrasse.backends.redis.stream_entries import AppendBatch, columns_of, entry_of, id_of, read_state
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.clock import Clock, from_micros
from wrasse.errors import ConfigError, StoreBroken
from wrasse.ports.entry_chunks import EntryChunk
from wrasse.ports.page import Page, check_limit
from wrasse.ports.rules.subjects import check_pattern, check_subject, fixed_part, is_wild, matches, subject_of
from wrasse.ports.streams import Draft, Entry, EntryId, StreamState, Trimmed, check_drafts

_log = logging.getLogger("wrasse.streams")
DO = "let its program write to a key of letters, digits, - and _ with single colons between"
PASS = 30.0  # seconds between the beginnings of two passes
_STEP = 2_000  # keys that one SCAN reads
_STEPS_MAX = 200  # in one call
_NAMELESS_MAX = 1_000  # streams without a subject that are remembered
_START = b"0"


class Discovery:
    """Finds the streams of one Redis."""

    __slots__ = (
        "_began",
        "_client",
        "_clock",
        "_cursor",
        "_keys",
        "_lock",
        "_nameless",
        "_to_read",
        "_told",
        "unregistered",
    )  # fmt: skip

    def __init__(self, client: RedisClient, keys: StreamKeys, clock: Clock, *, to_read: bool) -> None:
        self._client = client
        self._clock = clock
        self._keys = keys
        self._lock = asyncio.Lock()
        self._cursor = _START
        self._began: float | None = None
        self._nameless: set[str] = set()  # keys of other programs' streams that no subject has
        self._told: set[str] = set()
        self._to_read = to_read
        self.unregistered: set[bytes] = set()  # found by a store that was opened to read

    async def look(self) -> None:
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

    def tell(self, pattern: str) -> None:
        """Logs streams that this pattern would match if their keys were subjects; not for a pattern that matches
        all."""
        for key in self._nameless - self._told if fixed_part(pattern) else ():
            if matches(pattern, subject_of(key.removeprefix(self._keys.prefix))):
                self._told.add(key)
                _log.error("the stream %r is skipped, since its key is not a subject: %s", key, DO)

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


_DEDUP_WINDOW = timedelta(minutes=2)
_MICROSECOND = timedelta(microseconds=1)
_OLDEST = (7, 0)
_PAGE_BYTES = 32 << 20  # the intended maximum of one page
_FIRST_PAGE = 128  # entries of the first page of a stream, whose sizes are unknown
_SIZES_MAX = 10_000
_NAMES, _SURVEY_NAMES = 1_000, 2_000
_AT_ONCE = 250  # streams of one script: a few milliseconds of the server
_STEADY = 3  # attempts to get two answers over one connection


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
        answer, history = await self._by_one_server(load("stream_info"), [keys.log, keys.facts])
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
            await self._discovery.look()
            self._discovery.tell(pattern)
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
        await self._discovery.look()
        self._discovery.tell(pattern)
        found: list[str] = []
        async for names in self._registered(pattern, after, _SURVEY_NAMES):
            found += names
            if len(found) > limit:
                break
        shown, more, states, at = found[:limit], len(found) > limit, list[StreamState](), 0
        for begin in range(0, len(shown), _AT_ONCE):
            some = shown[begin : begin + _AT_ONCE]
            keys = [key for name in some for key in (self._keys.of(name).log, self._keys.of(name).facts)]
            at, *words = await self._client.run(load("stream_survey"), keys)
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


async def check_streams(client: RedisClient) -> None:
    """Refuses a server that is too old: trims and groups need commands of Redis 7.0."""
    version = sections(await client.ask("INFO", "server")).get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
        raise ConfigError(
            f"{client.options.where} is Redis {version}, and streams need 7.0 or newer",
            do="use Redis 7.0 or newer, or Valkey; or keep streams in sqlite:wrasse.db (backends.streams)",
        )
