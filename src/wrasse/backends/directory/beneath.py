"""Opens paths below a root without following a symbolic link in any part of them, so that no swap of a directory for a
link, at whatever moment, lets a read, a write or a delete leave the root.

Where the kernel has openat2 (Linux 5.6; some sandboxes forbid it) that is one call. Elsewhere the path is opened
directory by directory.

An open directory stays the same directory when it is moved. If another process moves a directory out of the root while
a call has it open (`ParentDirectory`: one call; `OpenDirectory`: one page, one head, or one batch of deletes), the rest
of that call works in the moved directory: it reads, locks and unlinks only the names and versions it was called with.
Moving it needs write permission in the root, which already allows the same changes to these files. The next call opens
its path from the root again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from functools import lru_cache

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPENAT2 = 437  # the same number on every architecture
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Opener = Callable[[int, bytes, int, int], int]


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_CALL = _LIBC.syscall
_CALL.restype = ctypes.c_long
_CALL.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)
_SIZE = ctypes.sizeof(_How)


@lru_cache(maxsize=64)
def _how(flags: int, mode: int) -> _How:
    """The struct is never changed after it was made: threads share it."""
    return _How(flags, mode if flags & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY) else 0, _NO_SYMLINKS | _BENEATH)


def open_by_kernel(root: int, path: bytes, flags: int, mode: int) -> int:
    """An open file; NotADirectoryError if a link is in the way."""
    while (file := int(_CALL(_OPENAT2, root, path, _how(flags, mode), _SIZE))) < 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            number = errno.ENOTDIR if number == errno.ELOOP else number
            raise OSError(number, os.strerror(number), path)
    return file


def open_by_steps(root: int, path: bytes, flags: int, mode: int) -> int:
    """The same, part by part, for kernels without openat2."""
    above, _, name = path.rpartition(b"/")
    folder = root
    try:
        for part in above.split(b"/") if above else ():
            inner = os.open(part, _STEP, dir_fd=folder)
            if folder != root:
                os.close(folder)
            folder = inner
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    except OSError as why:
        if why.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        raise
    finally:
        if folder != root:
            os.close(folder)


def opener(root: int) -> Opener:
    """The faster of the two ways that works on this system."""
    try:
        os.close(open_by_kernel(root, b".", _STEP, 0))
    except OSError:
        return open_by_steps
    return open_by_kernel


class ParentDirectory:
    """The directory of a path, open for the length of a block, and the name in it."""

    __slots__ = ("_open", "_path", "_root", "folder", "name")

    def __init__(self, open: Opener, root: int, path: bytes) -> None:
        self._open, self._root, self._path = open, root, path

    def __enter__(self) -> ParentDirectory:
        above, slash, self.name = self._path.rpartition(b"/")
        self.folder = self._open(self._root, above, _STEP, 0) if slash else self._root
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder != self._root:
            os.close(self.folder)


class OpenDirectory(threading.local):
    """The directory of the last path, kept open for the next path while `used`: for a thread that reads many paths,
    most of them in one directory. All paths of one directory are resolved in the directory that existed when the first
    was resolved, even if that directory is moved meanwhile."""

    used = False
    _above: bytes | None = None
    _folder = -1

    def at(self, open: Opener, root: int, path: bytes) -> tuple[int, bytes]:
        """The directory of this path, which stays open, and the name in it."""
        above, slash, name = path.rpartition(b"/")
        if not slash:
            return root, name
        if above != self._above:
            self.close()
            self._folder, self._above = open(root, above, _STEP, 0), above
        return self._folder, name

    def close(self) -> None:
        """Closes the directory that is kept open."""
        if self._above is not None:
            self._above = None
            os.close(self._folder)
