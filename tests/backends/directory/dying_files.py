"""A file layer that stops after step n, as a process does that is killed there: nothing more is changed.

A write that it stops at is made by half. What it has open is closed, as the system does.
"""

from __future__ import annotations

import errno
from pathlib import Path

from faults import Crashed
from wrasse.backends.directory.files import Files


class DyingFiles(Files):
    """Dies at the step after `left` more; never while that is None. Without `exchanges` it can as little as NFS: then
    every file has a name from the start, too."""

    def __init__(self, root: str, *, exchanges: bool = True) -> None:
        super().__init__(root)
        self.left: int | None = None
        self._exchanges = exchanges

    def _step(self) -> None:
        if self.left is None:
            return
        if self.left <= 0:
            raise Crashed("killed")
        self.left -= 1

    def create(self, path: bytes) -> int:
        self._step()
        return super().create(path)

    def blank(self, folder: bytes) -> int:
        # No step: nothing of it outlives a process that is killed here.
        if not self._exchanges:
            raise OSError(errno.EOPNOTSUPP, "as on NFS")
        return super().blank(folder)

    def name(self, file: int, target: bytes) -> None:
        self._step()
        super().name(file, target)

    def write(self, file: int, data: bytes | memoryview) -> None:
        if self.left == 0:
            super().write(file, data[: len(data) // 2])
        self._step()
        super().write(file, data)

    def set_timestamp(self, file: int, stamp: int) -> None:
        self._step()
        super().set_timestamp(file, stamp)

    def sync(self, file: int) -> None:
        self._step()
        super().sync(file)

    def sync_folder(self, path: bytes) -> None:
        self._step()
        super().sync_folder(path)

    def link(self, source: bytes, target: bytes) -> None:
        self._step()
        super().link(source, target)

    def rename(self, source: bytes, target: bytes) -> None:
        self._step()
        super().rename(source, target)

    def exchange(self, one: bytes, other: bytes) -> bool:
        self._step()
        return self._exchanges and super().exchange(one, other)

    def unlink(self, path: bytes) -> None:
        self._step()
        super().unlink(path)

    def make_folder(self, path: bytes) -> None:
        self._step()
        super().make_folder(path)

    def remove_folder(self, path: bytes) -> bool:
        self._step()
        return super().remove_folder(path)


def files_below(root: Path) -> set[str]:
    """Every file below the root, but for locks, the format, and what is kept about deleted records."""
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    return {path for path in found if not path.startswith(("%w/lock/", "%w/format", "%w/gone/"))}
