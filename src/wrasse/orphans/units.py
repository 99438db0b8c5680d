"""Units: files that are removed together, grouped from an ordered listing. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from wrasse.errors import StoreBroken
from wrasse.orphans.root import Template
from wrasse.orphans.spool import SpooledObject

FILES_MAX = 10_000  # of one unit; a larger one is reported and left alone

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SpooledObject]).decode


class Unit:
    """One unit: its name, its group, and its files in the order of their keys, up to one more than FILES_MAX."""

    __slots__ = ("files", "group", "modified", "name", "size")

    def __init__(self, name: bytes, group: bytes, first: SpooledObject) -> None:
        self.name = name
        self.group = group
        self.files = [first]
        self.size = first.size
        self.modified = first.modified

    def add(self, file: SpooledObject) -> None:
        """Adds a file."""
        if len(self.files) <= FILES_MAX:
            self.files.append(file)
        self.size += file.size
        if file.modified > self.modified:
            self.modified = file.modified


class Units:
    """The units of a listing, in order. Foreign keys are counted, with a few examples."""

    def __init__(self, listing: Iterable[list[SpooledObject]], template: Template) -> None:
        self._listing = listing
        self._template = template
        self.listed = 0
        self.count = 0
        self.size = 0
        self.foreign = 0
        self.examples: list[bytes] = []

    def __iter__(self) -> Iterator[Unit]:
        match, directory = self._template.pattern.fullmatch, self._template.directories
        present: Unit | None = None
        for frame in self._listing:
            self.listed += len(frame)
            for file in frame:
                key = file.key
                found = match(key)
                if found is None:
                    self._note_foreign(file)
                    continue
                name = key[: found.end(1)] if directory else key
                if present is not None:
                    if present.name == name:
                        present.add(file)
                        continue
                    self.size += present.size
                    self.count += 1
                    yield present
                present = Unit(name, key[: found.end(2)], file)
        if present is not None:
            self.size += present.size
            self.count += 1
            yield present

    def _note_foreign(self, file: SpooledObject) -> None:
        self.foreign += 1
        if len(self.examples) < 10:
            self.examples.append(file.key)


def in_order(listing: Iterable[list[SpooledObject]]) -> Iterator[list[SpooledObject]]:
    """The same listing; an error where a key does not sort after the one before it."""
    last = b""
    for frame in listing:
        for file in frame:
            if file.key <= last:
                raise StoreBroken(
                    "the store does not list keys once each in byte order",
                    do="use a store that does; nothing was judged",
                )
            last = file.key
        yield frame


def fingerprint(files: list[SpooledObject]) -> str:
    """Changes when any file of a unit changes, or is added or removed."""
    # The time is included: the version of some stores depends on the bytes only, and a retry may write them again.
    if len(files) == 1:
        return f"{files[0].size}-{files[0].modified}-{files[0].version}"
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        for part in (file.key, file.version.encode("utf-8", "surrogateescape"), b"%d %d" % (file.size, file.modified)):
            digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def pack(files: list[SpooledObject]) -> bytes:
    """Files as stored in a sighting."""
    return _encode(files)


def unpack(files: bytes) -> list[SpooledObject]:
    """The files stored in a sighting; none for a sighting without files, such as an upload."""
    try:
        return _decode(files) if files else []
    except msgspec.DecodeError:
        raise StoreBroken("a sighting has no valid list of files", do="delete that row") from None


def part_of(files: list[SpooledObject], known: list[SpooledObject]) -> bool:
    """Whether these are unchanged files of that unit: what an interrupted removal left of it."""
    there = {(file.key, file.version, file.size, file.modified) for file in known}
    return all((file.key, file.version, file.size, file.modified) in there for file in files)
