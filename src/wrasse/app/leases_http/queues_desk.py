"""Queues behind the API: lockd's messages as jobs on the records of a namespace, and the state that rides along.

A message is a job; its lease is the hold of its take. Past its time that lease is over: whoever shows it then, with an
ack, a nack or an extend, is refused, and the message is cleared on the way: ready again with one attempt less, or dead.
A consumer that dies thus spends an attempt. The state of a message is an ordinary key, which goes with its ack.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.jobs.recorded import ATTEMPTS_HEADER, RecordedJobs
from wrasse.jobs.recorded_changes import RecordedOptions
from wrasse.jobs.recorded_names import Names
from wrasse.leases.leases import Leased, Leases
from wrasse.leases.refusal import KeyRefused
from wrasse.leases.rules import Held, over
from wrasse.leases.xid import Xids
from wrasse.ports.jobs import Budget, Bury, Finish, Hold, Job, JobState, Place, Reason, Requeue, TakenJob
from wrasse.ports.outcome import Outcome

NAMESPACES_MAX = 1_000
ATTEMPTS = 5
VISIBILITY = timedelta(seconds=30)
VISIBILITY_HEADER, EXPIRES_HEADER = "visibility", "expires-at"
TYPE_HEADER, ATTRIBUTES_HEADER = "content-type", "attributes"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a consumer shows: the queue, the message, its hold; and the lease of its state, if it has one."""

    namespace: str
    queue: str
    hold: Hold
    state: Held | None = None


