"""A directory as a backend: objects and records, shared by any number of processes on one host, or on several hosts if
the file system is shared between them.

Files that are not data are in `%w` at the root. Opening probes the file system, refuses one on which the port's
promises would not hold, and removes the leftovers of writers that died more than an hour ago.

The promises need hard links, which give `create` one winner; exact times, which make versions; and locks between
processes, which make a check and its change atomic. A directory that was written by a later version of wrasse is not
touched. Whether two names can be exchanged decides only how a file becomes a directory (`a` beside `a/b`), and whether
the file system has files without a name decides only what a killed writer leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from wrasse.backends.directory import locks, object_paths, records, temp_files
from wrasse.backends.directory.files import Files, Mount
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import WORKPLACE
from wrasse.backends.directory.object_paths import Exchange, LockedExchange, ObjectPaths, inside
from wrasse.backends.directory.objects import DirectoryObjects, ObjectFiles
from wrasse.backends.directory.records import DirectoryNamespaces, RecordFiles, ThreadedRecords
from wrasse.backends.directory.temp_files import TempFiles, Timestamps
from wrasse.backends.directory.threads import Threads
from wrasse.backends.record_files import DueBucketRecords
from wrasse.clock import Clock, SystemClock
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, UsageError
from wrasse.ports.backend import WARN, Capabilities, Finding, ObjectStore
from wrasse.ports.guard import HealthSample
from wrasse.ports.records import Collection
from wrasse.private_files import make_private_folders

_FORMAT = WORKPLACE + b"/format"
_FORMAT_BYTES = b"wrasse directory 1\n"
_ODD = 1_234_567_891  # nanoseconds that only a file system with exact times returns


def prepare(files: Files, temporary: TempFiles) -> bool:
    """Makes the workplace, and refuses an unsuitable file system. Returns whether names can be exchanged."""
    for folder in (WORKPLACE, temp_files.FOLDER, locks.FOLDER, records.TOMBSTONES):
        with suppress(FileExistsError):
            files.make_folder(folder)
    files.sync_folder(WORKPLACE)
    files.sync_folder(b"")
    _probe_locks(files, temporary.path())
    _check_format(files, temporary)
    exchanges = _probe(files, temporary)
    if not exchanges:
        with suppress(FileExistsError):
            files.make_folder(object_paths.EXCHANGE_FOLDER)
    return exchanges


def _check_format(files: Files, temporary: TempFiles) -> None:
    found = files.load(_FORMAT)
    if found is None:
        with temporary.small_file(_FORMAT_BYTES, renamed=True) as temp_file:
            files.rename(temp_file.path, _FORMAT)  # two processes that open at once write the same bytes
    elif found != _FORMAT_BYTES:
        raise StoreBroken(
            f"{files.root} was written by another version of wrasse", do="use that version, or name another directory"
        )


def _probe(files: Files, temporary: TempFiles) -> bool:
    temporary.blanks = _names_blanks(files, temporary)
    with temporary.small_file(b"") as temp_file:
        files.set_timestamp(temp_file.file, _ODD)
        if files.state_of(temp_file.file).timestamp != _ODD:
            raise _lacks(files, "times exact to the nanosecond")
        folder = temporary.path()
        files.make_folder(folder)
        try:
            try:
                files.link(temp_file.path, inside(folder))
            except OSError as why:
                raise _lacks(files, "hard links") from why
            # If one process cannot exchange names, all processes of this directory use the shared lock instead.
            names = (temp_file.path, folder)
            return (
                files.state(object_paths.EXCHANGE_FOLDER) is None
                and files.exchange(*names)
                and files.exchange(*names)  # and back
            )
        finally:
            files.unlink(inside(folder))
            files.remove_folder(folder)


def _probe_locks(files: Files, path: bytes) -> None:
    """A locked file must be refused to every other open of it, on this host and on all hosts of the file system."""
    if files.mount().locks_apart:
        raise Refused(
            f"{files.root} is mounted so that other hosts do not see this one's locks",
            do="mount it without nolock, local_lock and nobrl",
        )
    first = files.open_lock(path)
    second = files.open_lock(path)
    try:
        if not files.try_lock(first) or files.try_lock(second):
            raise _lacks(files, "locks between processes")
    except OSError as why:
        raise _lacks(files, "locks") from why
    finally:
        files.close(second)
        files.close(first)
        files.unlink(path)


def _names_blanks(files: Files, temporary: TempFiles) -> bool:
    """Whether a file can be created without a name and named later. NFS cannot, and /proc may be hidden."""
    path = temporary.path()
    try:
        file = files.blank(temp_files.FOLDER)
    except OSError:
        return False
    try:
        files.name(file, path)
    except OSError:
        return False
    finally:
        files.close(file)
        files.unlink(path)
    return True


def _lacks(files: Files, what: str) -> Refused:
    return Refused(
        f"the file system of {files.root} has no {what}", do="use a directory on ext4, xfs, btrfs, zfs, tmpfs or NFS"
    )


_SYSTEM = SystemClock()


class Directory(ObjectStore):
    """A backend: objects, records and a health sample. Made by `open`."""

    capabilities = Capabilities(jobs=True, objects=True, copies=True)

    def __init__(self, files: Files, threads: Threads, clock: Clock) -> None:
        self._files = files
        self._threads = threads
        self._clock = clock
        self._locks = Locks(files)
        timestamps = Timestamps(clock, files.inode)
        self._temp_files = TempFiles(files, timestamps)
        exchanges = prepare(files, self._temp_files)
        self._mount = files.mount()
        self.margin = self._mount.margin  # by how much its clock may be off
        self._honours = _found(self._mount, exchanges)
        self._places = ObjectPaths(
            files, (Exchange if exchanges else LockedExchange)(files, self._locks, self._temp_files)
        )
        objects = ObjectFiles(files, self._locks, self._temp_files, timestamps, self._places)
        objects.clean()
        self.objects = DirectoryObjects(threads, files, self._temp_files, timestamps, objects)
        self.namespaces = DirectoryNamespaces(threads, files, clock)
        self._records: dict[Collection, DueBucketRecords] = {}

    @classmethod
    async def open(
        cls, path: str | Path, clock: Clock = _SYSTEM, *, files: Callable[[str], Files] = Files
    ) -> Directory:
        """Opens the directory, and makes it if it does not exist. `files` makes the system calls."""
        if not str(path):
            raise UsageError("the directory has no name", do="name one, for example wrasse-data")
        threads = Threads(str(path))
        try:
            return await threads.run(lambda: cls._opened(str(path), files, threads, clock))
        except BaseException:
            await threads.close()
            raise

    @classmethod
    def _opened(cls, path: str, files: Callable[[str], Files], threads: Threads, clock: Clock) -> Directory:
        try:
            make_private_folders(path)
            root = files(path)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(
                f"{path} is not a directory", do="name a directory, or move the file out of the way"
            ) from None
        try:
            return cls(root, threads, clock)
        except BaseException:
            root.close_root()
            raise

    def records(self, collection: Collection) -> DueBucketRecords:
        """The records of one collection; the same ones each time."""
        if collection not in self._records:
            records = RecordFiles(self._files, self._locks, self._temp_files, self._places, collection)
            self._records[collection] = DueBucketRecords(
                ThreadedRecords(self._threads, records), collection.width, self._clock.now
            )
        return self._records[collection]

    async def health_sample(self) -> HealthSample:
        """Checks that the directory exists, and reads the host's clock."""
        if await self._threads.run(lambda: self._files.state(WORKPLACE)) is None:
            raise StoreUnavailable(
                f"{self._files.root} was moved or deleted while it was open", do="put it back, or start again"
            )
        return HealthSample(f"directory-{self._files.inode}", self._clock.now())

    async def honours(self) -> str:
        return self._honours

    async def examine(self) -> Sequence[Finding]:
        """Checks whether several hosts can share the directory as it is mounted."""
        if not self._mount.caches_entries:
            return ()
        what = f"{self._files.root} is on {self._mount.kind}, and this host may read outdated directory entries"
        return (Finding("mount", WARN, what, "mount it with noac, or use it from one host only"),)

    async def close(self) -> None:
        """Waits for calls that have begun; no call is accepted afterwards."""
        if await self._threads.close():
            self._temp_files.close()
            self._files.close_root()


def _found(mount: Mount, exchanges: bool) -> str:
    """The results of the probes, for `wrasse doctor`."""
    names = "names that change places" if exchanges else "names that move in turns"
    where = mount.kind or "a file system of unknown kind"
    return f"on {where}: hard links, locks, exact times, {names}, listing ordered"
