"""The thread that reads. It never waits for the writer, and each operation sees one moment of the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from wrasse.backends.sqlite.connection import File
from wrasse.backends.sqlite.lane import Answer, Ask, Lane

_ANSWERED_TOGETHER = 8

A = TypeVar("A")


class Reader:
    """Runs operations that change nothing."""

    def __init__(self, file: File) -> None:
        self._lane: Lane[apsw.Connection] = Lane(
            file, "reader", self._connect, self._serve, weight_max=_ANSWERED_TOGETHER
        )
        self._file = file
        self.open, self.close = self._lane.open, self._lane.close

    async def do(self, run: Callable[[apsw.Connection], A]) -> A:
        """Runs an operation on one snapshot."""
        return await self._lane.ask(run)

    def _connect(self) -> apsw.Connection:
        return self._file.open(reads_only=True)

    def _serve(self, db: apsw.Connection, asks: Sequence[Ask[apsw.Connection]]) -> None:
        for ask in asks:
            try:
                db.execute("BEGIN")
                try:
                    answer = Answer(ask.answer, ask.run(db))
                finally:
                    db.execute("ROLLBACK")
            except Exception as error:
                self._lane.failed([ask], error, db)
            else:
                self._lane.tell([answer])
