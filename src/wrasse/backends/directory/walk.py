"""The names below a directory in the order of their keys, in bounded memory, from any point on; and pages of them.

The order of keys is not the order of names: `a-b`, `a/b`, `a0` are keys in order, and an escaped name stands for
another byte. So names wait in a heap under the smallest key they can stand for, and a directory is opened when it is
the smallest. Of a large directory at most WINDOW names are kept, and it is read again from there when they are used up.
A directory that changes while it is read is read again, since some file systems then skip a name that was replaced; at
most SCANS times, after which the names of all scans count.

A page is always what a fresh walk would give, without reading large directories again for each. The walk behind each of
the last few pages is kept, and continues only if every directory it still relies on is unchanged, by inode and
modification time, and had been unchanged long enough before it was read that any change since would show. Otherwise a
new walk starts at the cursor.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from wrasse.backends.directory.files import Files, FileState
from wrasse.backends.directory.temp_files import instant
from wrasse.clock import SystemClock

WINDOW = 40_000
WINDOW_FIRST = 2_000
SCANS = 4
_SCANS_NOTED_MAX = 1_000
_REST_MIN = timedelta(seconds=2)  # longer than the granularity of file system timestamps
_CLOCK = SystemClock()  # the system sets modification times, whatever clock this store was made with
_THING, _FOLDER, _REST = 0, 1, 2

# The smallest key, whether it is a thing or a folder, its path, the key of its folder, how far that was read already.
_Item = tuple[bytes, int, bytes, bytes, tuple[bytes, int]]
_NOWHERE = (b"", -1)
T = TypeVar("T")
_WALKS_KEPT_MAX = 4


@dataclass(frozen=True, slots=True)
class Sort:
    """What a name stands for. `part_of` gives its bytes of the key and whether the name was cut; with `nested`, an
    uncut directory holds keys that go on after a slash. Things end in `suffix`."""

    part_of: Callable[[bytes], tuple[bytes, bool] | None]
    nested: bool
    suffix: bytes = b""


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a directory that was unchanged for a while, so that any later change shows: its key and state."""

    key: bytes
    path: bytes
    state: FileState