class QueueDesk:
    """The queues of all namespaces of one store."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases, self._clock = leases, clock
        self._jobs: OrderedDict[str, RecordedJobs] = OrderedDict()
        self._xids = Xids(clock)

    def jobs(self, namespace: str) -> RecordedJobs:
        """The queues of a namespace, whose name has been checked."""
        jobs = self._jobs.get(namespace)
        if jobs is None:
            if len(self._jobs) >= NAMESPACES_MAX:
                self._jobs.popitem(last=False)
            options = RecordedOptions(Names(f"{namespace}/q"))
            jobs = RecordedJobs(self._leases.records, self._leases.objects, self._clock, options)
            self._jobs[namespace] = jobs
        return jobs

    async def put(self, namespace: str, job: Job) -> datetime:
        """Stores a message; when it becomes visible."""
        self._leases.note_traffic()
        jobs = self.jobs(namespace)
        await jobs.put([job], request=job.id)
        return await jobs.now() + job.delay

    async def take(
        self, namespace: str, queue: str, owner: str, limit: int, visibility: timedelta | None, wait: timedelta
    ) -> list[TakenJob]:
        """Messages that are visible; those whose time to live is over are buried on the way."""
        self._leases.note_traffic()
        jobs = self.jobs(namespace)
        taken = await jobs.take(
            [queue], limit, worker=owner, silence=visibility or VISIBILITY, request=self._xids.new(), wait=wait
        )
        alive: list[TakenJob] = []
        for each in taken.jobs:
            expires = each.job.headers.get(EXPIRES_HEADER, "")
            if expires and datetime.fromisoformat(expires) <= taken.at:
                bury = Bury(each.hold, Reason.TIMEOUT, error="its time to live is over")
                await jobs.settle([bury], request=self._xids.new())
                continue
            alive.append(each if visibility is not None else await self._own_visibility(jobs, each))
        return alive

    async def take_state(self, namespace: str, taken: TakenJob, owner: str, visibility: timedelta) -> Leased:
        """The lease of the state of a message, for as long as that of the message. Who had it before died with it."""
        key = state_key(taken.job.queue, taken.job.id)
        return await self._leases.acquire(key, owner, namespace=namespace, ttl=visibility, wait=timedelta(seconds=2))

    async def give_back(self, namespace: str, taken: TakenJob) -> None:
        """A message that could not be handed out after all."""
        back = Requeue(taken.hold, Budget.INTERRUPTIONS, Reason.INTERRUPTED)
        await self.jobs(namespace).settle([back], request=self._xids.new())

    async def held(self, shown: Shown) -> JobState | str:
        """The message, if it is held as it was shown; else the code of the refusal, an overdue one being cleared."""
        self._leases.note_traffic()
        jobs = self.jobs(shown.namespace)
        state = await jobs.state(shown.hold.id)
        if state is None or state.queue != shown.queue:
            return "not_found"
        if state.place is not Place.HELD or state.hold != shown.hold:
            return "queue_message_lease_mismatch"
        if state.until is not None and state.until <= await jobs.now():
            await jobs.expire(state.id)
            return "lease_expired"
        return state

    async def ack(self, shown: Shown, attempts: int) -> bool:
        """The message is done and gone, with its state; False if it was somebody else's by then."""
        outcome = await self._settle(shown, Finish(shown.hold))
        if outcome is Outcome.LOST:
            return False
        if shown.state is not None:
            await self._leases.release(shown.namespace, shown.state, commit=False)
        if shown.state is not None or attempts > 1:  # an earlier consumer may have left some
            await self._drop_state(shown)
        return True

    async def nack(self, shown: Shown, settlement: Requeue | Bury) -> bool:
        """The message is visible again after a while, or dead. What was staged of its state is kept for the next."""
        if shown.state is not None:
            with suppress(KeyRefused):  # its lease ended with that of the message, or before
                await self._leases.release(shown.namespace, shown.state, commit=True)
        return await self._settle(shown, settlement) is not Outcome.LOST

    async def extend(self, shown: Shown, by: timedelta) -> tuple[datetime, datetime | None] | None:
        """The message, and its state, held for so long from now; None if it was somebody else's by then."""
        until = await self.jobs(shown.namespace).extend(shown.hold, by)
        if until is None:
            return None
        if shown.state is None:
            return until, None
        leased = await self._leases.renew(shown.namespace, shown.state, by)
        return until, leased.grant.until

    async def close(self) -> None:
        """Until what is left to do after the last answers is done."""
        for jobs in self._jobs.values():
            await jobs.close()

    async def _own_visibility(self, jobs: RecordedJobs, taken: TakenJob) -> TakenJob:
        """Held for as long as its producer said, where the consumer said nothing."""
        own = visibility_of(taken.job)
        if own == VISIBILITY:
            return taken
        until = await jobs.extend(taken.hold, own)
        return taken if until is None else TakenJob(
            taken.job, taken.hold, taken.attempt, taken.failures, taken.rescues, taken.interruptions,
            taken.created_at, until,
        )  # fmt: skip

    async def _settle(self, shown: Shown, settlement: Finish | Requeue | Bury) -> Outcome:
        jobs = self.jobs(shown.namespace)
        request = f"{shown.hold.nonce}-{type(settlement).__name__}"
        (outcome,) = await jobs.settle([settlement], request=request)
        return outcome

    async def _drop_state(self, shown: Shown) -> None:
        """Nobody will ask for the state of this message again: its id is never used twice."""
        keys, key = self._leases.keys(shown.namespace), state_key(shown.queue, shown.hold.id)
        kept = await keys.look(key)
        grant = None if kept is None else kept.meta.grant
        if kept is not None and grant is not None and over(grant, at := await keys.now(), self._leases.terms):
            kept = await keys.clear(key, kept, at)  # of a consumer that died
        if kept is not None and kept.meta.grant is None:
            await keys.delete(key, kept)


def state_key(queue: str, id: str) -> str:
    """The key of the state of a message."""
    return f"q/{queue}/state/{id}"


def visibility_of(job: Job) -> timedelta:
    """For how long its producer wants it to be held by who takes it."""
    text = job.headers.get(VISIBILITY_HEADER, "")
    return timedelta(seconds=int(text)) if text.isdigit() and int(text) else VISIBILITY


def attempts_of(job: Job) -> int:
    """How many attempts a message has in all."""
    text = job.headers.get(ATTEMPTS_HEADER, "")
    return int(text) if text.isdigit() and int(text) else ATTEMPTS


def spent(state: JobState, attempts: int) -> bool:
    """Whether one more attempt that failed is the last."""
    return state.failures + state.rescues + 1 >= attempts
