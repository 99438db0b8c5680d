"""One database file and its two connections: each belongs to a thread that runs queued operations of the event loop.

A commit is durable before it returns (`synchronous=FULL`). The writer runs all queued operations in one transaction and
answers them after its commit; one that raises fails alone: its group is rolled back and run again one by one. The
reader runs each operation on a snapshot. Every operation is answered exactly once: with a value, with an error of ours,
or, after the end, with `closed`. An operation that was cancelled while it was queued is not run.

Other processes may use the file at the same time. The wait for their locks is our own: SQLite's backs off to 100 ms,
and under load that starves the process that has waited longest.

An old database is migrated when it is opened, a newer or foreign one is refused; nothing is written to a file before it
is known to be ours. All missing steps are made in one transaction under the write lock, and the version is read again
inside it, so two processes that open a database at once make each step once.

Only this file knows SQLite's exceptions. Errors of our own code (misuse, bindings, constraints) are not mapped to ours:
they stop the program, and a retry would not help.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import random
import re
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import apsw

from wrasse.backends.sqlite.write_transaction import WriteTransaction
from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreBroken, StoreFull, StoreUnavailable, UsageError, reason_of
from wrasse.private_files import make_private_file

APPLICATION_ID = 0x77726173  # "wras", in the file's header
GROUP_ROWS_MAX = 2_000  # about how many rows one transaction touches: other processes wait for it
_READS_TOGETHER = 8  # operations that the reader takes off its queue at once
_CHECKPOINT_PAGES = 2_000
_LOG_BYTES_MAX = 64 << 20
_CACHE_KIB = 8_192
_LOCK_PAUSE = 0.001  # seconds between two tries of a lock
_WAL_TRIES = 1_000
_WAL_PAUSE = 0.01  # seconds
_NO_FILE = {errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
A = TypeVar("A")
C = TypeVar("C")
ReadyCallback = Callable[[frozenset[str]], None]


@dataclass(frozen=True, slots=True)
class File:
    """A database file: its absolute path, its name in messages, and how long to wait for other processes."""

    path: str
    where: str
    patience: timedelta

    @classmethod
    def at(cls, path: str | Path, patience: timedelta) -> File:
        """A file on disk, independent of later changes of the working directory."""
        if str(path) in ("", ":memory:"):
            raise UsageError(f"{str(path)!r} is not a file", do="name a file, or use the memory backend")
        return cls(os.path.abspath(path), str(path), patience)

    def open(self, *, creates: bool = False, reads_only: bool = False) -> apsw.Connection:
        """A connection with our settings."""
        self._check()
        if creates:
            make_private_file(self.path)  # SQLite gives its -wal and -shm files the mode of the database
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if creates else 0)
        db = apsw.Connection(self.path, flags)
        db.set_busy_handler(_Patience(self.patience).asked)
        if db.readonly("main"):
            db.close()
            raise unwritable(self.where)
        db.pragma("synchronous", "full")
        db.pragma("cache_size", -_CACHE_KIB)
        db.pragma("journal_size_limit", _LOG_BYTES_MAX)
        db.wal_autocheckpoint(_CHECKPOINT_PAGES)
        if reads_only:
            db.pragma("query_only", True)
        return db

    def _check(self) -> None:
        """Refuses a path that is not a regular file: waiting would not change that."""
        try:
            why = "" if stat.S_ISREG(os.stat(self.path).st_mode) else "it is not a regular file"
        except OSError as error:
            why = reason_of(error) if error.errno in _NO_FILE else ""
        if why:
            raise StoreBroken(f"{self.where} is not a database: {why}", do="name another file, or remove it")

    def inode(self) -> tuple[int, int]:
        """Device and inode of the file at the path now."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise moved(self.where) from None
        return found.st_dev, found.st_ino


class _Patience:
    """SQLite calls it to decide whether to try a lock again. It pauses for about a millisecond, with a random factor so
    that processes do not poll in step, and gives up after its time."""

    def __init__(self, patience: timedelta) -> None:
        self._seconds = patience.total_seconds()
        self._clock = SystemClock()  # other processes live in real time, whatever clock this store was made with
        self._pause = threading.Event()
        self._end = 0.0

    def asked(self, tries: int) -> bool:
        now = self._clock.monotonic()
        if tries == 0:
            self._end = now + self._seconds
        self._pause.wait(_LOCK_PAUSE * (0.5 + random.random()))
        return now < self._end