class Walk:
    """One walk. `next` gives keys and paths in order; some may be deleted by then, and some be foreign."""

    def __init__(self, files: Files, sort: Sort, folder: bytes, key: bytes, prefix: bytes, after: bytes | None) -> None:
        self._files = files
        self._sort = sort
        self._prefix = prefix
        self._after = after
        self._heap: list[_Item] = [(key, _FOLDER, folder, key, _NOWHERE)]
        self._window = WINDOW_FIRST
        self._scans: list[Scan] = []
        self._steady = True

    def next(self) -> tuple[bytes, bytes] | None:
        """The next key with its path; None at the end."""
        while self._heap:
            item = heapq.heappop(self._heap)
            if item[1] == _THING:
                return item[0], item[2]
            self._open(item)
        return None

    def push_back(self, key: bytes, path: bytes) -> None:
        """Gives back what `next` gave."""
        heapq.heappush(self._heap, (key, _THING, path, b"", _NOWHERE))

    def scans_beyond(self, key: bytes) -> list[Scan] | None:
        """The scans that the rest of the walk after this key relies on; None if some of the rest is uncertain."""
        self._scans = [scan for scan in self._scans if scan.key > key or key.startswith(scan.key)]
        return self._scans if self._steady else None

    def _open(self, item: _Item) -> None:
        _, _, folder, key, floor = item
        # Most walks end with their first page; later pages read larger windows.
        window = self._window = min(self._window * (2 if item[1] == _REST else 1), WINDOW)
        found = heapq.nsmallest(window + 1, self._items(folder, key, floor))
        if len(found) > window:
            last = found[window - 1]
            found[window:] = [(last[0], _REST, folder, key, last[:2])]
        before = None
        for each in found:
            if each[:3] != before:  # seen in two scans
                heapq.heappush(self._heap, each)
            before = each[:3]

    def _items(self, folder: bytes, key: bytes, floor: tuple[bytes, int]) -> Iterator[_Item]:
        start, low, suffix = folder + b"/" if folder else b"", max(self._after or b"", floor[0]), self._sort.suffix
        plain = key.startswith(self._prefix) and not suffix
        for name, is_folder in self._names(folder, key):
            if plain and not is_folder and b"%" not in name:  # by far the most common
                if key + name > low:
                    yield key + name, _THING, start + name, b"", _NOWHERE
                continue
            part = self._sort.part_of(name)
            if part is None:
                continue
            raw, cut = part
            path, smallest = start + name, key + raw
            if is_folder and cut:
                if self._holds(smallest) and (smallest, _FOLDER) > floor:
                    yield smallest, _FOLDER, path, smallest, _NOWHERE
            elif not cut and (self._sort.nested or not is_folder) and name.endswith(suffix):
                thing = smallest.removesuffix(suffix)
                if self._wanted(thing) and (thing, _THING) > floor:
                    yield thing, _THING, path, b"", _NOWHERE
                if is_folder and self._holds(smallest + b"/") and (smallest + b"/", _FOLDER) > floor:
                    yield smallest + b"/", _FOLDER, path, smallest + b"/", _NOWHERE

    def _wanted(self, key: bytes) -> bool:
        return key.startswith(self._prefix) and (self._after is None or key > self._after)

    def _holds(self, key: bytes) -> bool:
        """Whether keys that begin with this one may be wanted."""
        if not (key.startswith(self._prefix) or self._prefix.startswith(key)):
            return False
        return self._after is None or key > self._after or self._after.startswith(key)

    def _names(self, folder: bytes, key: bytes) -> Iterator[tuple[bytes, bool]]:
        before = self._files.state(folder or b".")
        at_rest = before is not None and instant(before.timestamp) <= _CLOCK.now() - _REST_MIN
        for _ in range(SCANS):
            if before is None:
                return
            yield from self._files.names(folder)
            after = self._files.state(folder or b".")
            if after == before:
                if at_rest and len(self._scans) < _SCANS_NOTED_MAX:
                    self._scans.append(Scan(key, folder, before))
                    return
                break
            before, at_rest = after, False
        self._steady = False


@dataclass(frozen=True, slots=True)
class WalkedPage(Generic[T]):
    """The entries of a page: keys with what was found there, and whether there is more."""

    found: tuple[tuple[bytes, T], ...]
    more: bool


class Listings:
    """The walks of one root that can be continued. Threads may share it; a walk belongs to one at a time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[bytes, bytes], tuple[Walk, list[Scan]]] = OrderedDict()

    def cut(
        self,
        name: bytes,
        after: bytes | None,
        limit: int,
        begin: Callable[[], Walk],
        look: Callable[[bytes, bytes], T | None],
    ) -> WalkedPage[T]:
        """One page of the listing `name` after a key. `look` returns what is at a key and path now, if anything."""
        walk = self._resume(name, after) or begin()
        found: list[tuple[bytes, T]] = []
        while (cursor := walk.next()) is not None:
            thing = look(*cursor)
            if thing is None:
                continue
            if len(found) == limit:
                walk.push_back(*cursor)
                self._keep(name, found[-1][0], walk)
                return WalkedPage(tuple(found), more=True)
            found.append((cursor[0], thing))
        return WalkedPage(tuple(found), more=False)

    def _resume(self, name: bytes, after: bytes | None) -> Walk | None:
        if after is None:
            return None
        with self._lock:
            kept = self._kept.pop((name, after), None)
        if kept is None or any(self._files.state(scan.path or b".") != scan.state for scan in kept[1]):
            return None
        return kept[0]

    def _keep(self, name: bytes, after: bytes, walk: Walk) -> None:
        scans = walk.scans_beyond(after)
        if scans is None:
            return
        with self._lock:
            self._kept[name, after] = (walk, list(scans))
            while len(self._kept) > _WALKS_KEPT_MAX:
                self._kept.popitem(last=False)
