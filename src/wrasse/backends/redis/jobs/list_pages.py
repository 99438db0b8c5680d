"""Entries of a queue's list, page by page, while others push and pop.

A position in a list is soon outdated, so a cursor also has marks of the entry before it and of the next one: the page
begins where those are now. If both are gone, they were served, and so was everything before them: the listing continues
with what is served next. It may show a job twice; it leaves none out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.reply_limit import fitting

_NEAR = 1_000  # entries per read
_FAR = 20_000  # how far from its old position an entry is searched for

_FEW = 100  # entries of the first read, before their size is known
_BYTES = 4 << 20  # the intended maximum of one read
_NONE = "-"


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
        count, page_loop = min(chunk, _FEW), PageLoop(self._client.options.where, f"LRANGE {self._key}")
        while True:
            page_loop.turn(index)
            found, asked = await fitting(count + 1, lambda few: self._read(index, few))  # noqa: B023
            marks = [_mark(raw) for raw in found] + [_NONE]
            ended, count = len(found) < asked, max(asked - 1, 1)
            for n, raw in enumerate(found[:count]):
                yield ListEntry(raw, ListPosition(index + n, marks[n], marks[n + 1]))
            if ended:
                return
            index += count
            # More per read while they are small, fewer when they are large: so both sides need little memory.
            size = sum(map(len, found))
            count = min(2 * count if size < _BYTES // 2 else max(count * _BYTES // size, 1), chunk)

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
        at = await self._look(behind, behind.index, 2)
        if at is not None:
            return at
        # Claims shift the other entries towards the served end; pushes shift them away from the other end.
        for distance in range(0, _FAR, _NEAR):
            before = behind.index - distance - _NEAR
            wanted = [behind.index + distance, before] if self._newest else [before, behind.index + distance]
            for first in wanted:
                count = _NEAR + 1 + min(first, 0)
                at = await self._look(behind, max(first, 0), count) if count > 1 else None
                if at is not None:
                    return at
        return behind.index + 1 if self._newest else 0

    async def _look(self, behind: ListPosition, first: int, count: int) -> int | None:
        marks = [_mark(raw) for raw in await self._all(first, count)]
        if behind.last in marks:
            return first + marks.index(behind.last) + 1
        if behind.next in marks:
            return first + marks.index(behind.next)
        return None


def _mark(raw: bytes) -> str:
    return f"{crc32(raw):08x}"
