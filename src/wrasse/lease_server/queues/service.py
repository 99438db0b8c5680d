"""Queues behind the API: lockd's messages as jobs on the records of a namespace, and the keys that ride along.

A message is a job; its lease is the hold of its take. Past its time that lease is over: whoever shows it then, with an
ack, a nack or an extend, is refused, and the message is cleared on the way: ready again with one attempt less, or dead.
A consumer that dies thus spends an attempt. Within a transaction the lease lasts as long as nobody has decided; a
rollback spends an attempt as well.

A message that is dequeued within a transaction has a lease on a key of its own there, under which its ack is staged. So
the transaction decides about it as about any other key, whoever decides and whatever crashes: committed, the message
is finished; rolled back, it is handed out again. Nobody takes it from its consumer before that is known. Both keys, of
the state and of the ack, go with the message. Its record says so until they are gone.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.jobs.record_queue.queue import ATTEMPTS_HEADER, Fate, RecordedJobs, RecordedOptions
from wrasse.jobs.record_queue.store import JobRecordNames
from wrasse.leases.background import BackgroundTasks
from wrasse.leases.lease import KeyRecord, Lease, first_token, over
from wrasse.leases.leases import Leases
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.transactions.log import refused
from wrasse.leases.transactions.states import Decision
from wrasse.leases.xid import Xids
from wrasse.ports.jobs import (
    Budget,
    Claim,
    ClaimedJob,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobInfo,
    JobState,
    Reason,
    Requeue,
    RequeueDead,
)
from wrasse.ports.outcome import Outcome

TRIES_MAX = 8
WAIT = timedelta(seconds=2)  # for a lease of whoever had the message before and died with it


def state_key(queue: str, id: str) -> str:
    """The key of the state of a message."""
    return f"q/{queue}/state/{id}"


def ack_key(queue: str, id: str) -> str:
    """The key under which the ack of a message is part of a transaction."""
    return f"q/{queue}/msg/{id}"


class MessageKeys:
    """The keys of the messages of one namespace."""

    def __init__(self, leases: Leases, namespace: str) -> None:
        self._leases, self._namespace = leases, namespace

    async def claim_state(self, queue: str, id: str, owner: str, visibility: timedelta, transaction: str) -> KeyRecord:
        """The lease of the state of a message, for as long as that of the message."""
        return await self._leases.acquire(
            state_key(queue, id), owner, namespace=self._namespace, ttl=visibility, wait=WAIT, transaction=transaction
        )

    async def join(self, queue: str, claim: Claim, visibility: timedelta, transaction: str) -> None:
        """Makes a message that was just taken part of a transaction. Refused once that is decided."""
        leased = await self._leases.acquire(
            ack_key(queue, claim.id), claim.nonce, namespace=self._namespace, ttl=visibility, wait=WAIT,
            transaction=transaction,
        )  # fmt: skip
        await self._leases.hide(leased.held, True)

    async def leave(self, queue: str, id: str) -> None:
        """Takes a message that was not handed out after all out of its transaction."""
        await self._drop(ack_key(queue, id))

    async def end(self, queue: str, claim: Claim, transaction: str, *, commit: bool) -> None:
        """Decides the transaction of a message for all of its keys. Refused if it was decided otherwise before."""
        held = await self._joined(queue, claim)
        if held is None:
            state = await self._leases.transactions.transaction_log.outcome(transaction) if transaction else None
            acked = acks(await self._look(ack_key(queue, claim.id))) or state is Decision.COMMIT
            if acked is not commit:
                raise refused(transaction, Decision.COMMIT if acked else Decision.ROLLBACK)
            return
        if transaction and transaction != held.transaction:
            raise KeyRefused(Refusal.TRANSACTION_MISMATCH, "the message belongs to another transaction")
        await self._leases.release(held, commit=commit)

    async def renew(self, queue: str, claim: Claim, by: timedelta) -> None:
        """Keeps a message in its transaction for so long from now."""
        held = await self._joined(queue, claim)
        if held is not None:
            await self._leases.renew(held, by)

    async def decided(self, queue: str, id: str) -> bool | None:
        """Whether the transaction of a message was committed; None as long as nobody has decided."""
        kept = await self._look(ack_key(queue, id))
        return acks(kept) if kept is None or kept.lease is None else None

    async def held_state(self, held: Lease) -> Lease:
        """What a consumer shows of the state of its message, with its transaction, which it need not name."""
        if held.transaction:
            return held
        kept = await self._look(held.key)
        lease = None if kept is None else kept.lease
        return held if lease is None else replace(held, transaction=lease.transaction)

    async def fate(self, info: JobInfo) -> Fate:
        """A message whose ack was committed is finished; one that may still be is left to its consumer."""
        keys, key = self._leases.keys(self._namespace), ack_key(info.queue, info.id)
        for _ in range(TRIES_MAX):
            kept = await keys.look(key)
            lease = None if kept is None else kept.lease
            if kept is None or lease is None:
                return Fate.FINISHED if acks(kept) else Fate.RESCUED
            if not over(lease, at := await keys.now(), self._leases.terms):
                return Fate.LEFT
            await keys.clear(key, kept, at)  # which settles its transaction first
        return Fate.LEFT

    async def ended(self, info: JobInfo) -> bool:
        """Nobody will ask for the keys of this message again: its id is never used twice."""
        keys = (state_key(info.queue, info.id), ack_key(info.queue, info.id))
        return all([await self._drop(key) for key in keys])

    async def _drop(self, key: str) -> bool:
        """Whether it is gone. One whose lease is over for its holder, and not yet for others, stays a little longer."""
        keys = self._leases.keys(self._namespace)
        for _ in range(TRIES_MAX):
            kept = await keys.look(key)
            if kept is None:
                await keys.clean(key, first_token(await keys.now()))  # a crash may have left its objects
                return True
            lease, at = kept.lease, await keys.now()
            if lease is None:
                if await keys.delete(key, kept) is Outcome.DONE:
                    return True
            elif over(lease, at, self._leases.terms):
                await keys.clear(key, kept, at)  # of a consumer that died
            else:  # of the one that acked, or of somebody who has no message for it any more
                with suppress(KeyRefused):
                    await keys.give_back(replace(lease, key=key, namespace=self._namespace))
        return False

    async def _joined(self, queue: str, claim: Claim) -> Lease | None:
        """The lease by which this delivery is in its transaction, while nothing is decided."""
        key = ack_key(queue, claim.id)
        kept = await self._look(key)
        lease = None if kept is None else kept.lease
        if lease is None or lease.owner != claim.nonce:
            return None
        return replace(lease, key=key, namespace=self._namespace)

    async def _look(self, key: str) -> KeyRecord | None:
        return await self._leases.keys(self._namespace).look(key)


def acks(kept: KeyRecord | None) -> bool:
    """Whether the ack of a message was committed. Only `join` hides a key of that name."""
    return kept is not None and kept.hidden and kept.version > 0


NAMESPACES_MAX = 1_000
JOINED_MAX = 10_000
ATTEMPTS = 5
VISIBILITY = timedelta(seconds=30)
VISIBILITY_HEADER, EXPIRES_HEADER = "visibility", "expires-at"
TYPE_HEADER, ATTRIBUTES_HEADER = "content-type", "attributes"


@dataclass(frozen=True, slots=True)
class ConsumerProof:
    """What a consumer shows: the queue, the message, its hold; and the lease of its state, if it has one. `stateful`:
    it was handed out with its state. `joined`: within a transaction, whose id is `transaction` if it was shown."""

    namespace: str
    queue: str
    claim: Claim
    state: Lease | None = None
    stateful: bool = False
    joined: bool = False
    transaction: str = ""


class QueueService:
    """The queues of all namespaces of one store."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases, self._clock = leases, clock
        self._jobs: OrderedDict[str, RecordedJobs] = OrderedDict()
        self._xids = Xids(clock)
        self._joined: OrderedDict[tuple[str, str], ConsumerProof] = (
            OrderedDict()
        )  # handed out here, and not decided yet
        self._background = BackgroundTasks()
        leases.listeners.append(self._heard)

    def jobs(self, namespace: str) -> RecordedJobs:
        """The queues of a namespace, whose name has been checked."""
        jobs = self._jobs.get(namespace)
        if jobs is None:
            if len(self._jobs) >= NAMESPACES_MAX:
                self._jobs.popitem(last=False)
            options = RecordedOptions(JobRecordNames(f"{namespace}/q"), beside=self.keys(namespace))
            jobs = RecordedJobs(self._leases.records, self._leases.objects, self._clock, options)
            self._jobs[namespace] = jobs
        return jobs

    def keys(self, namespace: str) -> MessageKeys:
        """The keys that ride along with the messages of a namespace."""
        return MessageKeys(self._leases, namespace)

    async def enqueue(self, namespace: str, job: Job) -> datetime:
        """Stores a message; when it becomes visible."""
        self._leases.note_traffic()
        jobs = self.jobs(namespace)
        await jobs.enqueue([job], request=job.id)
        return await jobs.now() + job.delay

    async def claim(
        self, namespace: str, queue: str, owner: str, limit: int, visibility: timedelta | None, wait: timedelta
    ) -> list[ClaimedJob]:
        """Messages that are visible; those whose time to live is over are buried on the way."""
        self._leases.note_traffic()
        jobs = self.jobs(namespace)
        claimed = await jobs.claim(
            [queue],
            limit,
            worker=owner,
            heartbeat_timeout=visibility or VISIBILITY,
            request=self._xids.new(),
            wait=wait,
        )
        alive: list[ClaimedJob] = []
        for each in claimed.jobs:
            expires = each.job.headers.get(EXPIRES_HEADER, "")
            if expires and datetime.fromisoformat(expires) <= claimed.at:
                bury = DeadLetterJob(each.claim, Reason.TIMEOUT, error="its time to live is over")
                await jobs.settle([bury], request=self._xids.new())
                continue
            alive.append(each if visibility is not None else await self._own_visibility(jobs, each))
        return alive

    async def claim_state(
        self, namespace: str, claimed: ClaimedJob, owner: str, visibility: timedelta, transaction: str
    ) -> KeyRecord:
        """The lease of the state of a message. Who had it before died with it."""
        keys = self.keys(namespace)
        return await keys.claim_state(claimed.job.queue, claimed.job.id, owner, visibility, transaction)

    async def join(self, namespace: str, claimed: ClaimedJob, visibility: timedelta, transaction: str) -> bool:
        """Makes a message that was just taken part of a transaction; False if it is somebody else's by now."""
        queue, claim = claimed.job.queue, claimed.claim
        await self.keys(namespace).join(queue, claim, visibility, transaction)
        # From here on nobody takes it before the transaction is decided; somebody may have before.
        if await self.jobs(namespace).extend(claim, visibility) is None:
            return False
        self._joined[namespace, ack_key(queue, claim.id)] = ConsumerProof(namespace, queue, claim, joined=True)
        if len(self._joined) > JOINED_MAX:
            self._joined.popitem(last=False)
        return True

    async def release(self, namespace: str, claimed: ClaimedJob, transaction: str = "") -> None:
        """A message that could not be handed out after all."""
        if transaction:  # which goes on without it
            self._joined.pop((namespace, ack_key(claimed.job.queue, claimed.job.id)), None)
            await self.keys(namespace).leave(claimed.job.queue, claimed.job.id)
        back = Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED)
        await self.jobs(namespace).settle([back], request=self._xids.new())

    async def running(self, shown: ConsumerProof) -> JobInfo | str:
        """The message, if it is held as it was shown; else the code of the refusal, an overdue one being cleared."""
        self._leases.note_traffic()
        jobs = self.jobs(shown.namespace)
        info = await jobs.state(shown.claim.id)
        if info is None or info.queue != shown.queue:
            return "not_found"
        if info.state is not JobState.RUNNING or info.claim != shown.claim:
            return "queue_message_lease_mismatch"
        if not shown.joined and info.deadline is not None and info.deadline <= await jobs.now():
            await jobs.expire(info.id)
            return "lease_expired"
        return info

    async def acked(self, shown: ConsumerProof) -> bool:
        """Whether a message that is gone went with the commit of its transaction."""
        if not shown.joined or not shown.transaction:
            return False
        return await self._leases.transactions.transaction_log.outcome(shown.transaction) is Decision.COMMIT

    async def ack(self, shown: ConsumerProof, attempts: int) -> bool:
        """The message is done and gone, with its keys; False if it was somebody else's by then."""
        if shown.joined:
            await self._end(shown, commit=True)
        beside = shown.stateful or shown.joined or attempts > 1  # an earlier consumer may have left some
        if not beside:
            return await self._settle(shown, Complete(shown.claim)) is not Outcome.CONFLICT
        outcome = await self.jobs(shown.namespace).finish(shown.claim, request=f"{shown.claim.nonce}-Finish")
        return shown.joined or outcome is not Outcome.CONFLICT

    async def nack(self, shown: ConsumerProof, settlement: Requeue | DeadLetterJob) -> bool:
        """The message is visible again after a while, or dead. What was staged of its state is kept for the next; with
        a transaction it is rolled back."""
        if shown.joined:
            await self._end(shown, commit=False)
        if shown.state is not None:
            state = await self.keys(shown.namespace).held_state(shown.state)
            with suppress(KeyRefused):  # its lease ended with that of the message, or before
                await self._leases.release(state, commit=not shown.joined)
        return await self._settle(shown, settlement) is not Outcome.CONFLICT

    async def _end(self, shown: ConsumerProof, *, commit: bool) -> None:
        """Decides the transaction of a message. If it was decided otherwise, so is the message, and that is told."""
        key = shown.namespace, ack_key(shown.queue, shown.claim.id)
        self._joined.pop(key, None)  # what becomes of the message is seen to here
        try:
            await self.keys(shown.namespace).end(shown.queue, shown.claim, shown.transaction, commit=commit)
        except KeyRefused:
            await self._decided(shown)
            raise

    def _heard(self, namespace: str, key: str) -> None:
        shown = self._joined.get((namespace, key))
        if shown is not None:
            self._background.soon(self._decided(shown))

    async def _decided(self, shown: ConsumerProof) -> None:
        """Does with a message what its transaction came to, if it came to anything."""
        committed = await self.keys(shown.namespace).decided(shown.queue, shown.claim.id)
        if committed is None:
            return
        self._joined.pop((shown.namespace, ack_key(shown.queue, shown.claim.id)), None)
        jobs = self.jobs(shown.namespace)
        if committed:
            await jobs.finish(shown.claim, request=f"{shown.claim.nonce}-Finish")
            return
        info = await jobs.state(shown.claim.id)
        if info is not None:
            await self._settle(shown, failure(shown.claim, info, "its transaction was rolled back", timedelta(0)))

    async def extend(self, shown: ConsumerProof, by: timedelta) -> tuple[datetime, datetime | None] | None:
        """The message, and its state, held for so long from now; None if it was somebody else's by then."""
        until = await self.jobs(shown.namespace).extend(shown.claim, by)
        if until is None:
            return None
        keys = self.keys(shown.namespace)
        if shown.joined:
            await keys.renew(shown.queue, shown.claim, by)
        if shown.state is None:
            return until, None
        renewed = await self._leases.renew(await keys.held_state(shown.state), by)
        return until, renewed.expires_at

    async def requeue(self, namespace: str, queue: str, id: str) -> bool:
        """A dead message is handed out again, with all its attempts; False if there is none."""
        info = await self._dead(namespace, queue, id)
        if info is None:
            return False
        (outcome,) = await self.jobs(namespace).move([RequeueDead(info.claim)])
        return outcome is not Outcome.CONFLICT

    async def bin(self, namespace: str, queue: str, id: str) -> bool:
        """A dead message is gone, its keys first; False if there is none, or somebody has its state."""
        info = await self._dead(namespace, queue, id)
        if info is None or not await self.keys(namespace).ended(info):
            return False
        (outcome,) = await self.jobs(namespace).delete([Delete(info.claim, JobState.DEAD)])
        return outcome is not Outcome.CONFLICT

    async def _dead(self, namespace: str, queue: str, id: str) -> JobInfo | None:
        info = await self.jobs(namespace).state(id)
        return info if info is not None and info.queue == queue and info.state is JobState.DEAD else None

    async def close(self) -> None:
        """Until what is left to do after the last answers is done."""
        await self._background.finished()
        for jobs in self._jobs.values():
            await jobs.close()

    async def _own_visibility(self, jobs: RecordedJobs, claimed: ClaimedJob) -> ClaimedJob:
        """Lease for as long as its producer said, where the consumer said nothing."""
        own = visibility_of(claimed.job)
        if own == VISIBILITY:
            return claimed
        until = await jobs.extend(claimed.claim, own)
        return claimed if until is None else ClaimedJob(
            claimed.job, claimed.claim, claimed.attempt, claimed.failures, claimed.rescues, claimed.interruptions,
            claimed.created_at, until,
        )  # fmt: skip

    async def _settle(self, shown: ConsumerProof, settlement: Complete | Requeue | DeadLetterJob) -> Outcome:
        jobs = self.jobs(shown.namespace)
        request = f"{shown.claim.nonce}-{_STORED_AS[type(settlement)]}"
        (outcome,) = await jobs.settle([settlement], request=request)
        return outcome


