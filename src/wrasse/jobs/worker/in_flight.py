"""Jobs in flight: every job of a worker from its claim until the backend has settled it.

A claim is in the heartbeat table for exactly that time: also while its job waits for a free slot, and while its result
waits for a backend that is down. So heartbeats are sent for every unsettled job, and for nothing else.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum

from wrasse.jobs.worker.heartbeat_table import ClaimEnded, HeartbeatTable
from wrasse.ports.jobs import Claim, ClaimedJob


class JobStage(IntEnum):
    """The stage of a job in its worker."""

    WAITING = 0  # claimed, no slot free yet
    RUNNING = 1  # its handler runs
    ENDED = 2  # its outcome is to be settled, or has been


class InFlightJob:
    """One job in flight: its place in the heartbeat table, when it was claimed, how many seconds its handler may take,
    and the ticket with which its queue's breaker admitted it."""

    __slots__ = ("allowed", "claimed", "place", "since", "stage", "ticket")

    def __init__(self, claimed: ClaimedJob, place: int, since: float, allowed: float) -> None:
        self.claimed = claimed
        self.place = place
        self.since = since
        self.allowed = allowed
        self.stage = JobStage.WAITING
        self.ticket = 0


class InFlightJobs:
    """The worker's jobs in flight and their table entries."""

    __slots__ = ("_by_place", "_slack", "isolate_after", "suspected_poison", "table")

    def __init__(self, places: int, heartbeat_timeout: timedelta, isolate_after: int) -> None:
        self.table = HeartbeatTable.make(places)
        self.isolate_after = isolate_after
        self.suspected_poison = 0  # running jobs that were rescued at least `isolate_after` times
        self._by_place: list[InFlightJob | None] = [None] * places
        # Heartbeats continue this much longer than the handler may run, so that its timeout can still be settled.
        self._slack = heartbeat_timeout.total_seconds()

    def add(self, claimed: ClaimedJob, since: float, allowed: float) -> InFlightJob:
        """Adds a job that was just claimed."""
        place = self.table.post(claimed.claim, since + allowed + self._slack, since)
        work = self._by_place[place] = InFlightJob(claimed, place, since, allowed)
        self.suspected_poison += claimed.rescues >= self.isolate_after
        return work

    def begin(self, work: InFlightJob, now: float) -> None:
        """Marks the start of its handler; if it had to wait for a slot, its time counts from here."""
        work.stage = JobStage.RUNNING
        if now - work.since > self._slack / 2:
            self.table.extend(work.place, now + work.allowed + self._slack)

    def note_group(self, claim: Claim, group: int) -> None:
        """Stores the process group of a claim's handler; 0 when it has none."""
        for work in self._by_place:
            if work is not None and work.claimed.claim is claim:
                self.table.note_group(work.place, group)

    def drop(self, work: InFlightJob) -> None:
        """Removes a job that is settled, or whose claim is gone."""
        assert self._by_place[work.place] is work, "a job is removed once"
        self._by_place[work.place] = None
        self.suspected_poison -= work.claimed.rescues >= self.isolate_after
        self.table.clear(work.place)

    def find(self, gone: ClaimEnded) -> InFlightJob | None:
        """The job of a table entry, if the entry is still the same."""
        return self._by_place[gone.place] if self.table.word(gone.place) == gone.word else None

    @property
    def free(self) -> int:
        """How many more jobs may be in flight."""
        return self.table.free

    def __len__(self) -> int:
        return self.table.places - self.table.free

    def close(self) -> None:
        """Closes the heartbeat table."""
        self.table.close()