@dataclass(frozen=True, slots=True)
class QueuedOperation(Generic[C]):
    """One queued operation. `weight` is about how many rows it touches, `request` the id under which an earlier try may
    have been answered."""

    run: Callable[[C], object]
    answer: asyncio.Future[object]
    weight: int
    request: str


@dataclass(frozen=True, slots=True)
class AskResult:
    """The result of one operation: a value, or an error."""

    future: asyncio.Future[object]
    value: object = None
    error: Exception | None = None


class ConnectionThread(Generic[C]):
    """A thread with a connection of its own, which `connect` opens. `serve` runs some operations on it and answers each
    through `tell`."""

    def __init__(
        self,
        file: File,
        name: str,
        connect: Callable[[], apsw.Connection],
        serve: Callable[[apsw.Connection, Sequence[QueuedOperation[C]]], None],
        *,
        weight_max: int,
    ) -> None:
        self._file = file
        self._connect = connect
        self._serve = serve
        self._weight_max = weight_max
        self._asks: queue.SimpleQueue[QueuedOperation[C] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[object] = self._loop.create_future()
        self._ended: asyncio.Future[object] = self._loop.create_future()
        self._closing = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._live, name=f"wrasse-sqlite-{name}", daemon=True)

    async def open(self) -> None:
        """Starts the thread; returns when its connection is open."""
        self._thread.start()
        await self._opened

    def ask(self, run: Callable[[C], A], weight: int = 1, request: str = "") -> asyncio.Future[A]:
        """Queues an operation; the future gets its answer."""
        if self._closing:
            raise closed(self._file.where)
        if self._pid != os.getpid():
            raise UsageError(f"{self._file.where} was opened before a fork", do="open it in the process that uses it")
        assert self._loop is asyncio.get_running_loop(), "a store serves the event loop that opened it"
        answer: asyncio.Future[A] = self._loop.create_future()
        self._asks.put(QueuedOperation(run, answer, weight, request))  # type: ignore[arg-type]  # one queue for answers of every type
        return answer

    def tell(self, answers: Sequence[AskResult], then: Callable[[], None] | None = None) -> None:
        """Passes answers to the event loop; for `serve`."""
        with suppress(RuntimeError):  # the event loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(_give, answers, then)

    def failed(self, asks: Iterable[QueuedOperation[C]], error: Exception, db: apsw.Connection | None) -> None:
        """Answers all of them with our form of this error."""
        failure = ours(error, self._file.where, db.system_errno if db is not None else 0)
        self.tell([AskResult(ask.answer, error=failure) for ask in asks])

    async def close(self) -> None:
        """Runs what is still queued, then ends the thread."""
        if not self._closing:
            self._closing = True
            self._asks.put(None)
        if self._thread.ident is not None:
            await asyncio.shield(self._ended)
            self._thread.join()

    def _live(self) -> None:
        db = None
        try:
            db = self._connect()
            self.tell([AskResult(self._opened)])
            self._work(db)
        except Exception as error:
            self.tell([AskResult(self._opened, error=ours(error, self._file.where))])
        finally:
            self._end(db)

    def _work(self, db: apsw.Connection) -> None:
        last = False
        while not last:
            ask = self._asks.get()
            asks: list[QueuedOperation[C]] = []
            weight = 0
            while ask is not None:
                if not ask.answer.cancelled():
                    asks.append(ask)
                    weight += ask.weight
                if weight >= self._weight_max or self._asks.empty():
                    break
                ask = self._asks.get()
            last = ask is None
            if asks:
                self._serve(db, asks)

    def _end(self, db: apsw.Connection | None) -> None:
        self._closing = True
        if db is not None:
            db.close()
        late = []
        while not self._asks.empty():
            if (ask := self._asks.get()) is not None:
                late.append(ask)
        self.failed(late, closed(self._file.where), None)
        self.tell([AskResult(self._ended)])


