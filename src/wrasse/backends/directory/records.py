"""Records as JSON files: `<data>/<stored name>.json`, found when due through `<index>/<bucket>/<stored name>`.

The port's promises hold between processes and through a crash at any point.

Each change is a sequence of steps, in an order that makes a crash between any two of them harmless.

    create, put   the entry of the due index on disk; the record on disk under its name; then the old entry is removed
    delete        the last writes are kept for retries; the record is removed; then its entry

Every change holds the record's lock, between processes. Readers need no lock: a record's file is replaced atomically.
Everything here blocks; it runs in threads.

The due index has an empty file per record in the directory of its due bucket, and the list of existing buckets. An
entry is on disk before its record, and is removed after it: a stale entry is checked once and removed, while a missing
one would be a record that is never found. An entry that this process has synced to disk and that is still the same file
is not synced again. A bucket leaves the list only together with its directory, and only when it is empty, under a lock
against new entries. A bucket that is missing from the list is found by its directory.

Tombstones keep the last writes to keys whose record was deleted, so that a retry after a lost reply stays safe: in one
small file for each of 256 groups of keys, the same groups as the locks. It is read and replaced under the key's lock.
Each keeps the newest GONE_MAX deleted keys, and whether older ones were dropped. A file that cannot be read counts as
if all were dropped: then the answer is `unknown`, which is true.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import msgspec

from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import RECORD_SUFFIX, WORKPLACE, folder_path, record_path, stored_part
from wrasse.backends.directory.object_paths import TRIES, ObjectPaths, parent, unsteady
from wrasse.backends.directory.temp_files import TempFiles
from wrasse.backends.directory.threads import Threads
from wrasse.backends.directory.walk import Listings, Sort, Walk, WalkedPage
from wrasse.backends.record_files import (
    CORRUPT,
    Answer,
    DueBuckets,
    DueCursor,
    LastWrites,
    RecordChange,
    StoredRecord,
    Write,
    listed,
    pack,
    unpack,
)
from wrasse.clock import Clock
from wrasse.errors import StoreBroken
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import META, Collection, namespace_of, page_of

TOMBSTONES = WORKPLACE + b"/gone"
GONE_MAX = 40  # deleted keys of a group
LASTING_MAX = 4_096  # synced entries that a process remembers
_RECORDS = Sort(stored_part, nested=False, suffix=RECORD_SUFFIX)
_ENTRIES = Sort(stored_part, nested=False)
_ENTRY = b"{}"


class ThreadedRecords:
    """The files of one collection, accessed in threads."""

    def __init__(self, threads: Threads, files: RecordFiles) -> None:
        self._threads, self._files = threads, files

    async def get(self, stored: bytes, entering: datetime | None = None) -> StoredRecord | None:
        return await self._threads.run(lambda: self._files.get(stored))

    async def write(self, change: RecordChange) -> Answer:
        return await self._threads.run(lambda: self._files.write(change))

    async def leave(self, stored: bytes, due_at: datetime) -> None:
        await self._threads.run(lambda: self._files.leave(stored, due_at))

    async def page(
        self, prefix: bytes, after: bytes | None, limit: int
    ) -> tuple[Sequence[tuple[bytes, StoredRecord]], bool]:
        found = await self._threads.run(lambda: self._files.page(prefix, after, limit))
        return found.found, found.more

    async def due(
        self, horizon: datetime, after: DueCursor | None, limit: int
    ) -> tuple[Sequence[tuple[DueCursor, StoredRecord]], bool]:
        return await self._threads.run(lambda: self._files.due(horizon, after, limit))


class RecordFiles:
    """The records of one collection, by stored name."""

    def __init__(
        self, files: Files, locks: Locks, temp_files: TempFiles, places: ObjectPaths, collection: Collection
    ) -> None:
        self._files = files
        self._locks = locks
        self._temp_files = temp_files
        self._places = places
        self._folder = folder_path(collection.data)
        self._buckets = DirectoryDueIndex(files, locks, temp_files, places, collection)
        self._gone = Tombstones(files, temp_files)
        self._listings = Listings(files)
        self._tended = collection.tended

    def get(self, stored: bytes) -> StoredRecord | None:
        """The record as it is now."""
        return self._load(self._path(stored))

    def write(self, change: RecordChange) -> Answer:
        """Makes the change, if its condition holds."""
        for _ in range(TRIES):
            try:
                with self._locks.held(self._path(change.stored)):
                    return self._write(change)
            except FileNotFoundError:
                # The first write of a collection, or another process removed an empty directory. Not inside the lock:
                # making the directory may need the lock of another name.
                for folder in (parent(self._path(change.stored)), *self._buckets.folders):
                    self._places.make_room(folder)
        raise unsteady(self._files)

    def leave(self, stored: bytes, due_at: datetime) -> None:
        """Removes an entry that a change left, unless the record needs it again."""
        self._remove_stale(stored, self._buckets.due_buckets.due_bucket(due_at))

    def page(self, prefix: bytes, after: bytes | None, limit: int) -> WalkedPage[StoredRecord]:
        """Records whose stored name starts with `prefix`, in order."""

        def begin() -> Walk:
            return Walk(self._files, _RECORDS, self._folder, b"", prefix, after)

        def read(stored: bytes, path: bytes) -> StoredRecord | None:
            return self._listed(path) if path == self._path(stored) else None

        return self._listings.cut(prefix, after, limit, begin, read)

    def due(
        self, horizon: datetime, after: DueCursor | None, limit: int
    ) -> tuple[list[tuple[DueCursor, StoredRecord]], bool]:
        """Records whose bucket has passed at the horizon, earliest bucket first, and whether there are more."""
        found: list[tuple[DueCursor, StoredRecord]] = []
        for due_bucket in self._buckets.over(horizon, "" if after is None else after.due_bucket):
            start = after.stored if after is not None and after.due_bucket == due_bucket else None
            empty = start is None
            for cursor, kept in self._due_in(due_bucket, start):
                if len(found) == limit:
                    return found, True
                found.append((cursor, kept))
                empty = False
            if empty:
                self._buckets.retire(due_bucket)
        return found, False

    def _due_in(self, due_bucket: str, after: bytes | None) -> Iterator[tuple[DueCursor, StoredRecord]]:
        walk = self._buckets.walk(due_bucket, after)
        while (cursor := walk.next()) is not None:
            stored, path = cursor
            if not self._buckets.is_entry(stored, path, due_bucket):
                continue
            kept = self._listed(self._path(stored))
            if kept is not None and self._due_bucket_of(kept) == due_bucket:
                yield DueCursor(due_bucket, stored), kept
            elif kept is not None and (self._tended or kept.version == CORRUPT):
                yield DueCursor(due_bucket, stored), replace(kept, due_at=self._buckets.due_buckets.begin(due_bucket))
            else:
                self._remove_stale(stored, due_bucket)

    def _remove_stale(self, stored: bytes, due_bucket: str) -> None:
        # Under the record's lock: a writer makes the entry first, and its record may be about to follow.
        with self._locks.held(self._path(stored)):
            if self._due_bucket_of(self._load(self._path(stored))) != due_bucket:
                self._buckets.leave(stored, due_bucket)

    def _write(self, change: RecordChange) -> Answer:
        path = self._path(change.stored)
        before = self._load(path)
        writes = self._gone.writes(path) if before is None else before.writes
        answer = writes.answer(change.nonce, change.at, None if before is None else before.version)
        if answer is not None:
            return answer
        if change.value is None:
            assert before is not None, "a delete names the version of a record"
            return self._delete(change, before)
        version = secrets.token_hex(12)
        after = StoredRecord(change.value, version, change.due_at, writes.and_then(change.nonce, version))
        self._store(change.stored, before, after, change.entry_stays)
        return Outcome.DONE, version

    def _store(self, stored: bytes, before: StoredRecord | None, after: StoredRecord, entry_stays: bool) -> None:
        path, old, new = self._path(stored), self._due_bucket_of(before), self._due_bucket_of(after)
        if new is not None and (new != old or not self._buckets.has(stored, new)):
            self._buckets.enter(stored, new)
        with self._temp_files.small_file(pack(after), renamed=before is not None) as temp_file:
            name: Callable[[bytes, bytes], None] = self._files.link if before is None else self._files.rename
            name(temp_file.path, path)
            self._places.sync(parent(path))
        if old is not None and old != new and not entry_stays:
            self._buckets.leave(stored, old)

    def _delete(self, change: RecordChange, before: StoredRecord) -> Answer:
        path, old = self._path(change.stored), self._due_bucket_of(before)
        self._gone.keep(path, before.writes.and_then(change.nonce, None))
        self._files.unlink(path)
        self._places.sync(parent(path))
        if old is not None:
            self._buckets.leave(change.stored, old)
        self._places.prune(parent(path), self._folder)
        return Outcome.DONE, None

    def _due_bucket_of(self, kept: StoredRecord | None) -> str | None:
        if kept is None or kept.due_at is None:
            return None
        return self._buckets.due_buckets.due_bucket(kept.due_at)

    def _listed(self, path: bytes) -> StoredRecord | None:
        packed = self._files.load(path)
        return None if packed is None else listed(packed)

    def _load(self, path: bytes) -> StoredRecord | None:
        packed = self._files.load(path)
        if packed is None:
            return None
        try:
            return unpack(packed)
        except ValueError:
            raise StoreBroken(
                f"the record in {path.decode('utf-8', 'replace')} in {self._files.root} is corrupt or foreign",
                do="restore the file from a backup, or move it out of the directory",
            ) from None

    def _path(self, stored: bytes) -> bytes:
        return self._folder + b"/" + record_path(stored) + RECORD_SUFFIX


class DirectoryDueIndex:
    """The due index of one collection. Entries are changed under the record's lock."""

    def __init__(
        self, files: Files, locks: Locks, temp_files: TempFiles, places: ObjectPaths, collection: Collection
    ) -> None:
        self._files = files
        self._locks = locks
        self._temp_files = temp_files
        self._places = places
        self.due_buckets = DueBuckets(collection.width)
        self.folder = folder_path(collection.index)
        self._list = folder_path(collection.buckets)
        self._lasting: dict[bytes, FileState] = {}  # entries that this process has synced to disk
        self._known: tuple[bytes, list[str]] = (b"[]", [])
        self._lock = b"buckets-" + hashlib.sha256(self._list).hexdigest()[:16].encode()

    @property
    def folders(self) -> tuple[bytes, bytes]:
        """The directories that must exist before anything can be entered."""
        return self.folder, parent(self._list)

    def enter(self, stored: bytes, due_bucket: str) -> None:
        """Adds an entry for this record, on disk. FileNotFoundError if the index has no directory yet."""
        entry = self._entry(stored, due_bucket)
        lasting = self._lasting.get(entry)
        if lasting is not None and self._files.state(entry) == lasting:
            return
        while not self._entered(entry, due_bucket):
            self._open(due_bucket)
        state = self._files.state(entry)  # before the sync: a later change by another process has other times
        folder = parent(entry)
        while folder != self.folder:  # more than one only for a name that was cut
            self._files.sync_folder(folder)
            folder = parent(folder)
        if len(self._lasting) >= LASTING_MAX:
            self._lasting.clear()
        if state is not None:
            self._lasting[entry] = state

    def leave(self, stored: bytes, due_bucket: str) -> None:
        """Removes the entry; the record has another due time by now."""
        entry = self._entry(stored, due_bucket)
        self._lasting.pop(entry, None)
        self._files.unlink(entry)
        self._places.prune(parent(entry), self._folder(due_bucket))

    def has(self, stored: bytes, due_bucket: str) -> bool:
        """Whether there is an entry."""
        return self._files.state(self._entry(stored, due_bucket)) is not None

    def over(self, horizon: datetime, first: str) -> Iterator[str]:
        """Buckets that are over, earliest first, from `first` on."""
        for due_bucket in self._discovered():
            if due_bucket >= first and self.due_buckets.is_over(due_bucket, horizon):
                yield due_bucket

    def walk(self, due_bucket: str, after: bytes | None) -> Walk:
        """The stored names in one bucket."""
        return Walk(self._files, _ENTRIES, self._folder(due_bucket), b"", b"", after)

    def is_entry(self, stored: bytes, path: bytes, due_bucket: str) -> bool:
        """Whether this path is that of the entry, and not a foreign file."""
        return self._entry(stored, due_bucket) == path

    def retire(self, due_bucket: str) -> None:
        """Removes a bucket from the list if it is empty."""
        with self._locks.file(self._lock):
            folder = self._folder(due_bucket)
            if self._removed(folder) or self._files.state(folder) is None:
                self._store([each for each in self._load() if each != due_bucket])

    def _removed(self, folder: bytes) -> bool:
        for name, is_folder in list(self._files.names(folder)):
            if not is_folder or not self._removed(folder + b"/" + name):  # a crash left part of a name that was cut
                return False
        return self._files.remove_folder(folder)

    def _entered(self, entry: bytes, due_bucket: str) -> bool:
        """Makes the entry, if the bucket is listed; no bucket is retired meanwhile."""
        with self._locks.file(self._lock, shared=True):
            folder = self._folder(due_bucket)
            if due_bucket not in self._load() or self._files.state(folder) is None:
                return False
            self._make_folders(parent(entry), folder)
            with suppress(FileExistsError):
                file = self._files.create(entry)
                try:
                    self._files.write(file, _ENTRY)
                finally:
                    self._files.close(file)
            return True

    def _discovered(self) -> list[str]:
        """The list, with existing buckets put back that are missing from it, as after a restore or a deletion of the
        list. This reads one directory, which has a name per hour."""
        listed = self._load()
        if self._folders() <= set(listed):
            return listed
        with self._locks.file(self._lock):
            listed = sorted({*self._load(), *self._folders()})
            self._store(listed)
            return listed

    def _folders(self) -> set[str]:
        names = [name.decode("utf-8", "replace") for name, is_folder in self._files.names(self.folder) if is_folder]
        return {name for name in names if self.due_buckets.is_one(name)}

    def _open(self, due_bucket: str) -> None:
        """Writes the list first: a directory that is missing from it would stay for ever. Both are on disk before the
        lock is released."""
        with self._locks.file(self._lock):
            listed = self._load()
            if due_bucket not in listed:
                self._store(sorted([*listed, due_bucket]))
            with suppress(FileExistsError):
                self._files.make_folder(self._folder(due_bucket))
            self._files.sync_folder(self.folder)

    def _make_folders(self, folder: bytes, stop: bytes) -> None:
        missing = []
        while folder != stop:
            missing.append(folder)
            folder = parent(folder)
        for each in reversed(missing):
            with suppress(FileExistsError):
                self._files.make_folder(each)

    def _load(self) -> list[str]:
        packed = self._files.load(self._list)
        if packed is None:
            return []
        known, listed = self._known
        if packed != known:
            listed = self._parse(packed)
            self._known = (packed, listed)
        return listed

    def _parse(self, packed: bytes) -> list[str]:
        try:
            return self.due_buckets.parse(packed) or []
        except ValueError:
            raise self._broken() from None

    def _store(self, listed: list[str]) -> None:
        with self._temp_files.small_file(self.due_buckets.pack(listed), renamed=True) as temp_file:
            self._files.rename(temp_file.path, self._list)
            self._files.sync_folder(parent(self._list))

    def _folder(self, due_bucket: str) -> bytes:
        return self.folder + b"/" + due_bucket.encode()

    def _entry(self, stored: bytes, due_bucket: str) -> bytes:
        return self._folder(due_bucket) + b"/" + record_path(stored)

    def _broken(self) -> StoreBroken:
        where = self._list.decode("utf-8", "replace")
        return StoreBroken(
            f"the list of buckets {where} in {self._files.root} is of another width",
            do="restore the file, or write a JSON list of the directories beside it; until then nothing is due",
        )


