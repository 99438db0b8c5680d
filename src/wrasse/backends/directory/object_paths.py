"""Where an object is stored: a plain file at its path, or `%o` inside the directory of that name.

Invariant: a name is a file or a directory, never both, and `a` becomes a directory with `a/%o` atomically. So two
creators of one key meet at one name, and a reader finds the object at one of the two at any moment.

Where the file system can exchange two names, a directory is prepared that holds the object under `%o`, and is exchanged
with the file. Where it cannot (NFS), there is a moment without either. There every access to objects takes a shared
lock, and the change takes it exclusively; the object keeps a second name during the change, and the next process that
gets the lock after a crash finishes the change first. So no process ever sees that moment.

A directory that has become empty is removed. A writer whose directory was removed makes it again; it was empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import OBJECT, WORKPLACE
from wrasse.backends.directory.temp_files import TempFiles
from wrasse.errors import StoreBroken, StoreUnavailable

TRIES = 100
EXCHANGE_FOLDER = WORKPLACE + b"/swap"  # exists only where names cannot be exchanged
_EXCHANGE_LOCK = b"swap"
_INTENT = b".path"


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object that exists: where its file is now, and the file's state."""

    path: bytes
    state: FileState


class ObjectPaths:
    """Finds objects, and makes and removes their directories."""

    def __init__(self, files: Files, exchange: Exchange | LockedExchange) -> None:
        self._files = files
        self._exchange = exchange

    def settled(self) -> AbstractContextManager[None]:
        """The block in which objects may be read and changed."""
        return self._exchange.settled()

    def find(self, path: bytes) -> ObjectPath | None:
        """The object of this path, if it is there."""
        state = self._files.state(path)
        if state is not None and state.is_folder:
            path = inside(path)
            state = self._files.state(path)
        return ObjectPath(path, state) if state is not None and state.is_file else None

    def free(self, path: bytes) -> bytes | None:
        """The path at which an object may be created; None if it exists already."""
        state = self._files.state(path)
        if state is None:
            return path
        if state.is_folder:
            return inside(path) if self._files.state(inside(path)) is None else None
        if state.is_file:
            return None
        raise self._foreign()

    def open(self, path: bytes) -> tuple[int, FileState] | None:
        """The object's open file."""
        for place in (path, inside(path)):
            file = self._files.open(place)
            if file is None:
                return None
            state = self._files.state_of(file)
            if state.is_file:
                return file, state
            self._files.close(file)
            if not state.is_folder:
                return None
        return None

    def make_room(self, folder: bytes) -> None:
        """Makes the directory and those above it, synced to disk, turning files in the way into directories."""
        if not folder:
            return
        chain = [folder]
        while above := parent(chain[-1]):
            chain.append(above)
        for _ in range(TRIES):
            missing = next((at for at, each in enumerate(chain) if self._is_folder(each)), len(chain))
            try:
                for each in reversed(chain[:missing]):
                    self._make(each)
            except FileNotFoundError:
                continue  # the one above it was empty until now, and another process removed it
            return
        raise unsteady(self._files)

    def prune(self, folder: bytes, stop: bytes = b"") -> None:
        """Removes empty directories from here upwards, but not `stop` and what is above it."""
        while folder and folder != stop and self._files.remove_folder(folder):
            folder = parent(folder)

    def sync(self, folder: bytes) -> None:
        """Syncs the names of a directory to disk; a deleted one has no names left to sync."""
        try:
            self._files.sync_folder(folder)
        except FileNotFoundError:
            return

    def _foreign(self) -> StoreBroken:
        return StoreBroken(
            f"in {self._files.root} something that is neither file nor directory is in an object's way",
            do="move the link or device out of the directory, or use another key",
        )

    def _is_folder(self, path: bytes) -> bool:
        state = self._files.state(path)
        return state is not None and state.is_folder

    def _make(self, folder: bytes) -> None:
        for _ in range(TRIES):
            try:
                self._files.make_folder(folder)
            except FileExistsError:
                state = self._files.state(folder)
                if state is not None and state.is_file:
                    self._exchange.turn(folder)
                elif state is not None and not state.is_folder:
                    raise self._foreign() from None
            if self._is_folder(folder):
                # Also if another process made it just now: it may not have synced it yet.
                self.sync(parent(folder))
                return
        raise unsteady(self._files)


