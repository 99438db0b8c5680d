"""A thread with a connection of its own, which serves what the event loop asks, in order.

Whoever asks is answered exactly once: with a value, with an error of ours, or, after the end, with `closed`. What was
cancelled before its turn is not run.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import apsw

from wrasse.backends.sqlite.connection import File
from wrasse.backends.sqlite.failure import closed, ours
from wrasse.errors import UsageError

A = TypeVar("A")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Ask(Generic[C]):
    """One operation that waits for its turn. `weight` is about how many rows it touches, `request` what it may have
    been asked under before."""

    run: Callable[[C], object]
    answer: asyncio.Future[object]
    weight: int
    request: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one ask: a value, or an error."""

    future: asyncio.Future[object]
    value: object = None
    error: Exception | None = None


class Lane(Generic[C]):
    """The thread. `connect` opens its connection, `serve` does a few asks on it and answers each through `tell`."""

    def __init__(
        self,
        file: File,
        name: str,
        connect: Callable[[], apsw.Connection],
        serve: Callable[[apsw.Connection, Sequence[Ask[C]]], None],
        *,
        weight_max: int,
    ) -> None:
        self._file = file
        self._connect = connect
        self._serve = serve
        self._weight_max = weight_max
        self._asks: queue.SimpleQueue[Ask[C] | None] = queue.SimpleQueue()
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
        """Queues an operation; the future has its answer."""
        if self._closing:
            raise closed(self._file.where)
        if self._pid != os.getpid():
            raise UsageError(f"{self._file.where} was opened before a fork", do="open it in the process that uses it")
        assert self._loop is asyncio.get_running_loop(), "a store serves the event loop that opened it"
        answer: asyncio.Future[A] = self._loop.create_future()
        self._asks.put(Ask(run, answer, weight, request))  # type: ignore[arg-type]  # one queue for answers of every type
        return answer

    def tell(self, answers: Sequence[Answer], then: Callable[[], None] | None = None) -> None:
        """Hands answers to the event loop; for `serve`."""
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_give, answers, then)

    def failed(self, asks: Iterable[Ask[C]], error: Exception, db: apsw.Connection | None) -> None:
        """Answers all of them with our form of this error."""
        failure = ours(error, self._file.where, db.system_errno if db is not None else 0)
        self.tell([Answer(ask.answer, error=failure) for ask in asks])

    async def close(self) -> None:
        """Serves what still waits, then ends the thread."""
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
            self.tell([Answer(self._opened)])
            self._work(db)
        except Exception as error:
            self.tell([Answer(self._opened, error=ours(error, self._file.where))])
        finally:
            self._end(db)

    def _work(self, db: apsw.Connection) -> None:
        last = False
        while not last:
            ask = self._asks.get()
            asks: list[Ask[C]] = []
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
        self.tell([Answer(self._ended)])


def _give(answers: Sequence[Answer], then: Callable[[], None] | None) -> None:
    for answer in answers:
        if not answer.future.done():
            if answer.error is None:
                answer.future.set_result(answer.value)
            else:
                answer.future.set_exception(answer.error)
    if then is not None:
        then()
