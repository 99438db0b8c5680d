"""Jobs in every state, through the ports: what a dump of the backend afterwards holds."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

from wire.places import Place, pass_time
from wrasse.jobs.periodic import Every, Missed, Periodic
from wrasse.jobs.producer import Producer, ProducerOptions
from wrasse.jobs.scheduler import PERIODIC, PeriodicScheduler
from wrasse.ports.jobs import (
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobGroup,
    JobQueue,
    JobState as State,
    Progress,
    Rate,
    Reason,
    Requeue,
    RequeueDead,
    WorkerInfo,
)

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
WORKER = WorkerInfo("worker-1", host="host-1", pid=4711, slots=8)
OTHER = WorkerInfo("worker-2", host="host-2", pid=4712, slots=2)
_TRACE = {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}


class Story:
    """A queue, and short ways to work it; every request has a name of its own."""

    def __init__(self, jobs: JobQueue) -> None:
        self.jobs = jobs
        self._numbers = count(1)

    def request(self) -> str:
        return f"request-{next(self._numbers)}"

    async def enqueue(self, *jobs: Job, groups: tuple[JobGroup, ...] = ()) -> list[bool]:
        return [each.new for each in await self.jobs.enqueue(jobs, request=self.request(), groups=groups)]

    async def claim(self, job: Job, *, worker: WorkerInfo = WORKER, timeout: timedelta = HOUR) -> Claim:
        """Stores this job alone in its queue and claims it."""
        await self.enqueue(job)
        return await self.next(job.queue, worker=worker, timeout=timeout)

    async def next(
        self, queue: str, *, worker: WorkerInfo = WORKER, timeout: timedelta = HOUR, rates: tuple[Rate, ...] = ()
    ) -> Claim:
        request = self.request()
        got = await self.jobs.claim(
            [queue], 1, worker=worker.id, heartbeat_timeout=timeout, request=request, rates=rates
        )
        return got.jobs[0].claim

    async def settle(self, *settlements: Complete | Requeue | DeadLetterJob) -> None:
        await self.jobs.settle(settlements, request=self.request())


async def every_state(at: Place, jobs: JobQueue) -> None:
    """Jobs that are ready, delayed, held, done and dead, for every reason, by whichever way."""
    story = Story(jobs)
    await jobs.heartbeat(WORKER, (), heartbeat_timeout=HOUR)
    await jobs.heartbeat(OTHER, (), heartbeat_timeout=HOUR)
    done = await story.claim(Job("done-1", kind="resize", payload=b'{"n":1}', keep=24 * HOUR))
    await story.settle(Complete(done, b'{"answer":42}', enqueues=(Job("follow-1", payload=b"follows"),)))
    await pass_time(at, SECOND)
    await story.next("low")
    plain = await story.claim(Job("done-2", queue="high", priority="high"))
    await story.settle(Complete(plain))
    dead = await story.claim(Job("dead-1", queue="high", kind="resize", payload=b"\x00\xff", headers=_TRACE))
    await story.settle(Requeue(dead, Budget.FAILURES, Reason.FAILED, "it broke"))
    dead = await story.next("high")
    await story.settle(DeadLetterJob(dead, Reason.TIMEOUT, "too slow", Budget.FAILURES))
    await pass_time(at, SECOND)
    revived = await story.claim(Job("revived-1", queue="high"))
    await story.settle(DeadLetterJob(revived, Reason.NO_HANDLER, "no handler"))
    await jobs.move([RequeueDead(revived, HOUR)])
    deleted = await story.claim(Job("deleted-1", queue="high", lasting=True))
    await story.settle(DeadLetterJob(deleted, Reason.FAILED))
    await jobs.delete([Delete(deleted, State.DEAD)])
    held = await story.claim(Job("held-1", queue="high", kind="mail", payload=b"text", lasting=True))
    told = {"held-1": Progress(0.5, "half")}
    await pass_time(at, SECOND)
    await jobs.heartbeat(WORKER, [held], heartbeat_timeout=HOUR, progress=told)
    interrupted = await story.claim(Job("interrupted-1", queue="high"))
    await story.settle(Requeue(interrupted, Budget.INTERRUPTIONS, Reason.INTERRUPTED, "stopped"))
    await story.next("high", worker=OTHER)
    await story.enqueue(Job("cancelled-1", queue="high"))
    await jobs.move([Cancel("cancelled-1", "not needed")])
    later = await story.claim(Job("retry-1", queue="high", payload=b"x"))
    await story.settle(Requeue(later, Budget.FAILURES, Reason.FAILED, "again", delay=2 * HOUR))
    await story.enqueue(
        Job("ready-1", kind="resize", payload=b'{"filepath":"/data/a.txt","filesize":10}', headers=_TRACE),
        Job("ready-2", payload="päyload".encode(), headers={"wrasse-x": "1"}, timeout=5 * SECOND, lasting=True),
        Job("ready-3", queue="high", priority="high", kind="m", payload=b"\x00\x01", minted=True),
        Job("delayed-1", payload=b"later", delay=HOUR),
    )
    await story.enqueue(Job("ready-2"))


async def few_states(at: Place, jobs: JobQueue) -> None:
    """A job that is ready, one that is delayed, one that is held and one that is dead."""
    story = Story(jobs)
    dead = await story.claim(Job("dead-1", queue="high", kind="resize", payload=b"\x00\xff", headers=_TRACE))
    await story.settle(DeadLetterJob(dead, Reason.TIMEOUT, "too slow", Budget.FAILURES))
    await story.claim(Job("held-1", queue="high"))
    await story.enqueue(Job("ready-1", payload=b"text"))
    await story.enqueue(Job("delayed-1", payload=b"later", delay=HOUR))


async def rescue(at: Place, jobs: JobQueue) -> None:
    """A worker falls silent: one job is made ready again and claimed by another, one is dead."""
    story = Story(jobs)
    await jobs.heartbeat(WORKER, (), heartbeat_timeout=HOUR)
    await story.enqueue(Job("rescued-1"), Job("rescued-2"), Job("rescued-3"))
    claims = [await story.next("low", timeout=HOUR) for _ in range(3)]
    await pass_time(at, 2 * HOUR)
    await jobs.move([Requeue(claims[0], Budget.RESCUES, Reason.WORKER_DIED, "no heartbeat")])
    await jobs.move([DeadLetterJob(claims[1], Reason.WORKER_DIED, "no heartbeat", Budget.RESCUES)])
    await jobs.move([Requeue(claims[2], Budget.RESCUES, Reason.WORKER_DIED, "no heartbeat")])
    await story.next("low", worker=OTHER)


async def groups_and_names(at: Place, jobs: JobQueue, low: str = "low", high: str = "high") -> None:
    """Unique names, groups that are open and complete, and a queue with a rate."""
    story = Story(jobs)
    unique = (Job("unique-1", queue=low, unique="report"), Job("unique-2", queue=low, unique="report"))
    assert await story.enqueue(*unique) == [True, False]
    await story.enqueue(Job("unique-3", unique="daily", window=24 * HOUR, queue="other"))
    members = (Job("m-1", group="g-1", queue=high), Job("m-2", group="g-1", queue=high))
    await story.enqueue(*members, groups=(JobGroup("g-1", 2, Job("then-1", queue="after", kind="merge")),))
    callback = Job("then-2", queue=low, headers={"a": "b"})
    await story.enqueue(Job("m-3", queue=low, group="g-2"), groups=(JobGroup("g-2", 3, callback),))
    await story.settle(Complete(await story.next(high)))
    await story.settle(DeadLetterJob(await story.next(high), Reason.FAILED, "no"))
    await story.next("other", rates=(Rate("other", 2, HOUR),))


async def periodic(at: Place, jobs: JobQueue) -> None:
    """A periodic job that ran once, and one that did not."""
    producer = Producer(jobs, at.clock)
    each = (
        Periodic("hourly", Every(HOUR), "report", b'{"a":1}', "high", Missed.ONCE),
        Periodic("daily", Every(24 * HOUR), "purge", b"", None, Missed.SKIP),
    )
    repeater = PeriodicScheduler(each, producer, at.backend.records(PERIODIC), at.clock)
    await repeater.enqueue_due()
    await pass_time(at, HOUR)
    await repeater.enqueue_due()


async def names_of_seed_002(at: Place, jobs: JobQueue) -> None:
    """Queues whose names are the keys of their lists, and the producers' limiter."""
    producer = Producer(
        jobs, at.clock, ProducerOptions(queues={"high": "jobqueue:high_priority", "low": "jobqueue:low_priority"})
    )
    await producer.enqueue(producer.job("", b'{"filepath":"/data/a.txt","filesize":10}', id="a", priority="high"))
    await producer.enqueue(producer.job("", b'{"filepath":"/data/b.txt","filesize":0}', id="b", delay=HOUR))
    await Story(jobs).next("jobqueue:high_priority")
    await at.backend.limiter.allow("rate_limit:producer", 3, rate=10, burst=10)
