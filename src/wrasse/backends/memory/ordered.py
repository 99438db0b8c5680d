"""Keys in order; finding one costs nearly the same however many there are.

Invariant: the chunks, one after another, are the sorted keys; no chunk is empty; `_tops[i]` is the last key of
`_chunks[i]`. Chunks stay below twice their size, so that adding or removing a key moves a bounded number of keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

CHUNK = 512


K = TypeVar("K", int, str, tuple[int, int], tuple[int, str])


class Ordered(Generic[K]):
    """A sorted set. Walk it or change it, not both at once."""

    __slots__ = ("_chunk", "_chunks", "_size", "_tops")

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk
        self._chunks: list[list[K]] = []
        self._tops: list[K] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, key: K) -> None:
        """Adds a key that is not there yet."""
        self._size += 1
        if not self._chunks:
            self._chunks.append([key])
            self._tops.append(key)
            return
        at = min(bisect_left(self._tops, key), len(self._tops) - 1)
        chunk = self._chunks[at]
        insort(chunk, key)
        half = self._chunk
        if len(chunk) >= 2 * half:
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._tops[at : at + 1] = [chunk[half - 1], chunk[-1]]
        else:
            self._tops[at] = chunk[-1]

    def remove(self, key: K) -> None:
        """Removes a key that is there."""
        at = bisect_left(self._tops, key)
        chunk = self._chunks[at]
        place = bisect_left(chunk, key)
        assert chunk[place] == key, f"{key} is not in the index"
        del chunk[place]
        self._size -= 1
        if chunk:
            self._tops[at] = chunk[-1]
        else:
            del self._chunks[at], self._tops[at]

    def count_upto(self, key: K) -> int:
        """How many keys are not beyond this one."""
        at = bisect_right(self._tops, key)
        inside = bisect_right(self._chunks[at], key) if at < len(self._chunks) else 0
        return sum(map(len, self._chunks[:at])) + inside

    def walk(self, after: K | None = None, *, newest: bool = False) -> Iterator[K]:
        """The keys beyond `after`, upwards, or downwards with `newest`."""
        return self._down(after) if newest else self._up(after, bisect_right)

    def walk_from(self, start: K) -> Iterator[K]:
        """The keys from `start` on, upwards, `start` included."""
        return self._up(start, bisect_left)

    def first(self, after: K | None = None, *, newest: bool = False) -> K | None:
        """The key that `walk` would begin with."""
        return next(self.walk(after, newest=newest), None)

    def _up(self, bound: K | None, bisect: Callable[[list[K], K], int]) -> Iterator[K]:
        start = 0 if bound is None else bisect(self._tops, bound)
        for at in range(start, len(self._chunks)):
            chunk = self._chunks[at]
            begin = bisect(chunk, bound) if bound is not None and at == start else 0
            for place in range(begin, len(chunk)):
                yield chunk[place]

    def _down(self, before: K | None) -> Iterator[K]:
        last = len(self._chunks) - 1
        start = last if before is None else min(bisect_left(self._tops, before), last)
        for at in range(start, -1, -1):
            chunk = self._chunks[at]
            end = bisect_left(chunk, before) if before is not None and at == start else len(chunk)
            for place in range(end - 1, -1, -1):
                yield chunk[place]
