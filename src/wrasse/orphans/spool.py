"""Spools: files on disk for the intermediate data of a scan, written once, in order, and read in constant memory.

A spool gets its final name when it is complete and durable. Reading an incomplete or damaged one is an error, never a
shorter result: orphans are judged by the absence of references.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from wrasse.errors import StoreBroken
from wrasse.private_files import open_private

FRAME_ROWS = 1_000
_LENGTH = 4
_END = b"\xff\xff\xff\xff"

R = TypeVar("R")


class SpooledObject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One listed object. Times are microseconds."""

    key: bytes
    size: int
    version: str
    modified: int


class Referred(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One reference. `live`: it protects now; otherwise its row has ended."""

    key: bytes
    prefix: bool
    live: bool
    ended: int = 0
    rule: str = ""
    owner: str = ""


class SpoolWriter(Generic[R]):
    """Writes a spool in frames."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(f"{path}.part", "xb", buffering=1 << 16, opener=open_private)  # noqa: SIM115  # closed by close or drop
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: list[R] = []
        self.rows = 0

    def write(self, rows: Sequence[R]) -> None:
        """Adds rows as one frame."""
        if rows:
            frame = self._encode(rows)
            self._file.write(len(frame).to_bytes(_LENGTH, "big"))
            self._file.write(frame)
            self.rows += len(rows)

    def add(self, row: R) -> None:
        """Adds one row to the current frame."""
        self._waiting.append(row)
        if len(self._waiting) >= FRAME_ROWS:
            self.write(self._waiting)
            self._waiting.clear()

    def close(self) -> None:
        """Completes the spool: makes it durable, then gives it its name."""
        self.write(self._waiting)
        self._waiting.clear()
        self._file.write(_END)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(f"{self._path}.part", self._path)

    def drop(self) -> None:
        """Closes the file without giving it its name."""
        self._file.close()


class Spool(Generic[R]):
    """A complete spool; may be read any number of times."""

    def __init__(self, path: Path, row: type[R]) -> None:
        self.path = path
        self._decode = msgspec.msgpack.Decoder(list[row]).decode  # type: ignore[valid-type]  # a type made from a value

    def __iter__(self) -> Iterator[R]:
        for frame in self.frames():
            yield from frame

    def frames(self) -> Iterator[list[R]]:
        """The rows, frame by frame."""
        with open(self.path, "rb", buffering=1 << 16) as file:
            while (head := file.read(_LENGTH)) != _END:
                size = int.from_bytes(head, "big")
                frame = file.read(size)
                if len(head) < _LENGTH or len(frame) < size:
                    raise self._torn()
                try:
                    yield self._decode(frame)
                except msgspec.DecodeError:
                    raise self._torn() from None

    def _torn(self) -> StoreBroken:
        return StoreBroken(f"the spool {self.path.name} is damaged", do="run again: each scan writes it again")
