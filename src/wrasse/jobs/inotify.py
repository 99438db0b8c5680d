"""Linux's inotify: hints that something in a directory changed. What is really there, whoever gets the hint looks at.

A file is worth a look once nobody writes to it any more (closed after writing, moved here, linked here), a directory as
soon as it is there. Without inotify, or with a limit of the system reached, `Notices.open` or `watch` says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE = 0x8, 0x40, 0x80, 0x100
_OVERFLOW, _IGNORED, _ISDIR = 0x4000, 0x8000, 0x40000000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _ONLYDIR | _EXCL_UNLINK
_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16
WATCHES_MAX = 500_000  # directories: about a kilobyte each, here and in the kernel


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened at this path, relative to the root. The root itself: something was missed, look everywhere."""

    path: str
    directory: bool = False


class Notices:
    """Directories that are watched, and what happened in them."""

    def __init__(self, root: str, fd: int, libc: ctypes.CDLL, most: int) -> None:
        self._root, self.fd, self._libc, self._most = root, fd, libc, most
        self._paths: dict[int, str] = {}

    @classmethod
    def open(cls, root: str, most: int = WATCHES_MAX) -> Notices | None:
        """None where there is no inotify, or no more of it to be had. `most` directories are watched."""
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except (OSError, AttributeError, TypeError):
            return None
        return cls(root, fd, libc, most) if fd >= 0 else None

    def watch(self, relative: str) -> bool:
        """Watches one directory; False if a limit is reached, ours or the system's. One that vanished needs none."""
        if len(self._paths) >= self._most:
            return False
        path = os.fsencode(os.path.join(self._root, relative))
        # The root itself may be a link: the user named it.
        mask = _MASK | (_DONT_FOLLOW if relative else 0)
        number = int(self._libc.inotify_add_watch(self.fd, path, mask))
        if number >= 0:
            self._paths[number] = relative
            return True
        return ctypes.get_errno() not in (errno.ENOSPC, errno.ENOMEM)

    def read(self) -> Sequence[Notice]:
        """What happened since; nothing if nothing did."""
        try:
            data = os.read(self.fd, _BUFFER)
        except BlockingIOError:
            return ()
        return tuple(self._parsed(data))

    def close(self) -> None:
        """Watches nothing any more."""
        os.close(self.fd)
        self._paths.clear()

    def _parsed(self, data: bytes) -> Iterator[Notice]:
        at = 0
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            name = os.fsdecode(data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0"))
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                yield Notice("", directory=True)
            elif mask & _IGNORED:
                self._paths.pop(number, None)
            elif name and number in self._paths:
                parent = self._paths[number]
                yield from self._meaning(f"{parent}/{name}" if parent else name, mask)

    def _meaning(self, path: str, mask: int) -> Iterator[Notice]:
        if mask & _ISDIR:
            if mask & _MOVED_FROM:
                self._forget(path)
            else:
                yield Notice(path, directory=True)
        elif mask & (_CLOSE_WRITE | _MOVED_TO) or (mask & _CREATE and self._complete(path)):
            yield Notice(path)

    def _complete(self, path: str) -> bool:
        """Of what was just created: a symbolic or second hard link never is closed after writing."""
        try:
            facts = os.lstat(os.path.join(self._root, path))
        except OSError:
            return False
        return facts.st_nlink > 1 or os.path.islink(os.path.join(self._root, path))

    def _forget(self, path: str) -> None:
        """A directory went elsewhere: what happens there is no more to us, or comes back under another name."""
        for number, known in list(self._paths.items()):
            if known == path or known.startswith(f"{path}/"):
                self._libc.inotify_rm_watch(self.fd, number)
                self._paths.pop(number, None)
