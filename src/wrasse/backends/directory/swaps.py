"""A file becomes a directory with the file inside, so that `a` may stand beside `a/b`.

Where the file system can exchange two names this is one instant: a directory is prepared that holds the object under
`%o`, and changes places with the file. Where it cannot (NFS), there is a moment without either. There everything that
looks at objects shares a lock that the change has alone; the object keeps a second name during the change, and whoever
gets the lock after a crash finishes it first. So nobody ever sees that moment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import WORKPLACE
from wrasse.backends.directory.places import inside, parent
from wrasse.backends.directory.temps import Temps
from wrasse.errors import StoreUnavailable

FOLDER = WORKPLACE + b"/swap"  # exists only where names cannot be exchanged
_LOCK = b"swap"
_INTENT = b".path"


class Exchange:
    """The way of file systems that can exchange names."""

    def __init__(self, files: Files, locks: Locks, temps: Temps) -> None:
        self._files = files
        self._locks = locks
        self._temps = temps

    def settled(self) -> AbstractContextManager[None]:
        """While nobody is between file and directory: always."""
        return nullcontext()

    def turn(self, path: bytes) -> None:
        """Makes a directory of the file."""
        with self._locks.held(path):  # nobody may replace or delete the object meanwhile
            state = self._files.state(path)
            if state is None or not state.is_file:
                return
            prepared = self._temps.path()
            self._files.make_folder(prepared)
            self._files.link(path, inside(prepared))
            self._files.sync_folder(prepared)
            if not self._files.exchange(path, prepared):
                raise StoreUnavailable(
                    f"{self._files.root} can no longer exchange two names", do="open the directory again"
                )
            # If a cleaner took us for dead and emptied what we prepared, the object is still at the other name.
            with suppress(FileExistsError):
                self._files.link(prepared, inside(path))
            self._files.sync_folder(path)
            self._files.sync_folder(parent(path))
            self._files.unlink(prepared)


class InTurns:
    """The way of file systems that cannot."""

    def __init__(self, files: Files, locks: Locks, temps: Temps) -> None:
        self._files = files
        self._locks = locks
        self._temps = temps

    @contextmanager
    def settled(self) -> Iterator[None]:
        """While nobody is between file and directory, and nobody died there."""
        while True:
            with self._locks.file(_LOCK, shared=True):
                if not self._open_intents():
                    yield
                    return
            with self._locks.file(_LOCK):
                self._finish()

    def turn(self, path: bytes) -> None:
        """Makes a directory of the file."""
        with self._locks.held(path), self._locks.file(_LOCK):
            self._finish()
            state = self._files.state(path)
            if state is None or not state.is_file:
                return
            second = FOLDER + b"/" + hashlib.sha256(path).hexdigest().encode()
            with self._temps.holding(path) as temp:
                self._files.rename(temp.path, second + _INTENT)
            self._files.link(path, second)
            self._files.sync_folder(FOLDER)
            self._files.unlink(path)
            self._finish()

    def _open_intents(self) -> list[bytes]:
        return [FOLDER + b"/" + name for name, _ in self._files.names(FOLDER) if name.endswith(_INTENT)]

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
