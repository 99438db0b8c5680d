"""Counters that the metrics read: what workers and producers of this process did.

A job is counted as completed, failed, requeued or dead once the backend has confirmed it, not when a handler returned.
Readers pull; nothing is pushed. Labels are bounded: the first QUEUES_MAX queues have one of their own, all later ones
share `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wrasse.ports.jobs import Reason

QUEUES_MAX = 50
OTHER = "other"
BOUNDS: tuple[float, ...] = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0,
)  # fmt: skip


class Labels:
    """Which label a queue has; the same in every counter that shares this."""

    __slots__ = ("_known",)

    def __init__(self, first: Iterable[str] = ()) -> None:
        self._known: dict[str, str] = {}
        for queue in first:  # those that must have a label of their own
            self.of(queue)

    def of(self, queue: str) -> str:
        """The queue's own name while there is room, then `other`."""
        label = self._known.get(queue)
        if label is None:
            if len(self._known) >= QUEUES_MAX:
                return OTHER
            label = self._known[queue] = queue
        return label


class Count:
    """One number per queue that only grows."""

    __slots__ = ("_labels", "_numbers")

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._numbers: dict[str, int] = {}

    def add(self, queue: str, number: int = 1) -> None:
        """Adds to the queue's number."""
        label = self._labels.of(queue)
        self._numbers[label] = self._numbers.get(label, 0) + number

    def items(self) -> Iterator[tuple[str, int]]:
        """Label and number, as they are now."""
        return iter(tuple(self._numbers.items()))

    def total(self) -> int:
        """The sum over all queues."""
        return sum(self._numbers.values())

    def __getitem__(self, queue: str) -> int:
        return self._numbers.get(self._labels.of(queue), 0)


class Histogram:
    """How long handlers took: `counts[i]` is how many took at most BOUNDS[i], the last how many took longer."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one run of a handler."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Durations:
    """A histogram per queue: only the time inside the handler, none of the waiting between attempts."""

    __slots__ = ("_by_label", "_labels")

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._by_label: dict[str, Histogram] = {}

    def of(self, queue: str) -> Histogram:
        """The queue's histogram, made on first use."""
        label = self._labels.of(queue)
        histogram = self._by_label.get(label)
        if histogram is None:
            histogram = self._by_label[label] = Histogram()
        return histogram

    def items(self) -> Iterator[tuple[str, Histogram]]:
        """Label and histogram, as they are now."""
        return iter(tuple(self._by_label.items()))


@dataclass(slots=True)
class Tally:
    """What this process did. Several workers and producers may share one; all belong to one event loop."""

    labels: Labels = field(default_factory=Labels)
    produced: Count = field(init=False)  # enqueued, and new
    consumed: Count = field(init=False)  # claimed
    completed: Count = field(init=False)  # completed, and settled by the backend
    requeued: Count = field(init=False)  # will be tried again after a failure
    interrupted: Count = field(init=False)  # released unfinished; no retry spent
    dead: Count = field(init=False)  # dead-lettered by a worker
    lost: Count = field(init=False)  # attempts whose claim was gone before they could be settled
    failed: dict[Reason, Count] = field(init=False)  # attempts that failed, by reason
    durations: Durations = field(init=False)
    active: int = 0  # handlers running now
    unavailable: int = 0  # times a backend did not answer a worker or producer
    heartbeats_restarted: int = 0  # heartbeat processes that had to be started again

    def __post_init__(self) -> None:
        self.produced, self.consumed, self.completed = (Count(self.labels) for _ in range(3))
        self.requeued, self.interrupted = Count(self.labels), Count(self.labels)
        self.dead, self.lost = Count(self.labels), Count(self.labels)
        self.failed = {}
        self.durations = Durations(self.labels)

    def fail(self, queue: str, reason: Reason) -> None:
        """Counts an attempt that failed."""
        count = self.failed.get(reason)
        if count is None:
            count = self.failed[reason] = Count(self.labels)
        count.add(queue)
