"""Units: the files that live and die together, as they come out of a listing in order. Pure."""

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
    """One unit: its name, whose it is, and its files in the order of their keys, up to one more than FILES_MAX."""

    __slots__ = ("files", "group", "modified", "name", "size")

    def __init__(self, name: bytes, group: bytes, first: SpooledObject) -> None:
        self.name = name
        self.group = group
        self.files = [first]
        self.size = first.size
        self.modified = first.modified

    def add(self, file: SpooledObject) -> None:
        """One more file."""
        if len(self.files) <= FILES_MAX:
            self.files.append(file)
        self.size += file.size
        if file.modified > self.modified:
            self.modified = file.modified


class Units:
    """The units of a listing, in order. What is foreign is counted, with a few examples."""

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
    """The same listing, or an error where a key does not come after the one before it."""
    last = b""
    for frame in listing:
        for file in frame:
            if file.key <= last:
                raise StoreBroken(
                    "the store does not list keys in the order of their bytes, each once",
                    do="name a store that does; nothing was judged",
                )
            last = file.key
        yield frame


def fingerprint(files: list[SpooledObject]) -> str:
    """What changes when any file of a unit does, or when one comes or goes."""
    # The time counts, too: the version of some stores names the bytes, and the same may be written again by a retry.
    if len(files) == 1:
        return f"{files[0].size}-{files[0].modified}-{files[0].version}"
    told = hashlib.blake2b(digest_size=16)
    for file in files:
        for part in (file.key, file.version.encode("utf-8", "surrogateescape"), b"%d %d" % (file.size, file.modified)):
            told.update(b"%d:" % len(part) + part)
    return told.hexdigest()


def pack(files: list[SpooledObject]) -> bytes:
    """Files as a sighting keeps them."""
    return _encode(files)


def unpack(files: bytes) -> list[SpooledObject]:
    """The files that a sighting kept; none for what has no files, such as an upload."""
    try:
        return _decode(files) if files else []
    except msgspec.DecodeError:
        raise StoreBroken("a sighting holds no list of files", do="something else wrote it: delete that row") from None


def part_of(files: list[SpooledObject], known: list[SpooledObject]) -> bool:
    """Whether these are files of that unit, as they were: what is left of it after a removal that was cut short."""
    there = {(file.key, file.version, file.size, file.modified) for file in known}
    return all((file.key, file.version, file.size, file.modified) in there for file in files)