def _give(answers: Sequence[AskResult], then: Callable[[], None] | None) -> None:
    for answer in answers:
        if not answer.future.done():
            if answer.error is None:
                answer.future.set_result(answer.value)
            else:
                answer.future.set_exception(answer.error)
    if then is not None:
        then()


class SqliteReader:
    """Runs operations that change nothing."""

    def __init__(self, file: File) -> None:
        self._thread: ConnectionThread[apsw.Connection] = ConnectionThread(
            file, "reader", self._connect, self._serve, weight_max=_READS_TOGETHER
        )
        self._file = file
        self.open, self.close = self._thread.open, self._thread.close

    async def do(self, run: Callable[[apsw.Connection], A]) -> A:
        """Runs an operation on one snapshot."""
        return await self._thread.ask(run)

    def _connect(self) -> apsw.Connection:
        return self._file.open(reads_only=True)

    def _serve(self, db: apsw.Connection, asks: Sequence[QueuedOperation[apsw.Connection]]) -> None:
        for ask in asks:
            try:
                db.execute("BEGIN")
                try:
                    answer = AskResult(ask.answer, ask.run(db))
                finally:
                    db.execute("ROLLBACK")
            except Exception as error:
                self._thread.failed([ask], error, db)
            else:
                self._thread.tell([answer])


class SqliteWriter:
    """Runs operations on the database, each atomic, and durable when it is answered. `on_ready` gets the queues in
    which jobs became ready."""

    def __init__(self, file: File, clock: Clock, on_ready: ReadyCallback) -> None:
        self._file = file
        self._clock = clock
        self._on_ready = on_ready
        self._inode = (0, 0)
        self._thread: ConnectionThread[WriteTransaction] = ConnectionThread(
            file, "writer", self._connect, self._serve, weight_max=GROUP_ROWS_MAX
        )
        self.open, self.close = self._thread.open, self._thread.close

    async def do(self, run: Callable[[WriteTransaction], A], weight: int = 1, request: str = "") -> A:
        """Runs an operation in a write transaction; returns when it is durable. `request` is the id it may recall."""
        return await self._thread.ask(run, weight, request)

    def ask(self, run: Callable[[WriteTransaction], A], weight: int = 1, request: str = "") -> asyncio.Future[A]:
        """Like `do`, for callers that need the answer even after being cancelled."""
        return self._thread.ask(run, weight, request)

    def _connect(self) -> apsw.Connection:
        db = self._file.open(creates=True)
        prepare(db, self._file.where, load_steps())
        self._inode = self._file.inode()
        return db

    def _serve(self, db: apsw.Connection, asks: Sequence[QueuedOperation[WriteTransaction]]) -> None:
        try:
            if self._file.inode() != self._inode:
                raise moved(self._file.where)
            db.execute("BEGIN IMMEDIATE")
        except Exception as error:
            self._thread.failed(asks, error, db)
            return
        tx = WriteTransaction(db, self._clock, [ask.request for ask in asks if ask.request])
        try:
            answers = [AskResult(ask.answer, ask.run(tx)) for ask in asks]
            tx.close()
            db.execute("COMMIT")
        except Exception as error:
            self._undo(db, asks, error)
            return
        self._thread.tell(answers, partial(self._on_ready, frozenset(tx.ready_queues)) if tx.ready_queues else None)

    def _undo(self, db: apsw.Connection, asks: Sequence[QueuedOperation[WriteTransaction]], error: Exception) -> None:
        if len(asks) == 1:
            self._thread.failed(asks, error, db)
        if db.in_transaction:
            db.execute("ROLLBACK")
        if len(asks) > 1:
            for ask in asks:
                self._serve(db, [ask])


