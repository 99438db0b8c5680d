"""What a handler gets: one attempt of one job, read-only, with its claim.

Nothing a handler does to this object changes what the worker settles: the worker keeps its own claim. `token` is a
fencing token: it only grows, so a store that the handler writes to can refuse a smaller one than it has seen. Only the
backend knows whether the claim is still current; `still_mine` asks it.

`InFlightJobs`, the worker's side of it: every job from its claim until the backend has settled it. For exactly that
time its claim is in the heartbeat table, also while the job waits for a slot, and while its result waits for a backend
that is down: heartbeats are sent for every unsettled job, and for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import msgspec

from wrasse.bounded import encodable
from wrasse.errors import BadPayload, UsageError
from wrasse.jobs.worker.heartbeat_table import ClaimEnded, HeartbeatTable
from wrasse.ports.jobs import Claim, ClaimedJob, Job, Progress, check_job

NOTE_CHARS_MAX = 200  # of a progress report
_ANSWER_MAX = timedelta(seconds=30)
_UNREAD = object()
T = TypeVar("T")


class JobWorker(Protocol):
    """The worker, as far as a running job needs it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that `mine` runs in."""
        ...

    async def mine(self, claim: Claim) -> bool:
        """Whether the backend says the claim is current. StoreUnavailable when it does not answer."""
        ...

    def note_group(self, claim: Claim, group: int) -> None:
        """Stores the process group of a claim's handler."""
        ...

    def note_progress(self, claim: Claim, progress: Progress) -> None:
        """Stores the progress of a claim. Called in the loop."""
        ...


class RunningJob:
    """A job while its handler runs."""

    __slots__ = ("_claimed", "_data", "_follow_ups", "_gone", "_worker")

    def __init__(self, claimed: ClaimedJob, worker: JobWorker) -> None:
        self._claimed = claimed
        self._worker = worker
        self._data: object = _UNREAD
        self._follow_ups: tuple[Job, ...] = ()
        self._gone = False

    @property
    def id(self) -> str:
        """The job's id."""
        return self._claimed.job.id

    @property
    def kind(self) -> str:
        """The kind, which selects the handler."""
        return self._claimed.job.kind

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._claimed.job.queue

    @property
    def priority(self) -> str:
        """As its producer gave it."""
        return self._claimed.job.priority

    @property
    def headers(self) -> Mapping[str, str]:
        """As its producer gave them."""
        return self._claimed.job.headers

    @property
    def payload(self) -> bytes:
        """The bytes, as they were enqueued."""
        return self._claimed.job.payload

    @property
    def attempt(self) -> int:
        """How often the job was claimed, this time included."""
        return self._claimed.attempt

    @property
    def token(self) -> int:
        """The fencing token of this attempt; a later attempt has a greater one."""
        return self._claimed.claim.token

    @property
    def gone(self) -> bool:
        """Whether the worker has noticed that this attempt is over: timed out, rescued, cancelled or stopped. For
        threads, which cannot be cancelled: check it between steps. False proves nothing; `still_mine` asks the
        backend."""
        return self._gone

    @property
    def data(self) -> Any:  # the shape of a payload is the user's; decode() checks it against a type
        """The payload read as JSON, or None for an empty one. Undecodable bytes dead-letter the job with its bytes
        kept."""
        if self._data is _UNREAD:
            self._data = self.decode(object) if self.payload else None
        return self._data

    def decode(self, kind: type[T]) -> T:
        """The payload read as JSON of this type: a dataclass, a TypedDict, a msgspec Struct, or a plain type."""
        try:
            return msgspec.json.decode(self.payload, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Validation messages name paths and types, decode errors a byte offset; neither quotes the payload.
            raise BadPayload(
                f"the payload of job {self.id!r} does not fit its handler: {error}",
                do="inspect it with `wrasse jobs show --payload`; enqueue the job again with the right bytes",
            ) from None

    def follow_up(self, job: Job) -> None:
        """Enqueues this job in the same atomic step that completes the running one; never if that is refused."""
        check_job(job)
        self._follow_ups = (*self._follow_ups, job)

    @property
    def follow_ups(self) -> tuple[Job, ...]:
        """The jobs that are enqueued when this one is completed."""
        return self._follow_ups

    async def still_mine(self) -> bool:
        """Asks the backend whether the claim is current. Call it right before a side effect that must not happen
        twice."""
        if self._gone:
            return False
        return await self._worker.mine(self._claimed.claim)

    def still_mine_blocking(self) -> bool:
        """`still_mine` for handlers that are plain functions and run in a thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            answer = asyncio.run_coroutine_threadsafe(self.still_mine(), self._worker.loop)
            return answer.result(_ANSWER_MAX.total_seconds())
        raise UsageError("still_mine_blocking() was called in the event loop", do="write `await job.still_mine()`")

    async def progress(self, fraction: float, note: str = "") -> None:
        """Reports progress: a fraction from 0 to 1, and a short note. Shown with the job; written at most once a
        second, and the last one before the job ends."""
        if not self._gone:
            self._worker.note_progress(self._claimed.claim, _checked_progress(fraction, note))

    def progress_blocking(self, fraction: float, note: str = "") -> None:
        """`progress` for handlers that are plain functions and run in a thread."""
        progress = _checked_progress(fraction, note)
        if not self._gone:
            self._worker.loop.call_soon_threadsafe(self._worker.note_progress, self._claimed.claim, progress)

    def runs_in(self, group: int) -> None:
        """Sets the process group of the handler, so that it is ended if the worker is killed; 0 for none."""
        self._worker.note_group(self._claimed.claim, group)

    def end(self) -> None:
        """Called by the worker when the attempt is over before its handler has returned."""
        self._gone = True


def _checked_progress(fraction: float, note: str) -> Progress:
    if not 0 <= fraction <= 1:
        raise UsageError(f"a progress of {fraction}", do="give a fraction from 0 to 1")
    return Progress(float(fraction), encodable(note[:NOTE_CHARS_MAX]))


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
