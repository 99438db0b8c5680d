"""Reads lists, sorted sets and hashes page by page while other processes change them.

`ServedList` reads a queue's list. A position in a list is soon outdated, so a cursor also has marks of the entry before
it and of the next one: the page begins where those are now. If both are gone, they were served, and so was everything
before them: the listing continues with what is served next. It may show a job twice; it leaves none out.

`slice_of` and `slices` read a sorted set of jobs with their texts, in one round trip each. A cursor is a score and a
member, not a rank: the page begins after it even if that member has moved.

`find_waiting` finds waiting jobs by their ids. No index names them, so that a queued job costs no more than its
bytes: a script scans the lists, a bounded number of entries and bytes per call. A job that does not move cannot be
missed: a due job moves from a delayed set to a list, and both are scanned in that order; a list is scanned from the
end where jobs are pushed, so that concurrent pushes and claims skip no entry. Before that, one call scans the entries
that are served next: a delete of a page of a listing finds them there.

The others read whole structures for fsck: what exists all the while is read at least once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from zlib import crc32

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.job_json import decode
from wrasse.backends.redis.keys import RedisKeys, pattern_glob
from wrasse.backends.redis.replies import fitting, scanned, usable_queues, workers_among
from wrasse.backends.redis.scripts import load
from wrasse.bounded import clamped_ms

SLICE_MAX = 2_000  # members of a sorted set per round trip: the most that one script returns
_SEARCH_STEP = 1_000  # entries per read
_SEARCH_MAX = 20_000  # how far from its old position an entry is searched for
_FIRST_READ = 100  # entries of the first read, before their size is known
_READ_BYTES = 4 << 20  # the intended maximum of one read
_NO_MARK = "-"
_SMALL, _LARGE = 1_000, 100  # a page of short values, a page of texts with payloads
Seen = Callable[[int], None]
ENTRIES_MAX, BYTES_MAX = 5_000, 32 << 20  # scanned per call, so that a script ends within milliseconds


@dataclass(frozen=True, slots=True)
class ListPosition:
    """The position of a listing: after the entry at `index`, counted from the end where it began."""

    index: int
    last: str
    next: str

    def __str__(self) -> str:
        return f"{self.index}:{self.last}:{self.next}"


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One entry, and the position after it."""

    raw: bytes
    mark: ListPosition


