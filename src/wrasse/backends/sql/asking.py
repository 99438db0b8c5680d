"""Which of some keys are referenced: what to ask a database for, and which key each row protects. Pure.

A prefix may end anywhere in a key, and to ask for every piece of every key would be a hundred times the work. So the
last snapshot that was read to its end tells with which characters prefixes end, the slash always being one of them;
without one, every piece is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from wrasse.ports.catalog import Reference

Endings = frozenset[str] | None
_SLASH = frozenset({"/"})
_UNSPEAKABLE = re.compile("[\0\ud800-\udfff]")  # what no text of a database holds: keys that are no UTF-8, and NUL


class Asked:
    """Some keys, and the strongest reference to each of them that was found so far."""

    def __init__(self, keys: Sequence[str], endings: Endings, *, below: bool) -> None:
        self._below = below
        self._at: dict[str, list[int]] = {}
        self._under: dict[str, list[int]] = {}
        odd = _UNSPEAKABLE.search("/".join(keys)) is not None
        self._whole = {key for key in keys if not _UNSPEAKABLE.search(key)} if odd else set(keys)
        for index, key in enumerate(keys):
            self._at.setdefault(key, []).append(index)
            for piece in pieces(speakable(key) if odd else key, endings):
                self._under.setdefault(piece, []).append(index)
        self.found: list[Reference | None] = [None] * len(keys)

    @property
    def named(self) -> list[str]:
        """Whatever a row must be called to count: the keys, and the pieces they begin with."""
        return sorted(self._whole | self._under.keys())

    @property
    def directories(self) -> list[str]:
        """Directories below which rows count, in order; one within another is left out."""
        if not self._below:
            return []
        outer: list[str] = []
        for key in sorted(key for key in self._whole if key.endswith("/")):
            if not outer or not key.startswith(outer[-1]):
                outer.append(key)
        return outer

    def note(self, rows: Iterable[Reference]) -> None:
        """Takes rows into account."""
        for row in rows:
            for index in self._protected(row):
                before = self.found[index]
                if before is None or row.strength > before.strength:
                    self.found[index] = row

    def _protected(self, row: Reference) -> Iterator[int]:
        yield from self._at.get(row.key, ())
        if row.prefix:
            yield from self._under.get(row.key, ())
        if self._below:
            for end in _slashes(row.key):
                yield from self._at.get(row.key[:end], ())


def pieces(key: str, endings: Endings) -> list[str]:
    """What a prefix that covers a key can be."""
    if endings == _SLASH:
        return ["", *(key[:end] for end in _slashes(key))]
    return ["", *(key[:end] for end in range(1, len(key) + 1) if endings is None or key[end - 1] in endings)]


def speakable(key: str) -> str:
    """A key up to where no text of a database can go on as it does."""
    limit = _UNSPEAKABLE.search(key)
    return key if limit is None else key[: limit.start()]


def _slashes(key: str) -> Iterator[int]:
    at = key.find("/")
    while at >= 0:
        yield at + 1
        at = key.find("/", at + 1)
