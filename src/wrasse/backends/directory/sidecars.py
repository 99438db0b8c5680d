"""Metadata of objects, each in a file beside its object and named for the object's stamp.

The data file selects its metadata: when a write gives it its name, the metadata that belongs to that stamp is already
on the disk, and the one before it means nothing any more. An object without metadata has no such file.

The name of the metadata ends in a suffix of its own, so that a glob for the objects (`*.jsonl.gz`) matches objects
only. Earlier versions wrote it without that suffix: such files are read and removed, never written. They are looked
for each time (about 6 µs of a head's 80 µs): no mark in the store can rule them out, since a process of an earlier
version may still write there, and a copied directory may hold them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import SIDECAR
from wrasse.backends.directory.places import Place, Places, parent, unsteady
from wrasse.backends.directory.temps import Temps
from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken

_TRIES = 100
_SUFFIX = b".meta"


class Sidecars:
    """Writes, reads and removes the metadata of objects. Objects are named by their path."""

    def __init__(self, files: Files, locks: Locks, temps: Temps, places: Places) -> None:
        self._files = files
        self._locks = locks
        self._temps = temps
        self._places = places

    @contextmanager
    def ahead(self, path: bytes, stamp: int, metadata: Mapping[str, str]) -> Iterator[None]:
        """Metadata on the disk before the object of this stamp gets its name, and gone again if it gets none."""
        if not metadata:
            yield
            return
        with self._temps.holding(_pack(path, stamp, metadata), mark=True) as temp:
            try:
                self._link(temp.path, sidecars(path, stamp)[0])
                yield
            finally:
                self._drop_unless_selected(path, stamp)

    def read(self, path: bytes, stamp: int) -> Mapping[str, str] | None:
        """The metadata of the object of this stamp; None if there is none."""
        for name in sidecars(path, stamp):
            packed = self._files.load(name)
            if packed is not None:
                return self._unpack(packed)[2]
        return None

    def taken(self, path: bytes, stamp: int) -> bool:
        """Whether there is metadata of this stamp already."""
        return any(self._files.state(name) is not None for name in sidecars(path, stamp))

    @contextmanager
    def after(self, path: bytes, place: Place) -> Iterator[None]:
        """Inside, the object that stands there goes; afterwards its metadata is gone, too."""
        stamp = place.state.stamp
        name = next((name for name in sidecars(path, stamp) if self._files.state(name) is not None), None)
        if name is None:
            yield
            return
        with self._temps.marked(name):
            yield
            self._places.sync(parent(place.path))  # the object must not come back without it
            self._drop_unless_selected(path, stamp)

    def useless(self, packed: bytes) -> None:
        """Removes the metadata that a crash left, if no object selects it."""
        try:
            path, stamp, _ = self._unpack(packed)
        except StoreBroken:
            return  # cut short by the crash, and so never given its name
        with self._locks.held(path):
            self._drop_unless_selected(path, stamp)

    def _drop_unless_selected(self, path: bytes, stamp: int) -> None:
        with self._places.settled():
            place = self._places.find(path)
            if place is None or place.state.stamp != stamp:
                for name in sidecars(path, stamp):
                    self._files.unlink(name)

    def _link(self, temp: bytes, name: bytes) -> None:
        for _ in range(_TRIES):
            try:
                self._files.link(temp, name)
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
                f"the metadata of an object in {self._files.root} is damaged",
                do="restore it from a backup, or write the object again",
            ) from None


def sidecars(path: bytes, stamp: int) -> tuple[bytes, bytes]:
    """Where the metadata of the object of this stamp is, in the same directory, and where older releases put it."""
    folder, slash, name = path.rpartition(b"/")
    old = b"%s%s%s%016x.%s" % (folder, slash, SIDECAR, stamp, name)
    return old + _SUFFIX, old


def _pack(path: bytes, stamp: int, metadata: Mapping[str, str]) -> bytes:
    # The escaped form keeps names that are no UTF-8.
    where = path.decode("utf-8", "surrogateescape")
    return json.dumps({"path": where, "stamp": stamp, "metadata": dict(metadata)}).encode()
