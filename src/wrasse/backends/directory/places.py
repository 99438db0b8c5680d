"""Where an object stands: a plain file at its path, or `%o` inside the directory of that name.

Invariant: a name is a file or a directory, never both, and `a` becomes a directory with `a/%o` in one instant. So two
creators of one key meet at one name, and a reader finds the object on one of the two at any moment.

A directory that has become empty is removed. Whoever finds theirs gone makes it again; it cannot have held anything.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.names import OBJECT
from wrasse.errors import StoreBroken, StoreUnavailable

TRIES = 100


@dataclass(frozen=True, slots=True)
class Place:
    """An object that is there: where its file is now, and what the file system says of it."""

    path: bytes
    state: FileState


class Turns(Protocol):
    """Makes a directory of a file, with the object inside."""

    def settled(self) -> AbstractContextManager[None]:
        """Inside, nobody is seen between file and directory."""
        ...

    def turn(self, path: bytes) -> None:
        """`path` is a directory afterwards, unless it was gone."""
        ...


class Places:
    """Finds objects, and makes and removes the directories they stand in."""

    def __init__(self, files: Files, turns: Turns) -> None:
        self._files = files
        self._turns = turns

    def settled(self) -> AbstractContextManager[None]:
        """Look for objects, and change them, inside this."""
        return self._turns.settled()

    def find(self, path: bytes) -> Place | None:
        """The object of this path, if it is there."""
        state = self._files.state(path)
        if state is not None and state.is_folder:
            path = inside(path)
            state = self._files.state(path)
        return Place(path, state) if state is not None and state.is_file else None

    def free(self, path: bytes) -> bytes | None:
        """Where an object may get its name; None if there is one already."""
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
        """Makes the directory and those above it, on the disk, turning files in the way into directories."""
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
                continue  # the one above it was empty until now, and somebody removed it
            return
        raise unsteady(self._files)

    def prune(self, folder: bytes, stop: bytes = b"") -> None:
        """Removes empty directories from here upwards, but not `stop` and what is above it."""
        while folder and folder != stop and self._files.remove_folder(folder):
            folder = parent(folder)

    def sync(self, folder: bytes) -> None:
        """Puts the names of a directory on the disk; one that is gone has no names left to put there."""
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
                    self._turns.turn(folder)
                elif state is not None and not state.is_folder:
                    raise self._foreign() from None
            if self._is_folder(folder):
                # Also if somebody else made it just now: they may not have come to this yet.
                self.sync(parent(folder))
                return
        raise unsteady(self._files)


def inside(path: bytes) -> bytes:
    """Where the object stands when its name is a directory."""
    return path + b"/" + OBJECT


def parent(path: bytes) -> bytes:
    """The directory a path is in; empty for the root."""
    return path.rpartition(b"/")[0]


def unsteady(files: Files) -> StoreUnavailable:
    """Somebody removes what we make as fast as we make it."""
    return StoreUnavailable(
        f"directories in {files.root} keep disappearing while they are written to",
        do="look for another program that deletes in this directory",
    )
