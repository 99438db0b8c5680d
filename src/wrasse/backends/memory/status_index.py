"""The status of each job: one row per job, with exactly one status, in the order of that status; and pages of it.

Invariant: a row's status and order follow from the row alone, and every change replaces the row and its index entries
together. So a job cannot have two states or none, and counting is the length of a list.

A cursor of a page is a status and a position, so the next page begins there even if the job it names has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from wrasse.backends.memory.ordered import Ordered
from wrasse.clock import EPOCH, to_micros
from wrasse.ports.jobs import Claim, JobFilter, JobInfo, JobState, JobStatus
from wrasse.ports.page import Page, check_limit, no_cursor, number_in, other_listing
from wrasse.ports.rules.job_transitions import StoredJob

Position = tuple[int, int]
_BEYOND = 1 << 62  # a row number above all others


@dataclass(frozen=True, slots=True)
class JobRow(StoredJob):
    """A stored job. `seq` is the row's lasting number; `ready_at` is since when it is ready, or when it will be."""

    seq: int = 0
    ready_at: datetime = EPOCH
    counted: bool = False  # whether its group has counted it

    @property
    def position(self) -> Position:
        """Its position in the order of its status."""
        return self.index_position, self.seq


class JobIndex:
    """All rows, and for each status their order: of one queue, and (under None) of all."""

    __slots__ = ("_orders", "_rows", "_seqs")

    def __init__(self) -> None:
        self._rows: dict[int, JobRow] = {}
        self._seqs: dict[str, int] = {}
        self._orders: dict[tuple[JobStatus, str | None], Ordered[Position]] = {}

    def find(self, id: str) -> JobRow | None:
        """The row of this job."""
        seq = self._seqs.get(id)
        return None if seq is None else self._rows[seq]

    def current(self, claim: Claim, state: JobState) -> JobRow | None:
        """The row of this claim, if the job is in this state and was not claimed again since."""
        row = self.find(claim.id)
        if row is None or row.info.state is not state or row.info.claim != claim:
            return None
        return row

    def set(self, row: JobRow) -> None:
        """Stores a row, new or changed, under its status."""
        before = self._rows.get(row.seq)
        if before is not None:
            self._unlist(before)
        self._rows[row.seq] = row
        self._seqs[row.job.id] = row.seq
        status, position = row.status, row.position
        for queue in (row.job.queue, None):
            order = self._orders.get((status, queue))
            if order is None:
                order = self._orders[status, queue] = Ordered()
            order.add(position)

    def drop(self, row: JobRow) -> None:
        """Forgets the row."""
        self._unlist(row)
        del self._rows[row.seq], self._seqs[row.job.id]

    def count(self, status: JobStatus, queue: str | None = None) -> int:
        """How many jobs have this status."""
        order = self._orders.get((status, queue))
        return 0 if order is None else len(order)

    def queues(self) -> list[str]:
        """The queues that have any job."""
        return sorted({queue for _, queue in self._orders if queue is not None})

    def walk(
        self, status: JobStatus, queue: str | None = None, after: Position | None = None, *, newest: bool = False
    ) -> Iterator[JobRow]:
        """The rows of a status in its order."""
        order = self._orders.get((status, queue))
        return iter(()) if order is None else (self._rows[at[1]] for at in order.walk(after, newest=newest))

    def first(
        self, status: JobStatus, queue: str | None = None, after: Position | None = None, *, newest: bool = False
    ) -> JobRow | None:
        """The row that `walk` would begin with."""
        return next(self.walk(status, queue, after, newest=newest), None)

    def _unlist(self, row: JobRow) -> None:
        for queue in (row.job.queue, None):
            order = self._orders[row.status, queue]
            order.remove(row.position)
            if not order:
                del self._orders[row.status, queue]


def page(
    index: JobIndex, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool, at: datetime
) -> Page[JobInfo]:
    """Jobs of one state that match, in its order."""
    rows = chain.from_iterable(
        _within(index, status, where, start, newest=newest) for status, start in _index(state, where, after, newest)
    )
    return _cut((row for row in rows if where.allows(row.info)), limit, at)


def overdue(index: JobIndex, after: str | None, limit: int, *, at: datetime) -> Page[JobInfo]:
    """Running jobs whose deadline has passed, longest ago first."""
    start = None if after is None else _position(after)[1]
    return _cut(
        _until(index.walk(JobStatus.RUNNING, after=start), lambda row: row.position[0] > to_micros(at)), limit, at
    )


def _index(
    state: JobState, where: JobFilter, after: str | None, newest: bool
) -> Iterator[tuple[JobStatus, Position | None]]:
    """The statuses of a state that are still to be read, each with where to begin."""
    index = [JobStatus.READY, JobStatus.SCHEDULED] if state is JobState.READY else [JobStatus(state.value)]
    if state is JobState.READY and where.scheduled is not None:
        index = [JobStatus.SCHEDULED if where.scheduled else JobStatus.READY]
    if newest:
        index.reverse()
    begun, start = (index[0], None) if after is None else _position(after)
    if begun not in index:
        raise other_listing(after)
    for status in index[index.index(begun) :]:
        yield status, start if status is begun else None


def _within(
    index: JobIndex, status: JobStatus, where: JobFilter, start: Position | None, *, newest: bool
) -> Iterator[JobRow]:
    """The rows of a status between the filter's instants: finished jobs are in the order they finished."""
    if status not in (JobStatus.DONE, JobStatus.DEAD):
        return index.walk(status, where.queue, start, newest=newest)
    low = None if where.finished_after is None else (to_micros(where.finished_after), _BEYOND)
    high = None if where.finished_before is None else (to_micros(where.finished_before), -1)
    if newest:
        start = min((at for at in (start, high) if at is not None), default=None)
        rows = index.walk(status, where.queue, start, newest=True)
        return rows if low is None else _until(rows, lambda row: row.position <= low)
    start = max((at for at in (start, low) if at is not None), default=None)
    rows = index.walk(status, where.queue, start)
    return rows if high is None else _until(rows, lambda row: row.position >= high)


def _until(rows: Iterable[JobRow], ends: Callable[[JobRow], bool]) -> Iterator[JobRow]:
    for row in rows:
        if ends(row):
            return
        yield row


def _cut(rows: Iterable[JobRow], limit: int, at: datetime) -> Page[JobInfo]:
    check_limit(limit, "jobs")
    found = [(f"{row.status}:{row.position[0]}:{row.position[1]}", row.info) for row in islice(rows, limit + 1)]
    return Page.cut(found, limit, at)


def _position(cursor: str) -> tuple[JobStatus, Position]:
    try:
        status, order, seq = cursor.split(":")
        return JobStatus(status), (number_in(cursor, order), number_in(cursor, seq))
    except ValueError:
        raise no_cursor(cursor) from None
