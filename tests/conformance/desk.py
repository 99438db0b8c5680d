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
    JobQueue,
    JobRecord,
    JobState,
    Move,
    Place,
    QueueCount,
    Reason,
    Requeue,
    Settlement,
    WorkerInfo,
)
from wrasse.ports.outcome import Outcome

SILENCE = timedelta(milliseconds=600)
LONGER = timedelta(milliseconds=700)
EVERYTHING = JobFilter()
_numbers = count(1)


def fresh() -> str:
    """A request id nobody used before."""
    return f"request-{next(_numbers)}"


class Desk:
    """A job queue and one who works it."""

    def __init__(self, jobs: JobQueue, worker: str = "w1") -> None:
        self.jobs = jobs
        self.worker = WorkerInfo(worker)

    async def put(self, *jobs: Job | str) -> list[bool]:
        batch = [Job(job) if isinstance(job, str) else job for job in jobs]
        return [put.new for put in await self.jobs.put(batch, request=fresh())]

    async def take(
        self, limit: int = 100, queues: Sequence[str] = ("low",), wait: timedelta = timedelta(0), silence=SILENCE
    ) -> list[ClaimedJob]:
        taken = await self.jobs.take(
            queues, limit, worker=self.worker.id, silence=silence, request=fresh(), wait=wait
        )
        return list(taken.jobs)

    async def take_one(self) -> Claim:
        """Takes the next job, which must be there."""
        (taken,) = await self.take(limit=1)
        return taken.hold

    async def held(self, id: str) -> Claim:
        """Puts this job and holds it."""
        await self.put(id)
        (taken,) = [taken for taken in await self.take() if taken.job.id == id]
        return taken.hold

    async def beat(self, *holds: Claim, silence: timedelta = SILENCE) -> list[bool]:
        return list((await self.jobs.beat(self.worker, holds, silence=silence)).mine)

    async def settle(self, *settlements: Settlement) -> list[Outcome]:
        return list(await self.jobs.settle(settlements, request=fresh()))

    async def finish(self, *holds: Claim) -> list[Outcome]:
        return await self.settle(*(Complete(hold) for hold in holds))

    async def fail(self, hold: Claim, delay: timedelta = timedelta(0)) -> list[Outcome]:
        return await self.settle(Requeue(hold, Budget.FAILURES, Reason.FAILED, error="it broke", delay=delay))

    async def bury(self, hold: Claim) -> list[Outcome]:
        return await self.settle(DeadLetterJob(hold, Reason.FAILED, error="it broke"))

    async def move(self, *moves: Move) -> list[Outcome]:
        return list(await self.jobs.move(moves))

    async def rescue(self, hold: Claim) -> list[Outcome]:
        return await self.move(Requeue(hold, Budget.RESCUES, Reason.WORKER_DIED, error="silent"))

    async def record(self, id: str) -> JobRecord:
        record = await self.jobs.get(id)
        assert record is not None, f"there is no job {id!r}"
        return record

    async def state(self, id: str) -> JobState:
        return (await self.record(id)).state

    async def place(self, id: str) -> Place | None:
        record = await self.jobs.get(id)
        return None if record is None else record.state.place

    async def ids(
        self, place: Place, where: JobFilter = EVERYTHING, *, newest: bool = False, limit: int = 2
    ) -> list[str]:
        """All ids of a place, by small pages, so that every listing also tests its cursors."""
        found, after = [], None
        while True:
            page = await self.jobs.page(place, where, after, limit, newest=newest)
            found += [state.id for state in page]
            after = page.cursor
            if after is None:
                return found

    async def count(self, queue: str = "low") -> QueueCount:
        counts = await self.jobs.counts()
        return next((each for each in counts.queues if each.queue == queue), QueueCount(queue))

    async def now(self) -> datetime:
        return (await self.jobs.counts()).at