class _DeletedKey(msgspec.Struct):
    hash: str
    writes: list[Write]
    whole: bool


class _KeyGroup(msgspec.Struct):
    forgot: bool = False
    keys: list[_DeletedKey] = []  # oldest first


_decode_group = msgspec.json.Decoder(_KeyGroup).decode


class Tombstones:
    """The last writes to keys without a record. The caller holds the key's lock."""

    def __init__(self, files: Files, temp_files: TempFiles) -> None:
        self._files = files
        self._temp_files = temp_files

    def writes(self, path: bytes) -> LastWrites:
        """The last writes to the record that had this path."""
        hash, group = _hash(path), self._load(_file(path))
        for key in group.keys:
            if key.hash == hash:
                return LastWrites(tuple(key.writes), key.whole)
        return LastWrites(whole=not group.forgot)

    def keep(self, path: bytes, writes: LastWrites) -> None:
        """Stores them on disk."""
        hash, file = _hash(path), _file(path)
        group = self._load(file)
        keys = [*(key for key in group.keys if key.hash != hash), _DeletedKey(hash, list(writes.kept), writes.whole)]
        kept = _KeyGroup(group.forgot or len(keys) > GONE_MAX, keys[-GONE_MAX:])
        with self._temp_files.small_file(msgspec.json.encode(kept), renamed=True) as temp_file:
            self._files.rename(temp_file.path, file)
            self._files.sync_folder(TOMBSTONES)

    def _load(self, file: bytes) -> _KeyGroup:
        packed = self._files.load(file)
        if packed is None:
            return _KeyGroup()
        try:
            return _decode_group(packed)
        except ValueError:
            return _KeyGroup(forgot=True)


def _hash(path: bytes) -> str:
    return hashlib.sha256(path).hexdigest()


def _file(path: bytes) -> bytes:
    return TOMBSTONES + b"/" + _hash(path)[:2].encode() + b".json"


class DirectoryNamespaces:
    """The directories at the root that hold records of keys."""

    def __init__(self, threads: Threads, files: Files, clock: Clock) -> None:
        self._threads, self._files, self._clock = threads, files, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        return page_of(await self._threads.run(self._found), after, limit, self._clock.now())

    def _found(self) -> list[str]:
        names = []
        for raw, is_folder in self._files.names(b"."):
            name = raw.decode("utf-8", "surrogateescape")
            if is_folder and namespace_of(name + META) and self._files.state(folder_path(name + META)) is not None:
                names.append(name)
        return names
