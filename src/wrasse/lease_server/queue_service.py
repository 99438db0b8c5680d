"""Queues behind the API: lockd's messages as jobs on the records of a namespace, with keys for their state and ack.

A message is a job; its lease is the claim of the job. After the claim's deadline an ack, nack or extend is refused, and
the message is cleared: ready again with one attempt less, or dead. So a consumer that dies costs an attempt. Within a
transaction the lease lasts until the transaction is decided; a rollback costs an attempt as well.

A message dequeued within a transaction gets a lease on a key of its own, under which its ack is staged. So its ack is
decided with the transaction like any other key, whatever crashes: after a commit the message is finished, after a
rollback it is delivered again. Until then no other consumer can claim it. Both keys, of the state and of the ack, are
deleted with the message; its record says so until they are.
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
from wrasse.leases.cleanup import BackgroundTasks
from wrasse.leases.lease import KeyRecord, KeyRefused, Lease, Refusal, first_token, over
from wrasse.leases.leases import Leases
from wrasse.leases.names import Xids
from wrasse.leases.transactions.log import refused
from wrasse.leases.transactions.states import Decision
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
WAIT = timedelta(seconds=2)  # for the lease of a former consumer that died
NAMESPACES_MAX = 1_000
JOINED_MAX = 10_000
ATTEMPTS = 5
VISIBILITY = timedelta(seconds=30)
VISIBILITY_HEADER, EXPIRES_HEADER = "visibility", "expires-at"
TYPE_HEADER, ATTRIBUTES_HEADER = "content-type", "attributes"
# Part of the request id, which is stored in the message's record: renaming a class must not change these words.
_STORED_AS = {Complete: "Finish", Requeue: "Requeue", DeadLetterJob: "Bury"}


def state_key(queue: str, id: str) -> str:
    """The key of a message's state."""
    return f"q/{queue}/state/{id}"


def ack_key(queue: str, id: str) -> str:
    """The key under which a message's ack is part of a transaction."""
    return f"q/{queue}/msg/{id}"


class MessageKeys:
    """The keys of the messages of one namespace."""

    def __init__(self, leases: Leases, namespace: str) -> None:
        self._leases, self._namespace = leases, namespace

    async def join(self, queue: str, claim: Claim, visibility: timedelta, transaction: str) -> None:
        """Adds a message that was just claimed to a transaction. Refused once that is decided."""
        leased = await self._leases.acquire(
            ack_key(queue, claim.id), claim.nonce, namespace=self._namespace, ttl=visibility, wait=WAIT,
            transaction=transaction,
        )  # fmt: skip
        await self._leases.hide(leased.granted, True)

    async def end(self, queue: str, claim: Claim, transaction: str, *, commit: bool) -> None:
        """Decides the transaction of a message for all of its keys. Refused if it was decided otherwise before."""
        lease = await self._joined(queue, claim)
        if lease is None:
            state = await self._leases.transactions.transaction_log.outcome(transaction) if transaction else None
            acked = acks(await self._read_key(ack_key(queue, claim.id))) or state is Decision.COMMIT
            if acked is not commit:
                raise refused(transaction, Decision.COMMIT if acked else Decision.ROLLBACK)
            return
        if transaction and transaction != lease.transaction:
            raise KeyRefused(Refusal.TRANSACTION_MISMATCH, "the message belongs to another transaction")
        await self._leases.release(lease, commit=commit)

    async def renew(self, queue: str, claim: Claim, by: timedelta) -> None:
        """Extends the message's lease in its transaction to `by` from now."""
        lease = await self._joined(queue, claim)
        if lease is not None:
            await self._leases.renew(lease, by)

    async def decided(self, queue: str, id: str) -> bool | None:
        """Whether the transaction of a message was committed; None while it is pending."""
        record = await self._read_key(ack_key(queue, id))
        return acks(record) if record is None or record.lease is None else None

    async def state_lease(self, lease: Lease) -> Lease:
        """The consumer's lease on the state of its message, completed with its transaction."""
        if lease.transaction:
            return lease
        record = await self._read_key(lease.key)
        current = None if record is None else record.lease
        return lease if current is None else replace(lease, transaction=current.transaction)

    async def fate(self, info: JobInfo) -> Fate:
        """A message whose ack was committed is finished; one whose transaction is pending is left to its consumer."""
        keys, key = self._leases.keys(self._namespace), ack_key(info.queue, info.id)
        for _ in range(TRIES_MAX):
            record = await keys.read(key)
            lease = None if record is None else record.lease
            if record is None or lease is None:
                return Fate.FINISHED if acks(record) else Fate.RESCUED
            if not over(lease, at := await keys.now(), self._leases.terms):
                return Fate.LEFT
            await keys.clear(key, record, at)  # which first decides its transaction
        return Fate.LEFT

    async def ended(self, info: JobInfo) -> bool:
        """Deletes the keys of a message that is gone; message ids are never reused."""
        keys = (state_key(info.queue, info.id), ack_key(info.queue, info.id))
        return all([await self.drop(key) for key in keys])

    async def drop(self, key: str) -> bool:
        """Deletes a key, and returns whether it is gone. One whose lease has ended for its holder but not yet for
        others stays a little longer."""
        keys = self._leases.keys(self._namespace)
        for _ in range(TRIES_MAX):
            record = await keys.read(key)
            if record is None:
                await keys.clean(key, first_token(await keys.now()))  # a crash may have left its objects
                return True
            lease, at = record.lease, await keys.now()
            if lease is None:
                if await keys.delete(key, record) is Outcome.DONE:
                    return True
            elif over(lease, at, self._leases.terms):
                await keys.clear(key, record, at)  # of a consumer that died
            else:  # of the consumer that acked, or of one whose message is gone
                with suppress(KeyRefused):
                    await keys.roll_back(replace(lease, key=key, namespace=self._namespace))
        return False

    async def _joined(self, queue: str, claim: Claim) -> Lease | None:
        """The lease by which this delivery is in its transaction, while that is pending."""
        key = ack_key(queue, claim.id)
        record = await self._read_key(key)
        lease = None if record is None else record.lease
        if lease is None or lease.owner != claim.nonce:
            return None
        return replace(lease, key=key, namespace=self._namespace)

    async def _read_key(self, key: str) -> KeyRecord | None:
        return await self._leases.keys(self._namespace).read(key)


