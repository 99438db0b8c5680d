"""The due index: an empty file per record in the directory of its bucket, and the list of buckets there are.

An entry is on the disk before the record that it is for, and goes after it: a stale entry is looked at once and
removed, a missing one would be a record that nobody finds. One that this process has put on the disk and that is still
the same file need not be put there again. A bucket leaves the list only together with its directory,
and that only when it is empty, while nobody adds to any bucket. One that the list has lost is found by its directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from wrasse.backends.bucket.calendar import Calendar
from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import folder_path, record_path, stored_part
from wrasse.backends.directory.places import Places, parent
from wrasse.backends.directory.temps import Temps
from wrasse.backends.directory.walk import Sort, Walk
from wrasse.errors import StoreBroken
from wrasse.ports.records import Collection

_ENTRIES = Sort(stored_part, nested=False)
_ENTRY = b"{}"
LASTING_MAX = 4_096


class Buckets:
    """The due index of one collection. Entries are changed by whoever is alone with the record."""

    def __init__(self, files: Files, locks: Locks, temps: Temps, places: Places, collection: Collection) -> None:
        self._files = files
        self._locks = locks
        self._temps = temps
        self._places = places
        self.calendar = Calendar(collection.width)
        self.folder = folder_path(collection.index)
        self._list = folder_path(collection.buckets)
        self._lasting: dict[bytes, FileState] = {}  # entries that this process has put on the disk
        self._known: tuple[bytes, list[str]] = (b"[]", [])
        self._lock = b"buckets-" + hashlib.sha256(self._list).hexdigest()[:16].encode()

    @property
    def folders(self) -> tuple[bytes, bytes]:
        """The directories that must be there before anything can be entered."""
        return self.folder, parent(self._list)

    def enter(self, stored: bytes, bucket: str) -> None:
        """An entry for this record, on the disk. FileNotFoundError if the index has no directory yet."""
        entry = self._entry(stored, bucket)
        lasting = self._lasting.get(entry)
        if lasting is not None and self._files.state(entry) == lasting:
            return
        while not self._entered(entry, bucket):
            self._open(bucket)
        state = self._files.state(entry)  # before it is on the disk: what somebody changes later has other times
        folder = parent(entry)
        while folder != self.folder:  # more than one only for a name that was cut
            self._files.sync_folder(folder)
            folder = parent(folder)
        if len(self._lasting) >= LASTING_MAX:
            self._lasting.clear()
        if state is not None:
            self._lasting[entry] = state

    def leave(self, stored: bytes, bucket: str) -> None:
        """Takes the entry away; the record says otherwise by now."""
        entry = self._entry(stored, bucket)
        self._lasting.pop(entry, None)
        self._files.unlink(entry)
        self._places.prune(parent(entry), self._folder(bucket))

    def has(self, stored: bytes, bucket: str) -> bool:
        """Whether there is an entry."""
        return self._files.state(self._entry(stored, bucket)) is not None

    def over(self, horizon: datetime, first: str) -> Iterator[str]:
        """Buckets that are over, earliest first, from `first` on."""
        for bucket in self._discovered():
            if bucket >= first and self.calendar.is_over(bucket, horizon):
                yield bucket

    def walk(self, bucket: str, after: bytes | None) -> Walk:
        """The stored names in one bucket."""
        return Walk(self._files, _ENTRIES, self._folder(bucket), b"", b"", after)

    def is_entry(self, stored: bytes, path: bytes, bucket: str) -> bool:
        """Whether this path is that of the entry, and not something foreign."""
        return self._entry(stored, bucket) == path

    def retire(self, bucket: str) -> None:
        """Drops a bucket if it is empty."""
        with self._locks.file(self._lock):
            folder = self._folder(bucket)
            if self._removed(folder) or self._files.state(folder) is None:
                self._store([each for each in self._load() if each != bucket])

    def _removed(self, folder: bytes) -> bool:
        for name, is_folder in list(self._files.names(folder)):
            if not is_folder or not self._removed(folder + b"/" + name):  # what a crash left of a name that was cut
                return False
        return self._files.remove_folder(folder)

    def _entered(self, entry: bytes, bucket: str) -> bool:
        """Makes the entry, if the bucket is open; while this goes on none is retired."""
        with self._locks.file(self._lock, shared=True):
            if not self._is_open(bucket):
                return False
            self._make_folders(parent(entry), self._folder(bucket))
            with suppress(FileExistsError):
                file = self._files.create(entry)
                try:
                    self._files.write(file, _ENTRY)
                finally:
                    self._files.close(file)
            return True

    def _discovered(self) -> list[str]:
        """The list, with buckets put back that are there and not on it: somebody restored or deleted the list. One
        look at one directory, which has a name per hour."""
        listed = self._load()
        if self._folders() <= set(listed):
            return listed
        with self._locks.file(self._lock):
            listed = sorted({*self._load(), *self._folders()})
            self._store(listed)
            return listed

    def _folders(self) -> set[str]:
        names = [name.decode("utf-8", "replace") for name, is_folder in self._files.names(self.folder) if is_folder]
        return {name for name in names if self.calendar.is_one(name)}

    def _is_open(self, bucket: str) -> bool:
        return bucket in self._load() and self._files.state(self._folder(bucket)) is not None

    def _open(self, bucket: str) -> None:
        """The list first: a directory that is not in it would stay for ever. Both are on the disk before anybody
        else may look."""
        with self._locks.file(self._lock):
            listed = self._load()
            if bucket not in listed:
                self._store(sorted([*listed, bucket]))
            with suppress(FileExistsError):
                self._files.make_folder(self._folder(bucket))
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
            return self.calendar.parse(packed) or []
        except ValueError:
            raise self._broken() from None

    def _store(self, listed: list[str]) -> None:
        with self._temps.holding(self.calendar.pack(listed), renamed=True) as temp:
            self._files.rename(temp.path, self._list)
            self._files.sync_folder(parent(self._list))

    def _folder(self, bucket: str) -> bytes:
        return self.folder + b"/" + bucket.encode()

    def _entry(self, stored: bytes, bucket: str) -> bytes:
        return self._folder(bucket) + b"/" + record_path(stored)

    def _broken(self) -> StoreBroken:
        where = self._list.decode("utf-8", "replace")
        return StoreBroken(
            f"the list of buckets {where} in {self._files.root} is of another width",
            do="restore the file, or write a JSON list of the directories beside it; until then nothing is due",
        )