# Part of the request id, which the message's record keeps: these words stay whatever the classes are called.
_STORED_AS = {Complete: "Finish", Requeue: "Requeue", DeadLetterJob: "Bury"}


def visibility_of(job: Job) -> timedelta:
    """For how long its producer wants it to be held by who takes it."""
    text = job.headers.get(VISIBILITY_HEADER, "")
    return timedelta(seconds=int(text)) if text.isdigit() and int(text) else VISIBILITY


def attempts_of(job: Job) -> int:
    """How many attempts a message has in all."""
    text = job.headers.get(ATTEMPTS_HEADER, "")
    return int(text) if text.isdigit() and int(text) else ATTEMPTS


def spent(info: JobInfo, attempts: int) -> bool:
    """Whether one more attempt that failed is the last."""
    return info.failures + info.rescues + 1 >= attempts


def failure(claim: Claim, info: JobInfo, error: str, delay: timedelta) -> Requeue | DeadLetterJob:
    """What a failed attempt makes of a message: ready again, or dead if it was its last."""
    if spent(info, ATTEMPTS if info.retries_max is None else info.retries_max + 1):
        return DeadLetterJob(claim, Reason.FAILED, error=error, spends=Budget.FAILURES)
    return Requeue(claim, Budget.FAILURES, Reason.FAILED, error=error, delay=delay)
