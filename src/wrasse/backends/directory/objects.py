"""Objects as plain files at readable paths: `archive/audit/x.jsonl.gz` is that file, for any other tool to read.

The port's promises hold between processes and through a crash at any point. Bytes are streamed in both directions:
memory does not grow with the size of an object. Plain files of other tools are objects, too; symbolic links are not,
and a listing does not follow them.

Each change is a sequence of steps, in an order that makes a crash between any two of them harmless.

    create    bytes on disk; metadata on disk; the name by link, which has one winner; the directory on disk
    replace   the same, but the name by rename, under the name's lock and only if the version is still the expected one
    copy      under the name's lock; metadata on disk; a second name by link: one file, and no bytes are copied
    delete    under the name's lock, likewise; then its metadata; then directories that became empty

The version of an object is the timestamp that this backend sets on its file and the file's number: both stay when a
name is linked or renamed. Everything here blocks; it runs in threads.

Metadata is in a file beside the object, named for the object's timestamp; an object without metadata has no such file.
The data file selects its metadata: when a write gives it its name, the metadata of that timestamp is already on disk,
and the earlier metadata is no longer used. The name ends in a suffix of its own, so that a glob for the objects
(`*.jsonl.gz`) matches objects only. Earlier versions wrote it without that suffix: such files are read and removed,
never written. They are checked for each time (about 6 µs of a head's 80 µs): no marker in the store can rule them out,
since a process of an earlier version may still write there, and a copied directory may contain them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar

from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import SIDECAR, path_of, prefix_path, segment_of
from wrasse.backends.directory.object_paths import TRIES, ObjectPath, ObjectPaths, parent, unsteady
from wrasse.backends.directory.temp_files import Blank, TempFile, TempFiles, Timestamps, instant
from wrasse.backends.directory.threads import Threads
from wrasse.backends.directory.walk import Listings, Sort, Walk, WalkedPage
from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken
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

_TRIES = 100
_SUFFIX = b".meta"
_OBJECTS = Sort(segment_of, nested=True)
F = TypeVar("F", TempFile, TempFile | Blank)


class MetadataFiles:
    """Writes, reads and removes the metadata of objects. Objects are named by their path."""

    def __init__(self, files: Files, locks: Locks, temp_files: TempFiles, places: ObjectPaths) -> None:
        self._files = files
        self._locks = locks
        self._temp_files = temp_files
        self._places = places

    @contextmanager
    def ahead(self, path: bytes, timestamp: int, metadata: Mapping[str, str]) -> Iterator[None]:
        """Metadata on disk before the object of this timestamp gets its name, and removed again if it gets none."""
        if not metadata:
            yield
            return
        with self._temp_files.small_file(_pack(path, timestamp, metadata), mark=True) as temp_file:
            try:
                self._link(temp_file.path, metadata_names(path, timestamp)[0])
                yield
            finally:
                self._drop_unless_selected(path, timestamp)

    def read(self, path: bytes, timestamp: int) -> Mapping[str, str] | None:
        """The metadata of the object of this timestamp; None if there is none."""
        for name in metadata_names(path, timestamp):
            packed = self._files.load(name)
            if packed is not None:
                return self._unpack(packed)[2]
        return None

    def taken(self, path: bytes, timestamp: int) -> bool:
        """Whether there is metadata of this timestamp already."""
        return any(self._files.state(name) is not None for name in metadata_names(path, timestamp))

    @contextmanager
    def after(self, path: bytes, place: ObjectPath) -> Iterator[None]:
        """The block removes the object; its metadata is removed afterwards."""
        timestamp = place.state.timestamp
        name = next((name for name in metadata_names(path, timestamp) if self._files.state(name) is not None), None)
        if name is None:
            yield
            return
        with self._temp_files.marked(name):
            yield
            self._places.sync(parent(place.path))  # the object must not come back without its metadata
            self._drop_unless_selected(path, timestamp)

    def useless(self, packed: bytes) -> None:
        """Removes the metadata that a crash left, if no object selects it."""
        try:
            path, timestamp, _ = self._unpack(packed)
        except StoreBroken:
            return  # cut short by the crash, and so never renamed into place
        with self._locks.held(path):
            self._drop_unless_selected(path, timestamp)

    def _drop_unless_selected(self, path: bytes, timestamp: int) -> None:
        with self._places.settled():
            place = self._places.find(path)
            if place is None or place.state.timestamp != timestamp:
                for name in metadata_names(path, timestamp):
                    self._files.unlink(name)

    def _link(self, temp_file: bytes, name: bytes) -> None:
        for _ in range(_TRIES):
            try:
                self._files.link(temp_file, name)
                self._files.sync_folder(parent(name))
                return
            except (FileNotFoundError, NotADirectoryError):
                self._places.make_room(parent(name))
        raise unsteady(self._files)

    def _unpack(self, packed: bytes) -> tuple[bytes, int, Mapping[str, str]]:
        try:
            found = json.loads(packed)
            metadata = {str(name): str(value) for name, value in found["metadata"].items()}
            return found["path"].encode("utf-8", "surrogateescape"), int(found["stamp"]), metadata
        except (AttributeError, *UNREADABLE):
            raise StoreBroken(
                f"the metadata of an object in {self._files.root} is corrupt",
                do="restore it from a backup, or write the object again",
            ) from None


def metadata_names(path: bytes, timestamp: int) -> tuple[bytes, bytes]:
    """Where the metadata of the object of this timestamp is, in the same directory, and where older releases put it."""
    folder, slash, name = path.rpartition(b"/")
    old = b"%s%s%s%016x.%s" % (folder, slash, SIDECAR, timestamp, name)
    return old + _SUFFIX, old


def _pack(path: bytes, timestamp: int, metadata: Mapping[str, str]) -> bytes:
    # The escaped form keeps names that are no UTF-8.
    where = path.decode("utf-8", "surrogateescape")
    return json.dumps({"path": where, "stamp": timestamp, "metadata": dict(metadata)}).encode()


class ObjectFiles:
    """The objects of one root, by the path of their key."""

    def __init__(
        self, files: Files, locks: Locks, temp_files: TempFiles, timestamps: Timestamps, places: ObjectPaths
    ) -> None:
        self._files = files
        self._locks = locks
        self._temp_files = temp_files
        self._timestamps = timestamps
        self._places = places
        self._metadata_files = MetadataFiles(files, locks, temp_files, places)
        self._listings = Listings(files)

    def state(self, path: bytes) -> FileState | None:
        """The object's current state."""
        with self._places.settled():
            place = self._places.find(path)
        return None if place is None else place.state

    def head(self, path: bytes) -> tuple[FileState, Mapping[str, str]] | None:
        """The object and its metadata, of one version."""
        with self._files.many():
            state = self.state(path)
            while state is not None:
                metadata = self._metadata_files.read(path, state.timestamp)
                if metadata is not None:
                    return state, metadata
                # It has none, or the metadata was removed with the version read above.
                before, state = state, self.state(path)
                if state == before:
                    return state, {}
            return None

    def open(self, path: bytes) -> tuple[int, FileState] | None:
        """The object's file, open; its bytes stay readable whatever happens to the name."""
        with self._places.settled():
            return self._places.open(path)

    def create(self, path: bytes, temp_file: TempFile | Blank, metadata: Mapping[str, str]) -> FileState | None:
        """Gives a written file its name; None if there is an object already."""
        timestamp = self._timestamp(path)
        state = self._finish(temp_file, timestamp)
        if not metadata:
            return state if self._link(temp_file, path) else None
        with self._metadata_files.ahead(path, timestamp, metadata):
            return state if self._link(temp_file, path) else None

    def replace(self, path: bytes, temp_file: TempFile, at: str, metadata: Mapping[str, str]) -> FileState | None:
        """Gives a written file the name of an object; None if that is not of version `at`."""
        seen = timestamp_of(at)
        if seen is None:
            return None
        timestamp = self._timestamp(path, above=seen)
        state = self._finish(temp_file, timestamp)
        with self._locks.held(path), self._places.settled():
            place = self._places.find(path)
            if place is None or version_of(place.state) != at:
                return None
            with self._metadata_files.ahead(path, timestamp, metadata), self._metadata_files.after(path, place):
                self._files.rename(temp_file.path, place.path)
                self._files.sync_folder(parent(place.path))
        return state

    def copy(self, path: bytes, target: bytes, at: str) -> Outcome:
        """Gives an object's file a second name; a later write to one of the two names gives it a file of its own."""
        if not self._temp_files.blanks:
            return Outcome.FAILED  # an open file cannot be linked here, and its path may change meanwhile
        with self._locks.held(path):
            opened = self.open(path)
            if opened is None:
                return Outcome.CONFLICT
            file, state = opened
            try:
                if version_of(state) != at:
                    return Outcome.CONFLICT
                metadata = self._metadata_files.read(path, state.timestamp) or {}
                with self._metadata_files.ahead(target, state.timestamp, metadata):
                    return Outcome.DONE if self._link(Blank(file), target) else Outcome.CONFLICT
            except PermissionError:
                return Outcome.FAILED  # some systems do not allow a link to another user's file
            finally:
                self._files.close(file)

    def delete(self, deletes: Sequence[tuple[bytes, str]]) -> list[Outcome]:
        """Deletes objects, each if it has the expected version."""
        outcomes: list[Outcome] = []
        folders: set[bytes] = set()
        with self._files.many():
            for path, version in deletes:
                try:
                    folder = self._delete(path, version)
                except PermissionError:
                    outcomes.append(Outcome.FAILED)
                    continue
                outcomes.append(Outcome.CONFLICT if folder is None else Outcome.DONE)
                folders |= {folder} if folder is not None else set()
        # One sync per directory instead of one per object; outcomes are returned only after it.
        for emptied in folders:
            self._places.sync(emptied)
            with self._places.settled():
                self._places.prune(emptied)
        return outcomes

    def page(self, prefix: bytes, after: bytes | None, limit: int) -> WalkedPage[FileState]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        folder, key = prefix_path(prefix)

        def begin() -> Walk:
            return Walk(self._files, _OBJECTS, folder, key, prefix, after)

        with self._places.settled(), self._files.many():
            return self._listings.cut(prefix, after, limit, begin, self._look)

    def clean(self) -> int:
        """Removes the leftovers of writers that died more than an hour ago."""
        return self._temp_files.clean(self._metadata_files.useless)

    def _look(self, key: bytes, path: bytes) -> FileState | None:
        if path_of(key) != path:
            return None  # no key has this name: foreign
        place = self._places.find(path)
        return None if place is None else place.state

    def _timestamp(self, path: bytes, above: int = 0) -> int:
        timestamp = self._timestamps.next(above)
        while self._metadata_files.taken(path, timestamp):
            timestamp = self._timestamps.next(above)  # another process has written at the same nanosecond
        return timestamp

    def _finish(self, temp_file: TempFile | Blank, timestamp: int) -> FileState:
        self._files.set_timestamp(temp_file.file, timestamp)
        state = self._files.state_of(temp_file.file)
        self._files.sync(temp_file.file)
        return state

    def _link(self, temp_file: TempFile | Blank, path: bytes) -> bool:
        for _ in range(TRIES):
            try:
                with self._places.settled():
                    target = self._linked(temp_file, path)
                    if target is not None:
                        self._places.sync(parent(target))
                    return target is not None
            except FileExistsError:
                continue  # it changed between two reads
            except (FileNotFoundError, NotADirectoryError):
                self._places.make_room(parent(path))
        raise unsteady(self._files)

    def _linked(self, temp_file: TempFile | Blank, path: bytes) -> bytes | None:
        """The path that the file got; None if there is an object already."""
        try:
            self._name(temp_file, path)
            return path
        except FileExistsError:
            target = self._places.free(path)
            if target is not None:
                self._name(temp_file, target)
            return target

    def _name(self, temp_file: TempFile | Blank, target: bytes) -> None:
        if isinstance(temp_file, Blank):
            self._files.name(temp_file.file, target)
        else:
            self._files.link(temp_file.path, target)

    def _delete(self, path: bytes, version: str) -> bytes | None:
        """The directory that the object was in; None if it has another version or does not exist."""
        with self._locks.held(path), self._places.settled():
            place = self._places.find(path)
            if place is None or version_of(place.state) != version:
                return None
            with self._metadata_files.after(path, place):
                self._files.unlink(place.path)
            return parent(place.path)


