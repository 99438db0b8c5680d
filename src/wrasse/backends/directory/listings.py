"""Pages of a listing that go on where the last one stopped, without reading large directories again for each.

A page is always what a fresh walk would give. The walk behind the last few pages is kept, and goes on only if every
directory it still relies on is as it was, by inode and time of change, and had been at rest long enough before it was
read that any change since would show. Otherwise a new walk starts at the cursor.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.walk import Scan, Walk

T = TypeVar("T")
_KEPT_MAX = 4


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """What a page shows: keys with what was found there, and whether there is more."""

    found: tuple[tuple[bytes, T], ...]
    more: bool


class Listings:
    """The walks of one root that may be gone on with. Threads may share it; a walk belongs to one at a time."""

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
    ) -> Slice[T]:
        """One page of the listing `name` after a key. `look` says what is at a key and path now, if anything."""
        walk = self._resume(name, after) or begin()
        found: list[tuple[bytes, T]] = []
        while (spot := walk.next()) is not None:
            thing = look(*spot)
            if thing is None:
                continue
            if len(found) == limit:
                walk.push_back(*spot)
                self._keep(name, found[-1][0], walk)
                return Slice(tuple(found), more=True)
            found.append((spot[0], thing))
        return Slice(tuple(found), more=False)

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
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
