"""The breakers of a worker: one per queue, fed by how its attempts end.

What counts is what costs: an attempt that is charged to the failure budget of its job, by raising or by taking too
long, is a failure; a finished one is a success. An attempt that was stopped, cancelled or taken away says nothing about
its queue, and neither does a payload that nobody can read or a kind that this worker does not know: such a probe
is given back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from wrasse.breaker import Breaker, BreakerSettings, BreakerState
from wrasse.clock import Clock
from wrasse.jobs.holds import Work
from wrasse.ports.jobs import Budget, Bury, Finish, Reason, Requeue, Settlement

_log = logging.getLogger("wrasse.jobs")


@dataclass(frozen=True, slots=True)
class BreakerFacts:
    """One breaker at one moment. `shut` is for how many seconds it has not been closed; `waits` says that it only
    waits for a job to try."""

    queue: str
    state: BreakerState
    trips: int
    shut: float = 0.0
    waits: bool = False


class Breakers:
    """Which queues a worker may take from, and which of their jobs it may start."""

    __slots__ = ("_by_queue", "_clock", "_worker")

    def __init__(self, queues: Sequence[str], settings: BreakerSettings, clock: Clock, worker: str = "") -> None:
        self._by_queue = {queue: Breaker(settings) for queue in queues}
        self._clock = clock
        self._worker = worker

    def closed(self, queues: Sequence[str]) -> tuple[str, ...]:
        """Those of the queues that may be taken from freely, in their order."""
        now = self._clock.monotonic()
        return tuple(queue for queue in queues if not self._by_queue[queue].state(now))

    def to_probe(self, queues: Sequence[str]) -> tuple[str, ...]:
        """Those of the queues that one job may be taken from, to see how it goes."""
        now = self._clock.monotonic()
        return tuple(queue for queue in queues if self._by_queue[queue].probe_free(now))

    def until_probe(self) -> float:
        """Seconds until the next cooldown is over; zero if none is under way."""
        now = self._clock.monotonic()
        left = [breaker.opens_in(now) for breaker in self._by_queue.values()]
        return min((seconds for seconds in left if seconds), default=0.0)

    def admit(self, work: Work) -> bool:
        """Gives a job that was taken its ticket; False when it must not run."""
        breaker = self._by_queue.get(work.taken.job.queue)
        if breaker is None:
            return True
        ticket = breaker.admit(self._clock.monotonic())
        if ticket is None:
            return False
        work.ticket = ticket
        return True

    def lets_start(self, work: Work) -> bool:
        """May a job that was let in still start, or has its queue's breaker opened meanwhile?"""
        breaker = self._by_queue.get(work.taken.job.queue)
        return breaker is None or breaker.holds(work.ticket)

    def hear(self, work: Work, settlement: Settlement) -> None:
        """Takes in how an attempt ended."""
        breaker = self._by_queue.get(work.taken.job.queue)
        if breaker is None:
            return
        ok = verdict(settlement)
        if ok is None:
            breaker.give_back(work.ticket)
            return
        changed = breaker.record(work.ticket, ok, self._clock.monotonic())
        if changed is not None:
            self._say(work.taken.job.queue, changed)

    def forget(self, work: Work) -> None:
        """An attempt came to nothing: its hold was gone."""
        breaker = self._by_queue.get(work.taken.job.queue)
        if breaker is not None:
            breaker.give_back(work.ticket)

    def facts(self) -> tuple[BreakerFacts, ...]:
        """Every breaker as it is now."""
        now = self._clock.monotonic()
        return tuple(
            BreakerFacts(
                queue,
                breaker.state(now),
                breaker.trips,
                0.0 if breaker.shut_since is None else now - breaker.shut_since,
                breaker.probe_free(now),
            )
            for queue, breaker in self._by_queue.items()
        )

    def _say(self, queue: str, state: BreakerState) -> None:
        about = {"queue": queue, "worker_id": self._worker}
        if state is BreakerState.CLOSED:
            _log.info("the breaker closed: a job went well, and the queue is worked on again", extra=about)
        else:
            _log.warning("the breaker opened: too many jobs fail, and the queue is left alone for now", extra=about)


def verdict(settlement: Settlement) -> bool | None:
    """Did the attempt go well, badly, or does it say nothing about its queue?"""
    match settlement:
        case Finish():
            return True
        case Requeue(reason=Reason.NO_HANDLER) | Bury(reason=Reason.NO_HANDLER):
            return None
        case Requeue(spends=Budget.FAILURES) | Bury(spends=Budget.FAILURES):
            return False
    return None
