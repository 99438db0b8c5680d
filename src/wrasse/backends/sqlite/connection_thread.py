"""A thread with a connection of its own, which runs queued operations of the event loop in order.

Every operation is answered exactly once: with a value, with an error of ours, or, after the end, with `closed`. An
operation that was cancelled while it was queued is not run.

The writer thread runs all queued operations in one transaction, made durable by one commit, and then answers them.

No operation is answered before the commit. An operation that raises fails alone: its group is rolled back and run again
one by one.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import apsw

from wrasse.backends.sqlite.connection import File
from wrasse.backends.sqlite.failure import closed, moved, ours
from wrasse.backends.sqlite.schema import load_steps, prepare
from wrasse.backends.sqlite.write_transaction import WriteTransaction
from wrasse.clock import Clock
from wrasse.errors import UsageError

C = TypeVar("C")


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
    """The thread. `connect` opens its connection, `serve` runs some operations on it and answers each through
    `tell`."""

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


_ANSWERED_TOGETHER = 8

A = TypeVar("A")


class SqliteReader:
    """Runs operations that change nothing."""

    def __init__(self, file: File) -> None:
        self._thread: ConnectionThread[apsw.Connection] = ConnectionThread(
            file, "reader", self._connect, self._serve, weight_max=_ANSWERED_TOGETHER
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


GROUP_ROWS_MAX = 2_000  # about how many rows one transaction touches: other processes wait for it


ReadyCallback = Callable[[frozenset[str]], None]


class SqliteWriter:
    """Runs operations on the database, each atomic, and durable when it is answered. `ring` gets the queues in which
    jobs became ready."""

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