class ServedList:
    """One list, in the order it is served, or reversed."""

    def __init__(self, client: RedisClient, key: str, *, newest: bool) -> None:
        self._client = client
        self._key = key
        self._newest = newest

    async def entries(self, behind: ListPosition | None, chunk: int) -> AsyncIterator[ListEntry]:
        """The entries after the mark, at most `chunk` per read."""
        index = 0 if behind is None else await self._begin(behind)
        count, page_loop = min(chunk, _FIRST_READ), PageLoop(self._client.options.where, f"LRANGE {self._key}")
        while True:
            page_loop.turn(index)
            found, asked = await fitting(count + 1, lambda few: self._read(index, few))  # noqa: B023
            marks = [_mark(raw) for raw in found] + [_NO_MARK]
            ended, count = len(found) < asked, max(asked - 1, 1)
            for n, raw in enumerate(found[:count]):
                yield ListEntry(raw, ListPosition(index + n, marks[n], marks[n + 1]))
            if ended:
                return
            index += count
            # More per read while they are small, fewer when they are large: so both sides need little memory.
            size = sum(map(len, found))
            count = min(2 * count if size < _READ_BYTES // 2 else max(count * _READ_BYTES // size, 1), chunk)

    async def _read(self, index: int, count: int) -> Sequence[bytes]:
        if self._newest:
            found: list[bytes] = await self._client.ask("LRANGE", self._key, index, index + count - 1)
            return found
        served: list[bytes] = await self._client.ask("LRANGE", self._key, -(index + count), -(index + 1))
        return served[::-1]

    async def _all(self, first: int, count: int) -> Sequence[bytes]:
        (found, asked) = await fitting(count, lambda few: self._read(first, few))
        if len(found) < asked or asked == count:
            return found
        return [*found, *await self._all(first + asked, count - asked)]

    async def _begin(self, behind: ListPosition) -> int:
        """Where the entry after the mark is now."""
        at = await self._find(behind, behind.index, 2)
        if at is not None:
            return at
        # Claims shift the other entries towards the served end; pushes shift them away from the other end.
        for distance in range(0, _SEARCH_MAX, _SEARCH_STEP):
            before = behind.index - distance - _SEARCH_STEP
            wanted = [behind.index + distance, before] if self._newest else [before, behind.index + distance]
            for first in wanted:
                count = _SEARCH_STEP + 1 + min(first, 0)
                at = await self._find(behind, max(first, 0), count) if count > 1 else None
                if at is not None:
                    return at
        return behind.index + 1 if self._newest else 0

    async def _find(self, behind: ListPosition, first: int, count: int) -> int | None:
        marks = [_mark(raw) for raw in await self._all(first, count)]
        if behind.last in marks:
            return first + marks.index(behind.last) + 1
        if behind.next in marks:
            return first + marks.index(behind.next)
        return None


def _mark(raw: bytes) -> str:
    return f"{crc32(raw):08x}"


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """A part of a set by score: its ends in Redis syntax, and the direction."""

    low: str = "-inf"
    high: str = "+inf"
    newest: bool = False


@dataclass(frozen=True, slots=True)
class PageStart:
    """The member after which a page begins; `begins`: the member is only the beginning of one."""

    score: str  # in the server's format: another program's may have a fraction, or be infinite
    member: bytes
    begins: bool = False

    def bound(self, *, newest: bool) -> bytes:
        """A bound between that member and the next one in this direction."""
        return self.member if newest else self.member + (b"\xff" if self.begins else b"\0")


@dataclass(frozen=True, slots=True)
class SortedMember:
    """A member with its score and its text; no text if the member is the text, or if it is missing."""

    member: bytes
    score: int
    text: bytes | None
    exact: str  # the score in the server's format


@dataclass(frozen=True, slots=True)
class SortedPage:
    """The next members, the server's time in milliseconds, and whether there are more: a page may end early."""

    found: tuple[SortedMember, ...]
    now: int
    more: bool

    @property
    def behind(self) -> PageStart | None:
        """Where the next page begins; None if this was the last."""
        return PageStart(self.found[-1].exact, self.found[-1].member) if self.more else None


async def slice_of(
    client: RedisClient, key: str, texts: str | None, span: ScoreRange, behind: PageStart | None, limit: int
) -> SortedPage:
    """At most `limit` members of the set at `key`, with their texts from the hash at `texts`."""
    cursor = ("", b"") if behind is None else (behind.score, behind.bound(newest=span.newest))
    way = "down" if span.newest else "up"
    reply = await client.run(load("slice"), [key, texts or key], [way, span.low, span.high, limit, *cursor])
    return SortedPage(tuple(_found(reply)), int(reply[0]), reply[1] == 1)


def _found(reply: list[bytes | None]) -> Iterator[SortedMember]:
    for at in range(2, len(reply), 3):
        member, score, text = reply[at : at + 3]
        if member is None or score is None:
            raise ValueError("an entry of a sorted set without its member or its score")
        yield SortedMember(member, clamped_ms(score), text, score.decode())


async def slices(
    client: RedisClient, key: str, texts: str | None, span: ScoreRange, behind: PageStart | None, chunk: int = SLICE_MAX
) -> AsyncIterator[SortedMember]:
    """Everything after the cursor, read in pages of `chunk`."""
    page_loop = PageLoop(client.options.where, f"the entries of {key}")
    while True:
        page_loop.turn(behind)
        found = await slice_of(client, key, texts, span, behind, chunk)
        for each in found.found:
            yield each
        behind = found.behind
        if behind is None:
            return


async def pairs(
    client: RedisClient, key: str, seen: Seen, *, large: bool = False
) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Names and values of a hash, or members and scores of a sorted set."""
    command = "ZSCAN" if await client.ask("TYPE", key) in (b"zset", "zset") else "HSCAN"
    async for found in scanned(client, (command, key), _LARGE if large else _SMALL):
        rows = list(zip(found[::2], found[1::2], strict=True))
        seen(len(rows))
        yield rows


async def keys_like(client: RedisClient, glob: str, kind: str) -> AsyncIterator[list[bytes]]:
    """Keys of one type whose names match."""
    async for names in scanned(client, ("SCAN",), _SMALL, ("MATCH", glob, "TYPE", kind)):
        yield names


async def workers_with(client: RedisClient, pattern: str, kind: str) -> list[str]:
    """Every worker that has a key by this pattern."""
    return await workers_among(client, keys_like(client, pattern_glob(pattern), kind), pattern)


async def entries(client: RedisClient, key: str, seen: Seen) -> AsyncIterator[bytes]:
    """A list from the end where jobs are pushed."""
    start, page_loop = 0, PageLoop(client.options.where, f"LRANGE {key}")
    while True:
        page_loop.turn(start)
        asked = await fitting(_LARGE, lambda count: client.ask("LRANGE", key, start, start + count - 1))  # noqa: B023
        found: list[bytes] = asked[0]
        seen(len(found))
        for raw in found:
            yield raw
        if len(found) < asked[1]:
            return
        start += asked[1]


async def scores(client: RedisClient, sets: Sequence[str], members: Sequence[Word]) -> list[list[bytes | None]]:
    """For each sorted set the scores of the same members."""
    return await client.ask_many([("ZMSCORE", key, *members) for key in sets])


async def there(client: RedisClient, key: str, names: Sequence[Word]) -> list[bool]:
    """Which of these fields a hash has; without reading their values."""
    return [found == 1 for found in await client.ask_many([("HEXISTS", key, name) for name in names])]


async def claim_keys_of(client: RedisClient, keys: RedisKeys, ids: Sequence[str | bytes]) -> list[bytes | None]:
    """The newest claim of each id."""
    if not ids:
        return []
    found: list[bytes | None] = await client.ask("HMGET", keys.where, *ids)
    return found


def digest(raw: bytes) -> bytes:
    """A short name for these bytes."""
    return blake2b(raw, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """An entry of a queue in its list, or in its delayed set with its due time (ms). `at` is its position when it was
    found, from the end that moves less."""

    queue: str
    entry: bytes
    due: int | None = None
    at: int = 0

    @property
    def kind(self) -> str:
        """The kind of its entry."""
        return "list" if self.due is None else "set"

    @property
    def bytes(self) -> bytes:
        """The job's own bytes: a scheduled entry begins with a number that keeps equal bytes apart."""
        return self.entry if self.due is None else self.entry.partition(b":")[2]


async def find_waiting(client: RedisClient, keys: RedisKeys, ids: Collection[str]) -> dict[str, WaitingJob]:
    """The waiting jobs with these ids. Ends once all are found."""
    queues = await usable_queues(client, keys)
    found: dict[str, WaitingJob] = {}
    async for each in _scans(client, keys, ids, queues):
        for waiting in each:
            wire = decode(waiting.bytes)
            if wire is not None and wire.id in ids:
                found.setdefault(wire.id, waiting)
        if len(found) == len(ids):
            break
    return found


async def _scans(
    client: RedisClient, keys: RedisKeys, ids: Collection[str], queues: Sequence[str]
) -> AsyncIterator[list[WaitingJob]]:
    """Possible matches, call by call; the same entry may come twice."""
    needles = [needle for id in ids for needle in _spelled(id)]
    most = min(BYTES_MAX, client.options.reply_bytes_max // 3)

    async def scan(queue: str, kind: str, first: int, last: int) -> tuple[int, list[WaitingJob]]:
        """The number of entries scanned, 0 at the end; and the matches."""
        names = keys.queue(queue)
        key = names.list if kind == "list" else names.delayed
        count, more, *rest = await client.run(load("find"), [key], [kind, first, last, most, *needles])
        return count if more else 0, list(_entries(queue, rest))

    for queue in queues:
        yield (await scan(queue, "list", -ENTRIES_MAX, -1))[1]
    for kind, queue in [(kind, queue) for kind in ("set", "list") for queue in queues]:
        seen, count, page_loop = 0, 1, PageLoop(client.options.where, "a search for waiting jobs")
        while count > 0:
            page_loop.turn(seen)
            count, found = await scan(queue, kind, seen, seen + ENTRIES_MAX - 1)
            seen += count
            yield found


def _entries(queue: str, reply: Sequence[Any]) -> Iterator[WaitingJob]:
    for entry, score, at in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
        yield WaitingJob(queue, entry, clamped_ms(score) if score else None, at)


def _spelled(id: str) -> set[str]:
    """The spellings of this id in JSON: unchanged, in ASCII, and with the escapes of Go."""
    plain = json.dumps(id, ensure_ascii=False)[1:-1]
    escaped = json.dumps(id)[1:-1]
    go = plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    go = go.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return {plain, escaped, go}
