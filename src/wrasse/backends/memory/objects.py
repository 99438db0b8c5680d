"""Objects in memory. The reference for what the port's header promises.

Keys are compared as bytes. A reader keeps the bytes it began with, and fails if they were replaced meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from wrasse.clock import Clock
from wrasse.ports.objects import (
    CHUNK_BYTES,
    NO_METADATA,
    Copies,
    Data,
    ObjectDelete,
    ObjectHead,
    ObjectInfo,
    WriteResult,
    check_deletes,
    check_metadata,
    check_object_key,
    gone,
    raw_key,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit


@dataclass(frozen=True, slots=True)
class _Object:
    head: ObjectHead
    data: bytes


class MemoryObjects:
    """All objects of one process, in memory."""

    multipart = versions = None

    def __init__(self, clock: Clock) -> None:
        self.copies: Copies = self
        self._clock = clock
        self._objects: dict[bytes, _Object] = {}
        self._keys: list[bytes] = []  # in order
        self._versions = count(1)

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        check_object_key(key)
        check_metadata(metadata)
        whole = await _whole(data)
        raw = raw_key(key)
        if raw in self._objects:
            return WriteResult(Outcome.CONFLICT, None, self._clock.now())
        insort(self._keys, raw)
        return self._store(raw, whole, metadata)

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        check_object_key(key)
        check_metadata(metadata)
        whole = await _whole(data)
        if self._version(key) != at:
            return WriteResult(Outcome.CONFLICT, None, self._clock.now())
        return self._store(raw_key(key), whole, metadata)

    async def head(self, key: str) -> ObjectHead | None:
        check_object_key(key)
        found = self._objects.get(raw_key(key))
        return None if found is None else found.head

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        check_object_key(key)
        found = self._objects.get(raw_key(key))
        if found is None or at not in (None, found.head.info.version):
            raise gone(key)
        for start in range(0, len(found.data), CHUNK_BYTES):
            if self._objects.get(raw_key(key)) is not found:
                raise gone(key)
            yield found.data[start : start + CHUNK_BYTES]

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        check_limit(limit, "objects")
        start = bisect_left(self._keys, raw_key(prefix))
        if after is not None:
            start = max(start, bisect_right(self._keys, raw_key(after)))
        keys = (key for key in self._keys[start : start + limit + 1] if key.startswith(raw_key(prefix)))
        found = [self._objects[key].head.info for key in keys]
        return Page.of(found, limit, self._clock.now(), lambda info: info.key)

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        check_object_key(key)
        check_object_key(to)
        if self._version(key) != at or raw_key(to) in self._objects:
            return Outcome.CONFLICT
        found = self._objects[raw_key(key)]
        insort(self._keys, raw_key(to))
        self._store(raw_key(to), found.data, found.head.metadata)
        return Outcome.DONE

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        check_deletes(deletes)
        return [self._delete(each) for each in deletes]

    def _delete(self, delete: ObjectDelete) -> Outcome:
        if self._version(delete.key) != delete.version:
            return Outcome.CONFLICT
        key = raw_key(delete.key)
        del self._objects[key], self._keys[bisect_left(self._keys, key)]
        return Outcome.DONE

    def _version(self, key: str) -> str | None:
        found = self._objects.get(raw_key(key))
        return None if found is None else found.head.info.version

    def _store(self, raw: bytes, data: bytes, metadata: Mapping[str, str]) -> WriteResult:
        now, version = self._clock.now(), str(next(self._versions))
        listed = raw.decode("utf-8", "surrogateescape")
        self._objects[raw] = _Object(ObjectHead(ObjectInfo(listed, len(data), version, now), dict(metadata)), data)
        return WriteResult(Outcome.DONE, version, now)


async def _whole(data: Data) -> bytes:
    if isinstance(data, bytes):
        return data
    return b"".join([chunk async for chunk in data])