def inside(path: bytes) -> bytes:
    """The path of the object when its name is a directory."""
    return path + b"/" + OBJECT


def parent(path: bytes) -> bytes:
    """The directory a path is in; empty for the root."""
    return path.rpartition(b"/")[0]


def unsteady(files: Files) -> StoreUnavailable:
    """The error if another program removes directories as fast as this one makes them."""
    return StoreUnavailable(
        f"directories in {files.root} keep disappearing while they are written to",
        do="look for another program that deletes in this directory",
    )


class Exchange:
    """For file systems that can exchange names."""

    def __init__(self, files: Files, locks: Locks, temp_files: TempFiles) -> None:
        self._files = files
        self._locks = locks
        self._temp_files = temp_files

    def settled(self) -> AbstractContextManager[None]:
        """Nothing to wait for: the exchange is atomic."""
        return nullcontext()

    def turn(self, path: bytes) -> None:
        """Makes a directory of the file."""
        with self._locks.held(path):  # the object must not be replaced or deleted meanwhile
            state = self._files.state(path)
            if state is None or not state.is_file:
                return
            prepared = self._temp_files.path()
            self._files.make_folder(prepared)
            self._files.link(path, inside(prepared))
            self._files.sync_folder(prepared)
            if not self._files.exchange(path, prepared):
                raise StoreUnavailable(
                    f"{self._files.root} can no longer exchange two names", do="open the directory again"
                )
            # If a cleaner took this process for dead and emptied the prepared directory, the object is still at the
            # other name.
            with suppress(FileExistsError):
                self._files.link(prepared, inside(path))
            self._files.sync_folder(path)
            self._files.sync_folder(parent(path))
            self._files.unlink(prepared)


class LockedExchange:
    """For file systems that cannot exchange names."""

    def __init__(self, files: Files, locks: Locks, temp_files: TempFiles) -> None:
        self._files = files
        self._locks = locks
        self._temp_files = temp_files

    @contextmanager
    def settled(self) -> Iterator[None]:
        """No process is between file and directory, and an interrupted change is finished."""
        while True:
            with self._locks.file(_EXCHANGE_LOCK, shared=True):
                if not self._open_intents():
                    yield
                    return
            with self._locks.file(_EXCHANGE_LOCK):
                self._finish()

    def turn(self, path: bytes) -> None:
        """Makes a directory of the file."""
        with self._locks.held(path), self._locks.file(_EXCHANGE_LOCK):
            self._finish()
            state = self._files.state(path)
            if state is None or not state.is_file:
                return
            second = EXCHANGE_FOLDER + b"/" + hashlib.sha256(path).hexdigest().encode()
            with self._temp_files.small_file(path) as temp_file:
                self._files.rename(temp_file.path, second + _INTENT)
            self._files.link(path, second)
            self._files.sync_folder(EXCHANGE_FOLDER)
            self._files.unlink(path)
            self._finish()

    def _open_intents(self) -> list[bytes]:
        return [
            EXCHANGE_FOLDER + b"/" + name for name, _ in self._files.names(EXCHANGE_FOLDER) if name.endswith(_INTENT)
        ]

    def _finish(self) -> None:
        for intent in self._open_intents():
            path, second = self._files.load(intent), intent.removesuffix(_INTENT)
            if path and self._files.state(second) is not None and not self._is_file(path):
                with suppress(FileExistsError):
                    self._files.make_folder(path)
                with suppress(FileExistsError):
                    self._files.link(second, inside(path))
                self._files.sync_folder(path)
                self._files.sync_folder(parent(path))
            self._files.unlink(second)
            self._files.unlink(intent)

    def _is_file(self, path: bytes) -> bool:
        state = self._files.state(path)
        return state is not None and state.is_file
