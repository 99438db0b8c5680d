"""Where each job is: one row per job, on exactly one shelf, in that shelf's order.

Invariant: a row's shelf and order follow from the row alone, and every change replaces the row and its index entries
together. So a job cannot be in two places or in none, and counting is asking a shelf how long it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from wrasse.backends.memory.ordered import Ordered
from wrasse.clock import EPOCH
from wrasse.ports.job_transitions import Shelf, StoredJob
from wrasse.ports.jobs import Hold, Place

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row(StoredJob):
    """A stored job. `seq` tells rows apart for ever; `ready_at` is since when it is ready, or when it will be."""

    seq: int = 0
    ready_at: datetime = EPOCH
    counted: bool = False  # by its group

    @property
    def position(self) -> Position:
        """Its place in the order of its shelf."""
        return self.turn, self.seq


class Shelves:
    """All rows, and for each shelf their order: of one queue, and (under None) of all."""

    __slots__ = ("_orders", "_rows", "_seqs")

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._seqs: dict[str, int] = {}
        self._orders: dict[tuple[Shelf, str | None], Ordered[Position]] = {}

    def find(self, id: str) -> Row | None:
        """The row of this job."""
        seq = self._seqs.get(id)
        return None if seq is None else self._rows[seq]

    def current(self, hold: Hold, place: Place) -> Row | None:
        """The row that this hold names, if the job is in this place and nobody else was given it since."""
        row = self.find(hold.id)
        if row is None or row.state.place is not place or row.state.hold != hold:
            return None
        return row

    def set(self, row: Row) -> None:
        """Puts the row where it belongs, whether it is new or was elsewhere before."""
        before = self._rows.get(row.seq)
        if before is not None:
            self._unlist(before)
        self._rows[row.seq] = row
        self._seqs[row.job.id] = row.seq
        shelf, position = row.shelf, row.position
        for queue in (row.job.queue, None):
            order = self._orders.get((shelf, queue))
            if order is None:
                order = self._orders[shelf, queue] = Ordered()
            order.add(position)

    def drop(self, row: Row) -> None:
        """Forgets the row."""
        self._unlist(row)
        del self._rows[row.seq], self._seqs[row.job.id]

    def count(self, shelf: Shelf, queue: str | None = None) -> int:
        """How many jobs are there."""
        order = self._orders.get((shelf, queue))
        return 0 if order is None else len(order)

    def queues(self) -> list[str]:
        """The queues that have any job."""
        return sorted({queue for _, queue in self._orders if queue is not None})

    def walk(
        self, shelf: Shelf, queue: str | None = None, after: Position | None = None, *, newest: bool = False
    ) -> Iterator[Row]:
        """The rows of a shelf in its order."""
        order = self._orders.get((shelf, queue))
        return iter(()) if order is None else (self._rows[at[1]] for at in order.walk(after, newest=newest))

    def first(
        self, shelf: Shelf, queue: str | None = None, after: Position | None = None, *, newest: bool = False
    ) -> Row | None:
        """The row that `walk` would begin with."""
        return next(self.walk(shelf, queue, after, newest=newest), None)

    def _unlist(self, row: Row) -> None:
        for queue in (row.job.queue, None):
            order = self._orders[row.shelf, queue]
            order.remove(row.position)
            if not order:
                del self._orders[row.shelf, queue]
