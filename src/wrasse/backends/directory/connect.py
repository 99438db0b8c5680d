"""A directory as a backend: objects and records, for any number of processes on one machine, or on several where the
file system is one that they share.

What is not data is in `%w` at the root. Opening refuses a file system on which the promises would not hold, and removes
what writers left that died more than an hour ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wrasse.backends.bucket.named_records import BucketRecords
from wrasse.backends.directory.files import Files, Mount
from wrasse.backends.directory.locks import Locks
from wrasse.backends.directory.names import WORKPLACE
from wrasse.backends.directory.namespaces import DirectoryNamespaces
from wrasse.backends.directory.objects import DirectoryObjects, ObjectFiles
from wrasse.backends.directory.places import Exchange, InTurns, Places
from wrasse.backends.directory.probe import prepare
from wrasse.backends.directory.records import RecordFiles, ThreadedRecords
from wrasse.backends.directory.temps import Stamps, Temps
from wrasse.backends.directory.threads import Threads
from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.backend import ObjectStore
from wrasse.ports.capabilities import Capabilities
from wrasse.ports.finding import WARN, Finding
from wrasse.ports.pulse import Pulse
from wrasse.ports.records import Collection
from wrasse.private_files import make_private_folders

_SYSTEM = SystemClock()


class Directory(ObjectStore):
    """A backend: objects, records and a pulse. Made by `open`."""

    capabilities = Capabilities(jobs=True, objects=True, copies=True)

    def __init__(self, files: Files, threads: Threads, clock: Clock) -> None:
        self._files = files
        self._threads = threads
        self._clock = clock
        self._locks = Locks(files)
        stamps = Stamps(clock, files.inode)
        self._temps = Temps(files, stamps)
        exchanges = prepare(files, self._temps)
        self._mount = files.mount()
        self.margin = self._mount.margin  # how far the time it tells may be off
        self._honours = _found(self._mount, exchanges)
        self._places = Places(files, (Exchange if exchanges else InTurns)(files, self._locks, self._temps))
        objects = ObjectFiles(files, self._locks, self._temps, stamps, self._places)
        objects.clean()
        self.objects = DirectoryObjects(threads, files, self._temps, stamps, objects)
        self.namespaces = DirectoryNamespaces(threads, files, clock)
        self._records: dict[Collection, BucketRecords] = {}

    @classmethod
    async def open(
        cls, path: str | Path, clock: Clock = _SYSTEM, *, files: Callable[[str], Files] = Files
    ) -> Directory:
        """Opens the directory, and makes it if it is not there. `files` is what does its system calls."""
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

    def records(self, collection: Collection) -> BucketRecords:
        """The records of one collection; the same ones each time."""
        if collection not in self._records:
            records = RecordFiles(self._files, self._locks, self._temps, self._places, collection)
            self._records[collection] = BucketRecords(
                ThreadedRecords(self._threads, records), collection.width, self._clock.now
            )
        return self._records[collection]

    async def pulse(self) -> Pulse:
        """That the directory is there, and the host's clock."""
        if await self._threads.run(lambda: self._files.state(WORKPLACE)) is None:
            raise StoreUnavailable(
                f"{self._files.root} was moved or deleted while it was open", do="put it back, or start again"
            )
        return Pulse(f"directory-{self._files.inode}", self._clock.now())

    async def honours(self) -> str:
        return self._honours

    async def examine(self) -> Sequence[Finding]:
        """Whether several hosts could share it as it is mounted."""
        if not self._mount.remembers:
            return ()
        what = f"{self._files.root} is on {self._mount.kind}, and this host may for a while see it as it was"
        return (Finding("mount", WARN, what, "mount it with noac, or let one host alone use it"),)

    async def close(self) -> None:
        """Waits for what has begun; nothing may be asked afterwards."""
        if await self._threads.close():
            self._temps.close()
            self._files.close_root()


def _found(mount: Mount, exchanges: bool) -> str:
    """What was found out, for the doctor."""
    names = "names that change places" if exchanges else "names that move in turns"
    where = mount.kind or "a file system of unknown kind"
    return f"on {where}: hard links, locks, exact times, {names}, listing ordered"
