"""What a worker holds: every job from the moment it was claimed until the backend has said how it ended.

A claim is on the board for exactly that long: also while its job waits for a free slot, and also while its result waits
for a backend that is down. So whatever the worker still has a duty to is beaten for, and nothing else.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum

from wrasse.jobs.worker.heartbeat_table import ClaimEnded, HeartbeatTable
from wrasse.ports.jobs import Claim, ClaimedJob


class JobStage(IntEnum):
    """How far a worker is with a job."""

    WAITING = 0  # taken, no slot free yet
    RUNNING = 1  # its handler runs
    ENDED = 2  # how it ended is to be told to the backend, or has been


class InFlightJob:
    """One running job: its place on the board, when it was claimed, how many seconds its handler is allowed, and the
    ticket under which its queue's breaker let it in."""

    __slots__ = ("allowed", "claimed", "place", "since", "stage", "ticket")

    def __init__(self, claimed: ClaimedJob, place: int, since: float, allowed: float) -> None:
        self.claimed = claimed
        self.place = place
        self.since = since
        self.allowed = allowed
        self.stage = JobStage.WAITING
        self.ticket = 0


class InFlightJobs:
    """The worker's holds and their postings."""

    __slots__ = ("_by_place", "_slack", "alone_from", "board", "fragile")

    def __init__(self, places: int, heartbeat_timeout: timedelta, alone_from: int) -> None:
        self.board = HeartbeatTable.make(places)
        self.alone_from = alone_from
        self.fragile = 0  # running jobs that were rescued at least `alone_from` times
        self._by_place: list[InFlightJob | None] = [None] * places
        # Heartbeats go on this much longer than the handler may run, so that the worker can still tell of its timeout.
        self._slack = heartbeat_timeout.total_seconds()

    def add(self, claimed: ClaimedJob, since: float, allowed: float) -> InFlightJob:
        """Posts a job that was just claimed."""
        place = self.board.post(claimed.claim, since + allowed + self._slack, since)
        work = self._by_place[place] = InFlightJob(claimed, place, since, allowed)
        self.fragile += claimed.rescues >= self.alone_from
        return work

    def begin(self, work: InFlightJob, now: float) -> None:
        """Its handler starts; if it had to wait for that, its time counts from here."""
        work.stage = JobStage.RUNNING
        if now - work.since > self._slack / 2:
            self.board.extend(work.place, now + work.allowed + self._slack)

    def note_group(self, claim: Claim, group: int) -> None:
        """The handler of this claim runs in a process group of its own; 0 when it no longer does."""
        for work in self._by_place:
            if work is not None and work.claimed.claim is claim:
                self.board.note_group(work.place, group)

    def drop(self, work: InFlightJob) -> None:
        """Takes down a job that the backend has settled, or that is no longer ours."""
        assert self._by_place[work.place] is work, "a claim is taken down once"
        self._by_place[work.place] = None
        self.fragile -= work.claimed.rescues >= self.alone_from
        self.board.clear(work.place)

    def find(self, gone: ClaimEnded) -> InFlightJob | None:
        """The work of a posting, if it is still the same posting."""
        return self._by_place[gone.place] if self.board.word(gone.place) == gone.word else None

    @property
    def free(self) -> int:
        """How many more jobs may be held."""
        return self.board.free

    def __len__(self) -> int:
        return self.board.places - self.board.free

    def close(self) -> None:
        """Takes the board down."""
        self.board.close()
