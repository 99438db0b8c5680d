"""Short ways to work a job queue in a test: fresh request ids, one worker, one queue unless said otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count

from wrasse.ports.jobs import (
    Budget,
    Claim,
    ClaimedJob,
    Complete,
    DeadLetterJob,
    Job,
    JobFilter,
    JobInfo,
    JobQueue,
    JobRecord,
    JobState,
    Move,
    QueueCount,
    Reason,
    Requeue,
    Settlement,
    WorkerInfo,
)
from wrasse.ports.outcome import Outcome

HEARTBEAT_TIMEOUT = timedelta(milliseconds=600)
LONGER = timedelta(milliseconds=700)
EVERYTHING = JobFilter()
_numbers = count(1)


def fresh() -> str:
    """A new request id."""
    return f"request-{next(_numbers)}"


class QueueClient:
    """A client of a job queue, as a worker of it."""

    def __init__(self, jobs: JobQueue, worker: str = "w1") -> None:
        self.jobs = jobs
        self.worker = WorkerInfo(worker)

    async def enqueue(self, *jobs: Job | str) -> list[bool]:
        batch = [Job(job) if isinstance(job, str) else job for job in jobs]
        return [each.new for each in await self.jobs.enqueue(batch, request=fresh())]

    async def claim(
        self,
        limit: int = 100,
        queues: Sequence[str] = ("low",),
        wait: timedelta = timedelta(0),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
    ) -> list[ClaimedJob]:
        claimed = await self.jobs.claim(
            queues, limit, worker=self.worker.id, heartbeat_timeout=heartbeat_timeout, request=fresh(), wait=wait
        )
        return list(claimed.jobs)

    async def claim_one(self) -> Claim:
        """Claims the next job, which must be there."""
        (claimed,) = await self.claim(limit=1)
        return claimed.claim

    async def claimed(self, id: str) -> Claim:
        """Enqueues this job and claims it."""
        await self.enqueue(id)
        (claimed,) = [claimed for claimed in await self.claim() if claimed.job.id == id]
        return claimed.claim

    async def heartbeat(self, *claims: Claim, heartbeat_timeout: timedelta = HEARTBEAT_TIMEOUT) -> list[bool]:
        return list((await self.jobs.heartbeat(self.worker, claims, heartbeat_timeout=heartbeat_timeout)).mine)

    async def settle(self, *settlements: Settlement) -> list[Outcome]:
        return list(await self.jobs.settle(settlements, request=fresh()))

    async def complete(self, *claims: Claim) -> list[Outcome]:
        return await self.settle(*(Complete(claim) for claim in claims))

    async def fail(self, claim: Claim, delay: timedelta = timedelta(0)) -> list[Outcome]:
        return await self.settle(Requeue(claim, Budget.FAILURES, Reason.FAILED, error="it broke", delay=delay))

    async def dead_letter(self, claim: Claim) -> list[Outcome]:
        return await self.settle(DeadLetterJob(claim, Reason.FAILED, error="it broke"))

    async def move(self, *moves: Move) -> list[Outcome]:
        return list(await self.jobs.move(moves))

    async def rescue(self, claim: Claim) -> list[Outcome]:
        return await self.move(Requeue(claim, Budget.RESCUES, Reason.WORKER_DIED, error="silent"))

    async def record(self, id: str) -> JobRecord:
        record = await self.jobs.get(id)
        assert record is not None, f"there is no job {id!r}"
        return record

    async def info(self, id: str) -> JobInfo:
        return (await self.record(id)).info

    async def state(self, id: str) -> JobState | None:
        record = await self.jobs.get(id)
        return None if record is None else record.info.state

    async def ids(
        self, state: JobState, where: JobFilter = EVERYTHING, *, newest: bool = False, limit: int = 2
    ) -> list[str]:
        """All ids of a state, by small pages, so that every listing also tests its cursors."""
        found, after = [], None
        while True:
            page = await self.jobs.page(state, where, after, limit, newest=newest)
            found += [info.id for info in page]
            after = page.cursor
            if after is None:
                return found

    async def count(self, queue: str = "low") -> QueueCount:
        counts = await self.jobs.counts()
        return next((each for each in counts.queues if each.queue == queue), QueueCount(queue))

    async def now(self) -> datetime:
        return (await self.jobs.counts()).at
