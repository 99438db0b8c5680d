"""Entries of a queue's list, page by page, while others push and take.

A position in a list means little a moment later, so a cursor also carries marks of the entry it stands behind and of
the next one: the page begins where those are now. If both are gone, they were served, and so was what stood before
them: the listing goes on with what is served next. It may show a job again; it leaves none out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.reply_limit import fitting

_NEAR = 1_000  # entries per look
_FAR = 20_000  # how far from where it stood an entry is looked for

_FEW = 100  # entries of the first read, before it is known how large they are
_BYTES = 4 << 20  # that one read should bring at most
_NONE = "-"


@dataclass(frozen=True, slots=True)
class ListPosition:
    """Where a listing stands: behind the entry at `index`, counted from the end where it began."""

    index: int
    last: str
    next: str

    def __str__(self) -> str:
        return f"{self.index}:{self.last}:{self.next}"


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One entry, and how to go on behind it."""

    raw: bytes
    mark: ListPosition


class ServedList:
    """One list, in the order it is served, or turned round."""

    def __init__(self, client: RedisClient, key: str, *, newest: bool) -> None:
        self._client = client
        self._key = key
        self._newest = newest

    async def entries(self, behind: ListPosition | None, chunk: int) -> AsyncIterator[ListEntry]:
        """The entries behind the mark, at most `chunk` per read."""
        index = 0 if behind is None else await self._begin(behind)
        count, rounds = min(chunk, _FEW), PageLoop(self._client.options.where, f"LRANGE {self._key}")
        while True:
            rounds.turn(index)
            found, asked = await fitting(count + 1, lambda few: self._read(index, few))  # noqa: B023
            marks = [_mark(raw) for raw in found] + [_NONE]
            ended, count = len(found) < asked, max(asked - 1, 1)
            for n, raw in enumerate(found[:count]):
                yield ListEntry(raw, ListPosition(index + n, marks[n], marks[n + 1]))
            if ended:
                return
            index += count
            # More at once while they are small, fewer when they are large: neither side has to hold much of them.
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
        """Where the entry after the mark stands now."""
        at = await self._look(behind, behind.index, 2)
        if at is not None:
            return at
        # What is claimed moves the others towards the end that is served; what is pushed moves them away from the
        # other.
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