def version_of(state: FileState) -> str:
    """The version of an object with this file."""
    return f"{state.timestamp:x}.{state.inode:x}"


def timestamp_of(version: str) -> int | None:
    """The timestamp in a version; None if this backend did not make it."""
    try:
        return int(version.partition(".")[0], 16)
    except ValueError:
        return None


class DirectoryObjects:
    """The objects of one directory, accessed in threads."""

    multipart = versions = None

    def __init__(
        self, threads: Threads, files: Files, temp_files: TempFiles, timestamps: Timestamps, objects: ObjectFiles
    ) -> None:
        self.copies: Copies = self
        self._threads = threads
        self._files = files
        self._temp_files = temp_files
        self._timestamps = timestamps
        self._objects = objects

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        check_object_key(key)
        check_metadata(metadata)
        path = path_of(raw_key(key))
        return await self._store(
            data,
            lambda: self._objects.state(path) is None,
            self._temp_files.blank,
            lambda temp_file: self._objects.create(path, temp_file, metadata),
        )

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        check_object_key(key)
        check_metadata(metadata)
        path = path_of(raw_key(key))

        def fits() -> bool:
            state = self._objects.state(path)
            return state is not None and version_of(state) == at

        return await self._store(
            data, fits, self._temp_files.begin, lambda temp_file: self._objects.replace(path, temp_file, at, metadata)
        )

    async def head(self, key: str) -> ObjectHead | None:
        check_object_key(key)
        found = await self._threads.run(lambda: self._objects.head(path_of(raw_key(key))))
        return None if found is None else ObjectHead(_info(key, found[0]), found[1])

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        check_object_key(key)
        opened = await self._threads.run(lambda: self._objects.open(path_of(raw_key(key))), undo=self._close)
        if opened is None:
            raise gone(key)
        file, state = opened
        try:
            if at is not None and version_of(state) != at:
                raise gone(key)
            offset = 0
            while chunk := await self._threads.run(partial(self._files.read, file, CHUNK_BYTES, offset)):
                offset += len(chunk)
                yield chunk
            # This backend never writes into a file that has its name; another program may.
            if await self._threads.run(lambda: self._files.state_of(file)) != state:
                raise gone(key)
        finally:
            self._files.close(file)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        check_limit(limit, "objects")
        start = None if after is None else raw_key(after)
        found = await self._threads.run(lambda: self._objects.page(raw_key(prefix), start, limit))
        infos = tuple(_info(key.decode("utf-8", "surrogateescape"), state) for key, state in found.found)
        return Page(infos, tuple(info.key for info in infos), self._timestamps.now(), found.more)

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        check_object_key(key)
        check_object_key(to)
        return await self._threads.run(lambda: self._objects.copy(path_of(raw_key(key)), path_of(raw_key(to)), at))

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        check_deletes(deletes)
        named = [(path_of(raw_key(each.key)), each.version) for each in deletes]
        return await self._threads.run(lambda: self._objects.delete(named))

    def _close(self, opened: tuple[int, FileState] | None) -> None:
        if opened is not None:
            self._files.close(opened[0])

    async def _store(
        self, data: Data, fits: Callable[[], bool], begin: Callable[[], F], place: Callable[[F], FileState | None]
    ) -> WriteResult:
        """Writes the bytes and gives them their name, unless the condition already fails."""
        if isinstance(data, bytes):
            state = await self._threads.run(
                lambda: self._store_whole(data, begin, place) if fits() else None, then=self._temp_files.make_ready
            )
        elif await self._threads.run(fits):
            async with self._written(data, begin) as temp_file:
                state = await self._threads.run(lambda: place(temp_file))
        else:
            state = None
        if state is None:
            return WriteResult(Outcome.CONFLICT, None, self._timestamps.now())
        return WriteResult(Outcome.DONE, version_of(state), self._timestamps.now())

    def _store_whole(
        self, data: bytes, begin: Callable[[], F], place: Callable[[F], FileState | None]
    ) -> FileState | None:
        temp_file = begin()
        try:
            self._files.write(temp_file.file, data)
            return place(temp_file)
        finally:
            self._temp_files.drop(temp_file)

    @asynccontextmanager
    async def _written(self, data: AsyncIterable[bytes], begin: Callable[[], F]) -> AsyncIterator[F]:
        """A file with bytes that arrive in chunks."""
        temp_file = await self._threads.run(begin, undo=self._temp_files.drop)
        try:
            piece = bytearray()
            async for chunk in data:
                piece += chunk
                if len(piece) >= CHUNK_BYTES:
                    await self._threads.run(partial(self._files.write, temp_file.file, bytes(piece)))
                    piece.clear()
            await self._threads.run(partial(self._files.write, temp_file.file, bytes(piece)))
            yield temp_file
        finally:
            await self._threads.run(lambda: self._temp_files.drop(temp_file))


def _info(key: str, state: FileState) -> ObjectInfo:
    return ObjectInfo(key, state.size, version_of(state), instant(state.timestamp))