def load_steps() -> tuple[str, ...]:
    """The steps of schema.sql; step n brings a database from version n-1 to n."""
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- step (\d+)$", text, flags=re.MULTILINE)
    assert parts[::2] == [str(n + 1) for n in range(len(parts) // 2)], "steps are numbered from 1 without a gap"
    return tuple(parts[1::2])


def prepare(db: apsw.Connection, where: str, steps: Sequence[str]) -> None:
    """Migrates the database to this version of wrasse, or raises the reason why not."""
    if _version(db, where, steps) < len(steps) or db.pragma("journal_mode") != "wal":
        _use_wal(db, where)
        _apply(db, where, steps)


def identity(db: apsw.Connection) -> str:
    """The name given to this database when it was made; of an invalid one its bytes, so that the identity differs."""
    name = db.execute("SELECT CAST(name AS BLOB) FROM identity").get
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def _version(db: apsw.Connection, where: str, steps: Sequence[str]) -> int:
    """The version of a database that is ours or empty. One transaction: another process may be making it just now."""
    with db:
        empty = db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is None
        application, version = int(db.pragma("application_id")), int(db.pragma("user_version"))
    if application != APPLICATION_ID and (application or version or not empty):
        raise StoreBroken(
            f"{where} is a database of another program", do="name another file; nothing was changed in this one"
        )
    if version > len(steps):
        raise StoreBroken(
            f"{where} has schema version {version}, and this version of wrasse knows {len(steps)}",
            do="use the newer version of wrasse that wrote it, or another file",
        )
    return version


def _use_wal(db: apsw.Connection, where: str) -> None:
    """Enables the write-ahead log, which lets readers work beside the writer. SQLite fails at once while another
    process makes the same switch, so the retry is here."""
    pause = threading.Event()
    for _ in range(_WAL_TRIES):
        try:
            mode = db.pragma("journal_mode", "wal")
        except apsw.BusyError:
            pause.wait(_WAL_PAUSE)
            continue
        if mode != "wal":
            raise StoreUnavailable(
                f"{where} cannot keep a write-ahead log, only {mode}", do="put it on a local disk, not on a share"
            )
        return
    raise apsw.BusyError("another process prevented the switch to the write-ahead log")


def _apply(db: apsw.Connection, where: str, steps: Sequence[str]) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db, where, steps)
        for step in steps[version:]:
            for _ in db.execute(step):
                pass  # a statement that returns rows must be read to its end before the next one
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", len(steps))
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def ours(error: Exception, where: str, system: int = 0) -> Exception:
    """Our error for one of SQLite's. `where` names the database, `system` is the operating system's error number."""
    match error:
        case apsw.FullError() | apsw.IOError() if isinstance(error, apsw.FullError) or system in _NO_ROOM:
            return StoreFull(f"there is no room left for {where}", do="free some disk space; nothing was changed")
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreUnavailable(
                f"{where} stayed locked by another process; nothing was changed",
                do="look for a program that keeps it open for writing, such as a shell or a backup",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return unwritable(where)
        case apsw.NotADBError() | apsw.FormatError():
            return StoreBroken(f"{where} is not a database", do="name another file, or move this one out of the way")
        case apsw.CorruptError() | apsw.SQLError() | apsw.SchemaChangeError():
            return StoreBroken(
                f"{where} is corrupt: {error}",
                do="stop everything that uses it, keep a copy of it with its -wal file, and restore a backup",
            )
        case apsw.CantOpenError():
            why = f": {os.strerror(system)}" if system else ""
            return StoreUnavailable(
                f"{where} cannot be opened{why}", do="check that its directory exists and this user may write there"
            )
        case apsw.IOError() | apsw.NoMemError() | apsw.InterruptError() | apsw.AbortError():
            why = os.strerror(system) if system else str(error)
            return StoreUnavailable(f"{where} could not be read or written: {why}", do="check its disk")
        case _:
            return error


def unwritable(where: str) -> StoreUnavailable:
    """The database or its directory is read-only."""
    return StoreUnavailable(
        f"{where} cannot be written", do="let this user write the file and its directory, or name another file"
    )


def moved(where: str) -> StoreUnavailable:
    """The file at the path is no longer the open one: later writes would be lost."""
    return StoreUnavailable(
        f"{where} was moved, replaced or deleted while it was open; nothing was changed",
        do="put the file back, or start again to begin a new one",
    )


def closed(where: str) -> StoreUnavailable:
    """A call after close."""
    return StoreUnavailable(f"{where} is closed", do="open it again; a store serves until its close() and not after")
