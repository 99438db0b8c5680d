"""Objects as plain files at readable paths: `archive/audit/x.jsonl.gz` is that file, for any other tool to read.

The port's promises hold between processes and through a crash at any point; `object_files.py` says how. Bytes are
streamed both ways: memory does not grow with the size of an object. Plain files that other tools put there are objects,
too; symbolic links are not, and a listing does not look behind them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.names import path_of
from wrasse.backends.directory.object_files import ObjectFiles, version_of
from wrasse.backends.directory.stamps import Stamps, instant
from wrasse.backends.directory.temps import Blank, Temp, Temps
from wrasse.backends.directory.threads import Threads
from wrasse.errors import Gone, UsageError
from wrasse.ports.objects import (
    CHUNK_BYTES,
    DELETES_MAX,
    NO_METADATA,
    Copies,
    Data,
    ObjectDelete,
    ObjectHead,
    ObjectInfo,
    Stored,
    check_metadata,
    check_object_key,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit

F = TypeVar("F", Temp, Temp | Blank)


class DirectoryObjects:
    """The port."""

    multipart = versions = None

    def __init__(self, threads: Threads, files: Files, temps: Temps, stamps: Stamps, objects: ObjectFiles) -> None:
        self.copies: Copies = self
        self._threads = threads
        self._files = files
        self._temps = temps
        self._stamps = stamps
        self._objects = objects

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> Stored:
        check_object_key(key)
        check_metadata(metadata)
        path = path_of(_raw(key))
        return await self._store(
            data,
            lambda: self._objects.state(path) is None,
            self._temps.blank,
            lambda temp: self._objects.create(path, temp, metadata),
        )

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> Stored:
        check_object_key(key)
        check_metadata(metadata)
        path = path_of(_raw(key))

        def fits() -> bool:
            state = self._objects.state(path)
            return state is not None and version_of(state) == at

        return await self._store(
            data, fits, self._temps.begin, lambda temp: self._objects.replace(path, temp, at, metadata)
        )

    async def head(self, key: str) -> ObjectHead | None:
        check_object_key(key)
        found = await self._threads.run(lambda: self._objects.head(path_of(_raw(key))))
        return None if found is None else ObjectHead(_info(key, found[0]), found[1])

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        check_object_key(key)
        opened = await self._threads.run(lambda: self._objects.open(path_of(_raw(key))), undo=self._close)
        if opened is None:
            raise _gone(key)
        file, state = opened
        try:
            if at is not None and version_of(state) != at:
                raise _gone(key)
            offset = 0
            while chunk := await self._threads.run(partial(self._files.read, file, CHUNK_BYTES, offset)):
                offset += len(chunk)
                yield chunk
            # We never write into a file that has its name; another program may have.
            if await self._threads.run(lambda: self._files.state_of(file)) != state:
                raise _gone(key)
        finally:
            self._files.close(file)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        check_limit(limit, "objects")
        start = None if after is None else _raw(after)
        found = await self._threads.run(lambda: self._objects.page(_raw(prefix), start, limit))
        infos = tuple(_info(key.decode("utf-8", "surrogateescape"), state) for key, state in found.found)
        return Page(infos, tuple(info.key for info in infos), self._stamps.now(), found.more)

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        check_object_key(key)
        check_object_key(to)
        return await self._threads.run(lambda: self._objects.copy(path_of(_raw(key)), path_of(_raw(to)), at))

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        if len(deletes) > DELETES_MAX:
            raise UsageError(f"{len(deletes)} deletes at once", do=f"delete at most {DELETES_MAX} objects in one call")
        for each in deletes:
            check_object_key(each.key)
        named = [(path_of(_raw(each.key)), each.version) for each in deletes]
        return await self._threads.run(lambda: self._objects.delete(named))

    def _close(self, opened: tuple[int, FileState] | None) -> None:
        if opened is not None:
            self._files.close(opened[0])

    async def _store(
        self, data: Data, fits: Callable[[], bool], begin: Callable[[], F], place: Callable[[F], FileState | None]
    ) -> Stored:
        """Writes the bytes and gives them their name, unless it is plain beforehand that this will not do."""
        if isinstance(data, bytes):
            state = await self._threads.run(
                lambda: self._store_whole(data, begin, place) if fits() else None, then=self._temps.make_ready
            )
        elif await self._threads.run(fits):
            async with self._written(data, begin) as temp:
                state = await self._threads.run(lambda: place(temp))
        else:
            state = None
        if state is None:
            return Stored(Outcome.LOST, None, self._stamps.now())
        return Stored(Outcome.DONE, version_of(state), self._stamps.now())

    def _store_whole(
        self, data: bytes, begin: Callable[[], F], place: Callable[[F], FileState | None]
    ) -> FileState | None:
        temp = begin()
        try:
            self._files.write(temp.file, data)
            return place(temp)
        finally:
            self._temps.drop(temp)

    @asynccontextmanager
    async def _written(self, data: AsyncIterable[bytes], begin: Callable[[], F]) -> AsyncIterator[F]:
        """A file with bytes that come in pieces."""
        temp = await self._threads.run(begin, undo=self._temps.drop)
        try:
            piece = bytearray()
            async for chunk in data:
                piece += chunk
                if len(piece) >= CHUNK_BYTES:
                    await self._threads.run(partial(self._files.write, temp.file, bytes(piece)))
                    piece.clear()
            await self._threads.run(partial(self._files.write, temp.file, bytes(piece)))
            yield temp
        finally:
            await self._threads.run(lambda: self._temps.drop(temp))


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _info(key: str, state: FileState) -> ObjectInfo:
    return ObjectInfo(key, state.size, version_of(state), instant(state.stamp))


def _gone(key: str) -> Gone:
    return Gone(f"the object {key!r} is not there, or not in the version asked for", do="look for it again")
