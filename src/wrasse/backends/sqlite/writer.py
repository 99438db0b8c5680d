"""The one thread that writes: whatever waits is done in one transaction, made durable by one commit, then answered.

Nobody is answered before the commit. An operation that raises spoils only itself: its group is rolled back and run
again one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import apsw

from wrasse.backends.sqlite.connection import File
from wrasse.backends.sqlite.failure import moved
from wrasse.backends.sqlite.lane import Answer, Ask, Lane
from wrasse.backends.sqlite.schema import load_steps, prepare
from wrasse.backends.sqlite.step import Step
from wrasse.clock import Clock

GROUP_ROWS_MAX = 2_000  # about how many rows one transaction touches: others wait for as long as it takes

A = TypeVar("A")
Ring = Callable[[frozenset[str]], None]


class Writer:
    """Runs operations on the database, each atomic, and durable when it is answered. `ring` hears of queues in which
    something became ready."""

    def __init__(self, file: File, clock: Clock, ring: Ring) -> None:
        self._file = file
        self._clock = clock
        self._ring = ring
        self._inode = (0, 0)
        self._lane: Lane[Step] = Lane(file, "writer", self._connect, self._serve, weight_max=GROUP_ROWS_MAX)
        self.open, self.close = self._lane.open, self._lane.close

    async def do(self, run: Callable[[Step], A], weight: int = 1, request: str = "") -> A:
        """Runs an operation in a write transaction; returns when it is durable. `request` is what it recalls."""
        return await self._lane.ask(run, weight, request)

    def ask(self, run: Callable[[Step], A], weight: int = 1, request: str = "") -> asyncio.Future[A]:
        """Like `do`, for whoever has to know the answer even after being cancelled."""
        return self._lane.ask(run, weight, request)

    def _connect(self) -> apsw.Connection:
        db = self._file.open(creates=True)
        prepare(db, self._file.where, load_steps())
        self._inode = self._file.inode()
        return db

    def _serve(self, db: apsw.Connection, asks: Sequence[Ask[Step]]) -> None:
        try:
            if self._file.inode() != self._inode:
                raise moved(self._file.where)
            db.execute("BEGIN IMMEDIATE")
        except Exception as error:
            self._lane.failed(asks, error, db)
            return
        step = Step(db, self._clock, [ask.request for ask in asks if ask.request])
        try:
            answers = [Answer(ask.answer, ask.run(step)) for ask in asks]
            step.close()
            db.execute("COMMIT")
        except Exception as error:
            self._undo(db, asks, error)
            return
        self._lane.tell(answers, partial(self._ring, frozenset(step.rung)) if step.rung else None)

    def _undo(self, db: apsw.Connection, asks: Sequence[Ask[Step]], error: Exception) -> None:
        if len(asks) == 1:
            self._lane.failed(asks, error, db)
        if db.in_transaction:
            db.execute("ROLLBACK")
        if len(asks) > 1:
            for ask in asks:
                self._serve(db, [ask])