def acks(record: KeyRecord | None) -> bool:
    """Whether the ack of a message was committed. Only `join` sets `hidden` on such a key."""
    return record is not None and record.hidden and record.version > 0


@dataclass(frozen=True, slots=True)
class ConsumerProof:
    """What a consumer presents: the queue, the message, its claim, and the lease of its state. `stateful`: it was
    delivered with its state. `joined`: within a transaction, whose id is `transaction` if it was given."""

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
        )  # delivered by this process, still pending
        self._background = BackgroundTasks()
        leases.listeners.append(self._on_key_freed)

    def jobs(self, namespace: str) -> RecordedJobs:
        """The queues of a namespace, whose name must have been checked."""
        jobs = self._jobs.get(namespace)
        if jobs is None:
            if len(self._jobs) >= NAMESPACES_MAX:
                self._jobs.popitem(last=False)
            options = RecordedOptions(JobRecordNames(f"{namespace}/q"), beside=self.keys(namespace))
            jobs = RecordedJobs(self._leases.records, self._leases.objects, self._clock, options)
            self._jobs[namespace] = jobs
        return jobs

    def keys(self, namespace: str) -> MessageKeys:
        """The keys that belong to the messages of a namespace."""
        return MessageKeys(self._leases, namespace)

    async def enqueue(self, namespace: str, job: Job) -> datetime:
        """Stores a message; returns when it becomes visible."""
        self._leases.note_traffic()
        jobs = self.jobs(namespace)
        await jobs.enqueue([job], request=job.id)
        return await jobs.now() + job.delay

    async def claim(
        self, namespace: str, queue: str, owner: str, limit: int, visibility: timedelta | None, wait: timedelta
    ) -> list[ClaimedJob]:
        """Claims visible messages; those whose time to live is over are dead-lettered."""
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
                expired = DeadLetterJob(each.claim, Reason.TIMEOUT, error="its time to live is over")
                await jobs.settle([expired], request=self._xids.new())
                continue
            alive.append(each if visibility is not None else await self._own_visibility(jobs, each))
        return alive

    async def claim_state(
        self, namespace: str, claimed: ClaimedJob, owner: str, visibility: timedelta, transaction: str
    ) -> KeyRecord:
        """Leases the state of a message for as long as the message. A former holder has lost the message before."""
        key = state_key(claimed.job.queue, claimed.job.id)
        return await self._leases.acquire(
            key, owner, namespace=namespace, ttl=visibility, wait=WAIT, transaction=transaction
        )

    async def join(self, namespace: str, claimed: ClaimedJob, visibility: timedelta, transaction: str) -> bool:
        """Adds a message that was just claimed to a transaction; False if another consumer has it by now."""
        queue, claim = claimed.job.queue, claimed.claim
        await self.keys(namespace).join(queue, claim, visibility, transaction)
        # From here on no other consumer claims it before the decision; one may have claimed it before.
        if await self.jobs(namespace).extend(claim, visibility) is None:
            return False
        self._joined[namespace, ack_key(queue, claim.id)] = ConsumerProof(namespace, queue, claim, joined=True)
        if len(self._joined) > JOINED_MAX:
            self._joined.popitem(last=False)
        return True

    async def release(self, namespace: str, claimed: ClaimedJob, transaction: str = "") -> None:
        """Releases a message that could not be delivered."""
        if transaction:  # which goes on without it
            self._joined.pop((namespace, ack_key(claimed.job.queue, claimed.job.id)), None)
            await self.keys(namespace).drop(ack_key(claimed.job.queue, claimed.job.id))
        requeue = Requeue(claimed.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED)
        await self.jobs(namespace).settle([requeue], request=self._xids.new())

    async def running(self, proof: ConsumerProof) -> JobInfo | str:
        """The message, if the consumer still has it as presented; else the code of the refusal, and an overdue one is
        cleared."""
        self._leases.note_traffic()
        jobs = self.jobs(proof.namespace)
        info = await jobs.state(proof.claim.id)
        if info is None or info.queue != proof.queue:
            return "not_found"
        if info.state is not JobState.RUNNING or info.claim != proof.claim:
            return "queue_message_lease_mismatch"
        if not proof.joined and info.deadline is not None and info.deadline <= await jobs.now():
            await jobs.expire(info.id)
            return "lease_expired"
        return info

    async def acked(self, proof: ConsumerProof) -> bool:
        """Whether a message that is gone was acked by the commit of its transaction."""
        if not proof.joined or not proof.transaction:
            return False
        return await self._leases.transactions.transaction_log.outcome(proof.transaction) is Decision.COMMIT

    async def ack(self, proof: ConsumerProof, attempts: int) -> bool:
        """Deletes the message and its keys; False if another consumer had it by then."""
        if proof.joined:
            await self._end(proof, commit=True)
        beside = proof.stateful or proof.joined or attempts > 1  # an earlier consumer may have left keys
        if not beside:
            return await self._settle(proof, Complete(proof.claim)) is not Outcome.CONFLICT
        outcome = await self.jobs(proof.namespace).complete(proof.claim, request=f"{proof.claim.nonce}-Finish")
        return proof.joined or outcome is not Outcome.CONFLICT

    async def nack(self, proof: ConsumerProof, settlement: Requeue | DeadLetterJob) -> bool:
        """Makes the message visible again after a delay, or dead. Its staged state is committed for the next consumer;
        with a transaction it is rolled back."""
        if proof.joined:
            await self._end(proof, commit=False)
        if proof.state is not None:
            state = await self.keys(proof.namespace).state_lease(proof.state)
            with suppress(KeyRefused):  # its lease ended with that of the message, or before
                await self._leases.release(state, commit=not proof.joined)
        return await self._settle(proof, settlement) is not Outcome.CONFLICT

    async def _end(self, proof: ConsumerProof, *, commit: bool) -> None:
        """Decides the transaction of a message. If it was decided otherwise, the message follows that decision, and
        this raises."""
        key = proof.namespace, ack_key(proof.queue, proof.claim.id)
        self._joined.pop(key, None)  # the message is settled here
        try:
            await self.keys(proof.namespace).end(proof.queue, proof.claim, proof.transaction, commit=commit)
        except KeyRefused:
            await self._settle_decided(proof)
            raise

    def _on_key_freed(self, namespace: str, key: str) -> None:
        proof = self._joined.get((namespace, key))
        if proof is not None:
            self._background.soon(self._settle_decided(proof))

    async def _settle_decided(self, proof: ConsumerProof) -> None:
        """Settles a message as its transaction was decided, if it was."""
        committed = await self.keys(proof.namespace).decided(proof.queue, proof.claim.id)
        if committed is None:
            return
        self._joined.pop((proof.namespace, ack_key(proof.queue, proof.claim.id)), None)
        jobs = self.jobs(proof.namespace)
        if committed:
            await jobs.complete(proof.claim, request=f"{proof.claim.nonce}-Finish")
            return
        info = await jobs.state(proof.claim.id)
        if info is not None:
            await self._settle(proof, failure(proof.claim, info, "its transaction was rolled back", timedelta(0)))

    async def extend(self, proof: ConsumerProof, by: timedelta) -> tuple[datetime, datetime | None] | None:
        """Extends the message and its state to `by` from now; None if another consumer had it by then."""
        expires_at = await self.jobs(proof.namespace).extend(proof.claim, by)
        if expires_at is None:
            return None
        keys = self.keys(proof.namespace)
        if proof.joined:
            await keys.renew(proof.queue, proof.claim, by)
        if proof.state is None:
            return expires_at, None
        renewed = await self._leases.renew(await keys.state_lease(proof.state), by)
        return expires_at, renewed.expires_at

    async def requeue(self, namespace: str, queue: str, id: str) -> bool:
        """Makes a dead message ready again, with all its attempts; False if there is none."""
        info = await self._dead(namespace, queue, id)
        if info is None:
            return False
        (outcome,) = await self.jobs(namespace).move([RequeueDead(info.claim)])
        return outcome is not Outcome.CONFLICT

    async def delete(self, namespace: str, queue: str, id: str) -> bool:
        """Deletes a dead message, its keys first; False if there is none, or its state is leased."""
        info = await self._dead(namespace, queue, id)
        if info is None or not await self.keys(namespace).ended(info):
            return False
        (outcome,) = await self.jobs(namespace).delete([Delete(info.claim, JobState.DEAD)])
        return outcome is not Outcome.CONFLICT

    async def _dead(self, namespace: str, queue: str, id: str) -> JobInfo | None:
        info = await self.jobs(namespace).state(id)
        return info if info is not None and info.queue == queue and info.state is JobState.DEAD else None

    async def close(self) -> None:
        """Waits until all background tasks are done."""
        await self._background.finished()
        for jobs in self._jobs.values():
            await jobs.close()

    async def _own_visibility(self, jobs: RecordedJobs, claimed: ClaimedJob) -> ClaimedJob:
        """Extends the claim to the producer's visibility timeout, if the consumer named none."""
        own = visibility_of(claimed.job)
        if own == VISIBILITY:
            return claimed
        deadline = await jobs.extend(claimed.claim, own)
        return claimed if deadline is None else ClaimedJob(
            claimed.job, claimed.claim, claimed.attempt, claimed.failures, claimed.rescues, claimed.interruptions,
            claimed.created_at, deadline,
        )  # fmt: skip

    async def _settle(self, proof: ConsumerProof, settlement: Complete | Requeue | DeadLetterJob) -> Outcome:
        jobs = self.jobs(proof.namespace)
        request = f"{proof.claim.nonce}-{_STORED_AS[type(settlement)]}"
        (outcome,) = await jobs.settle([settlement], request=request)
        return outcome


def visibility_of(job: Job) -> timedelta:
    """The visibility timeout that its producer set."""
    text = job.headers.get(VISIBILITY_HEADER, "")
    return timedelta(seconds=int(text)) if text.isdigit() and int(text) else VISIBILITY


def attempts_of(job: Job) -> int:
    """The maximum number of attempts of a message."""
    text = job.headers.get(ATTEMPTS_HEADER, "")
    return int(text) if text.isdigit() and int(text) else ATTEMPTS


def spent(info: JobInfo, attempts: int) -> bool:
    """Whether one more failed attempt is the last."""
    return info.failures + info.rescues + 1 >= attempts


def failure(claim: Claim, info: JobInfo, error: str, delay: timedelta) -> Requeue | DeadLetterJob:
    """The settlement of a failed attempt: ready again, or dead after the last attempt."""
    if spent(info, ATTEMPTS if info.retries_max is None else info.retries_max + 1):
        return DeadLetterJob(claim, Reason.FAILED, error=error, spends=Budget.FAILURES)
    return Requeue(claim, Budget.FAILURES, Reason.FAILED, error=error, delay=delay)
