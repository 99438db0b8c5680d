"""Every system call this backend makes, one method each, so that a test can stop the process between any two.

Paths are bytes, relative to the root, which is held open: the working directory and the length of the root's own path
do not matter. A symbolic link in a path, other than the root itself, is never followed and counts as missing: no swap
of a directory for a link, at whatever moment, lets a read, a write or a delete leave the root. Where the kernel has
openat2 (Linux 5.6; some sandboxes forbid it) opening a path is one call. Elsewhere it is opened directory by directory.

An open directory stays the same directory when it is moved. If another process moves a directory out of the root while
a call has it open (`ParentDirectory`: one call; `OpenDirectory`: one page, one head, or one batch of deletes), the rest
of that call works in the moved directory: it reads, locks and unlinks only the names and versions it was called with.
Moving it needs write permission in the root, which already allows the same changes to these files. The next call opens
its path from the root again.

A method makes one change or none. A missing file is None where that is ordinary, and an OSError where it is not.

Files are readable by their owner only. A root with the set-group-ID bit (`chmod 2770`, or 2750 for a group that only
reads) is shared: files made in it have the root's group rights, under any umask.

`mount` tells which file system the root is on, and whether other hosts can mount it too. These have clocks of their
own, see our locks only if the mount forwards them, and see our changes only if they do not cache earlier directory
entries.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat as modes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

import msgspec

from wrasse.private_files import FILE_MODE, FOLDER_MODE

_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_BLANK = os.O_RDWR | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC  # without the flag a directory cannot be opened so
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a foreign pipe must not block
_NO_FILE = (errno.EISDIR, errno.ESPIPE, errno.ENXIO)  # a directory, a pipe, a socket
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_LOOK = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW  # a link is looked at, not followed
_HERE = b"."
_LOAD = 1 << 18  # bytes that are read at once
_NAMES = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())  # os.fsencode, ten times as fast
_OPENAT2 = 437  # the same number on every architecture
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Opener = Callable[[int, bytes, int, int], int]
MARGIN = timedelta(seconds=1)  # how far clocks of synchronised hosts may differ
_SERVED = ("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gfs2", "ocfs2")
_REMOTE = frozenset((*_SERVED, "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"))
_OWN_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "nobrl"))  # locks visible on this host only
_CACHING = frozenset(("noac", "acdirmax=0"))


class FileState(msgspec.Struct, frozen=True):
    """File system metadata of one name. `timestamp` is the time of the last change, in nanoseconds."""

    inode: int
    timestamp: int
    size: int
    is_file: bool
    is_folder: bool


class Files:
    """The file system below one root. Threads may share it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._root = os.open(root, _FOLDER)
        self._open: Opener = opener(self._root)
        self._kept, self._kept_locks = OpenDirectory(), OpenDirectory()
        found = os.fstat(self._root)
        self.inode = found.st_ino
        self._group = found.st_mode & modes.S_IRWXG if found.st_mode & modes.S_ISGID else 0

    def close_root(self) -> None:
        """No call is allowed afterwards."""
        os.close(self._root)

    @contextmanager
    def many(self) -> Iterator[None]:
        """A block in which this thread reads, opens, locks or unlinks more than one path: their directory is opened
        once."""
        self._kept.used = True
        try:
            yield
        finally:
            self._kept.used = False
            self._kept.close()
            self._kept_locks.close()

    # Calls that change something.

    def create(self, path: bytes) -> int:
        """A new file, open for writing and reading; FileExistsError if the name is taken."""
        return self._shared(self._open(self._root, path, _CREATE, FILE_MODE))

    def blank(self, folder: bytes) -> int:
        """A new file without a name, open for writing and reading: it is deleted when it is closed."""
        return self._shared(self._open(self._root, folder, _BLANK, FILE_MODE))

    def name(self, file: int, target: bytes) -> None:
        """Gives a file without a name its first one; FileExistsError if the name exists, as for `link`."""
        with self._parent(target) as to:
            os.link(b"/proc/self/fd/%d" % file, to.name, src_dir_fd=to.folder, dst_dir_fd=to.folder)

    def write(self, file: int, data: bytes | memoryview) -> None:
        """Appends all of it."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]

    def set_timestamp(self, file: int, timestamp: int) -> None:
        """Sets the modification time."""
        os.utime(file, ns=(timestamp, timestamp))

    def sync(self, file: int) -> None:
        """Returns when bytes and times are on disk."""
        os.fsync(file)

    def sync_folder(self, path: bytes) -> None:
        """Returns when the names in this directory are on disk."""
        folder = self._open(self._root, path or _HERE, _FOLDER, 0)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def link(self, source: bytes, target: bytes) -> None:
        """A second name for a file; FileExistsError if the name exists. This is what makes `create` have one winner."""
        with self._parent(source) as old, self._parent(target) as new:
            os.link(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder, follow_symlinks=False)

    def rename(self, source: bytes, target: bytes) -> None:
        """Renames a file over another one, which is replaced atomically."""
        with self._parent(source) as old, self._parent(target) as new:
            os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)

    def exchange(self, one: bytes, other: bytes) -> bool:
        """Exchanges two names atomically; False where the file system or the kernel cannot."""
        call = getattr(_LIBC, "renameat2", None)
        if call is None:
            return False
        with self._parent(one) as here, self._parent(other) as there:
            if call(here.folder, here.name, there.folder, there.name, _EXCHANGE) == 0:
                return True
            number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
            return False
        raise OSError(number, os.strerror(number))

    def unlink(self, path: bytes) -> None:
        """Removes a name; a missing one is no error."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._kept.used:
                folder, name = self._kept.at(self._open, self._root, path)
                os.unlink(name, dir_fd=folder)
                return
            with self._parent(path) as at:
                os.unlink(at.name, dir_fd=at.folder)

    def make_folder(self, path: bytes) -> None:
        """A new directory; FileExistsError if the name exists."""
        with self._parent(path) as at:
            os.mkdir(at.name, FOLDER_MODE, dir_fd=at.folder)
            if self._group:
                folder = os.open(at.name, _FOLDER | os.O_NOFOLLOW, dir_fd=at.folder)
                try:
                    os.fchmod(folder, modes.S_ISGID | FOLDER_MODE | self._group)
                finally:
                    os.close(folder)

    def remove_folder(self, path: bytes) -> bool:
        """Removes an empty directory; False if it is not empty or missing."""
        try:
            with self._parent(path) as at:
                os.rmdir(at.name, dir_fd=at.folder)
        except OSError as why:
            if why.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY):
                return False
            raise
        return True

    # Calls that only read.

    def mount(self) -> Mount:
        """How the file system is mounted, as far as the system reports it."""
        device = os.fstat(self._root).st_dev
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
                return mount_of((os.major(device), os.minor(device)), table.read())
        except OSError:
            return Mount()

    def state(self, path: bytes) -> FileState | None:
        """The state of a path; a symbolic link is neither file nor folder."""
        try:
            if self._kept.used:
                folder, name = self._kept.at(self._open, self._root, path)
                return _state(os.stat(name, dir_fd=folder, follow_symlinks=False))
            found = self._open(self._root, path, _LOOK, 0)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return _state(os.fstat(found))
        finally:
            os.close(found)

    def state_of(self, file: int) -> FileState:
        """The state of an open file."""
        return _state(os.fstat(file))

    def open(self, path: bytes) -> int | None:
        """An open file for reading; None if there is none, or a symbolic link, which is never ours."""
        try:
            return self._near(self._kept, path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_alone(self, path: bytes) -> int | None:
        """Opens a file that is to be locked exclusively: NFS allows that only on a file opened for writing too."""
        try:
            return self._open(self._root, path, _READ | os.O_RDWR, 0)
        except OSError:
            return self.open(path)  # another user's file, where a read-only open is enough to lock it; or none

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        return os.pread(file, size, offset)

    def load(self, path: bytes) -> bytes | None:
        """All bytes of a small file; None if there is none, or something that is not a file."""
        file = None
        try:
            file = self.open(path)
            if file is None:
                return None
            whole = os.pread(file, _LOAD, 0)
            while len(whole) % _LOAD == 0 and (more := os.pread(file, _LOAD, len(whole))):
                whole += more  # a short read means the end of the file
            return whole
        except OSError as why:
            if why.errno in _NO_FILE:
                return None
            raise
        finally:
            if file is not None:
                self.close(file)

    def names(self, path: bytes) -> Iterator[tuple[bytes, bool]]:
        """The names in a directory, in no order, and whether each is a directory; none if there is no directory."""
        try:
            folder = self._open(self._root, path or _HERE, _FOLDER, 0)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield entry.name.encode(*_NAMES), entry.is_dir(follow_symlinks=False)
        finally:
            os.close(folder)

    def close(self, file: int) -> None:
        """Closes a file, which releases the locks on it."""
        os.close(file)

    def open_lock(self, path: bytes) -> int:
        """The file of a lock, made if needed. It is never deleted: then two processes could lock different files."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return self._shared(self._near(self._kept_locks, path, flags))

    def try_lock(self, file: int, *, shared: bool = False) -> bool:
        """Locks an open file until it is closed or the process ends; False if another open file has the lock."""
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _near(self, kept: OpenDirectory, path: bytes, flags: int) -> int:
        if self._kept.used:
            return open_by_steps(*kept.at(self._open, self._root, path), flags, FILE_MODE)
        return self._open(self._root, path, flags, FILE_MODE)

    def _parent(self, path: bytes) -> ParentDirectory:
        return ParentDirectory(self._open, self._root, path)

    def _shared(self, file: int) -> int:
        if self._group:
            with suppress(PermissionError):  # the lock file of another user, who has set the mode
                os.fchmod(file, FILE_MODE | self._group & ~0o111)
        return file


def _state(found: os.stat_result) -> FileState:
    return FileState(
        inode=found.st_ino,
        timestamp=found.st_mtime_ns,
        size=found.st_size,
        is_file=modes.S_ISREG(found.st_mode),
        is_folder=modes.S_ISDIR(found.st_mode),
    )


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


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_LIBC = ctypes.CDLL(None, use_errno=True)
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


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system as it is mounted. The fields are empty where the system does not report mounts."""

    kind: str = ""
    options: frozenset[str] = frozenset()

    @property
    def remote(self) -> bool:
        """Whether other hosts can mount it too."""
        return self.kind in _REMOTE

    @property
    def margin(self) -> timedelta:
        """How far the clocks of the hosts that share it may differ."""
        return MARGIN if self.remote else timedelta(0)

    @property
    def locks_apart(self) -> bool:
        """Whether other hosts do not see the locks of this one."""
        return self.remote and not self.options.isdisjoint(_OWN_LOCKS)

    @property
    def caches_entries(self) -> bool:
        """Whether this host may cache directory entries that another host has changed since."""
        return self.kind.startswith("nfs") and self.options.isdisjoint(_CACHING)


def mount_of(device: tuple[int, int], table: str) -> Mount:
    """The last mount of this device in a table of the form of /proc/self/mountinfo."""
    number = f"{device[0]}:{device[1]}"
    for line in reversed(table.splitlines()):
        here, _, system = line.partition(" - ")
        fields, named = here.split(), system.split()
        if len(fields) > 5 and named and fields[2] == number:
            return Mount(named[0], frozenset(",".join((fields[5], *named[2:])).split(",")))
    return Mount()
