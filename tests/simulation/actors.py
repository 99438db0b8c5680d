"""Workers and producers as a queue sees them: they speak its port, ask again after lost replies, stall and die.

What a job does to its worker is written in its payload, so that the story follows from the jobs and the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from typing import TypeVar

import msgspec

from wrasse.errors import StoreUnavailable
from wrasse.jobs.retry import RetryPolicy
from wrasse.ports.jobs import (
    REQUESTS_KEPT,
    Budget,
    Claim,
    ClaimedJob,
    Complete,
    Job,
    JobQueue,
    Rate,
    Reason,
    Requeue,
    Settlement,
    WorkerInfo,
)

T = TypeVar("T")
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
RETRY = RetryPolicy()
QUEUES = ("high", "low")
# Somewhat less than the store remembers: who asks later must ask anew.
ASK_FOR = REQUESTS_KEPT.total_seconds() - 15


@dataclass(frozen=True, slots=True)
class Nature:
    """What happens to whoever runs this job."""

    takes: float  # seconds
    fails: int = 0  # how often, before it succeeds
    kills: bool = False
    follow_ups: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.encode(asdict(self))

    @classmethod
    def of(cls, job: Job) -> Nature:
        return msgspec.json.decode(job.payload, type=cls)


async def asked(ask: Callable[[], Awaitable[T]], draw: random.Random) -> T:
    """The answer, asked for again and again under one request id, for as long as the store would remember it."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + ASK_FOR
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            if loop.time() > give_up:
                raise
            await asyncio.sleep(draw.uniform(0.2, 2.0))


class SimulatedWorker:
    """Takes, beats and settles like the real one, in one process that may end at any await."""

    def __init__(
        self,
        id: str,
        jobs: JobQueue,
        draw: random.Random,
        die: Callable[[], None],
        *,
        queues: Sequence[str] = QUEUES,
        rates: Sequence[Rate] = (),
    ) -> None:
        self._queues, self._rates = queues, rates
        self.info = WorkerInfo(id, slots=2)
        self._jobs = jobs
        self._draw = draw
        self._die = die
        self._requests = count(1)
        self._holds: dict[Claim, asyncio.Task[None]] = {}
        self._stubborn = draw.random() < 0.3  # goes on with a job it was told it no longer has
        self.stopping = False

    def has(self, claim: Claim) -> bool:
        """Whether it is at work on this job, and knows it."""
        return claim in self._holds

    async def run(self) -> None:
        """Until it dies or is told to stop."""
        async with asyncio.TaskGroup() as tasks:
            beats = tasks.create_task(self._beat())
            while not self.stopping:
                free = self.info.slots - len(self._holds)
                if free <= 0:
                    await asyncio.wait(self._holds.values(), return_when=asyncio.FIRST_COMPLETED, timeout=5)
                    continue
                for claimed in await self._take(free):
                    self._holds[claimed.claim] = tasks.create_task(self._run(claimed))
            await self._give_back()
            beats.cancel()

    async def _take(self, free: int) -> tuple[ClaimedJob, ...]:
        request, wait = self._request(), timedelta(seconds=self._draw.choice([0, 2, 5]))
        try:
            claimed = await asked(
                lambda: self._jobs.claim(
                    self._queues,
                    free,
                    worker=self.info.id,
                    heartbeat_timeout=HEARTBEAT_TIMEOUT,
                    request=request,
                    wait=wait,
                    rates=self._rates,
                ),
                self._draw,
            )
        except StoreUnavailable:
            return ()
        if not claimed.jobs:
            await asyncio.sleep(self._draw.uniform(0.5, 2))
        return tuple(each for each in claimed.jobs if each.claim not in self._holds)

    async def _beat(self) -> None:
        while True:
            claims = tuple(self._holds)
            try:
                beaten = await self._jobs.heartbeat(self.info, claims, heartbeat_timeout=HEARTBEAT_TIMEOUT)
            except StoreUnavailable:
                await asyncio.sleep(self._draw.uniform(0.5, 2))
                continue
            for claim, mine in zip(claims, beaten.mine, strict=True):
                task = self._holds.get(claim)
                if not mine and task is not None and not self._stubborn:
                    task.cancel()
            await asyncio.sleep(HEARTBEAT_TIMEOUT.total_seconds() / 3)

    async def _run(self, claimed: ClaimedJob) -> None:
        nature = Nature.of(claimed.job)
        try:
            if nature.kills:
                await asyncio.sleep(self._draw.uniform(0, 3))
                self._die()
            await asyncio.sleep(nature.takes)
            await self._settle(self._ending(claimed, nature))
        finally:
            self._holds.pop(claimed.claim, None)

    def _ending(self, claimed: ClaimedJob, nature: Nature) -> Settlement:
        if claimed.failures < nature.fails:
            return RETRY.after_failure(claimed.claim, claimed.failures, self._draw.random())
        puts = tuple(Job(id, payload=Nature(takes=1).encode(), lasting=True) for id in nature.follow_ups)
        return Complete(claimed.claim, result=b"42", enqueues=puts)

    async def _settle(self, settlement: Settlement) -> None:
        request = self._request()
        try:
            await asked(lambda: self._jobs.settle([settlement], request=request), self._draw)
        except StoreUnavailable:
            return  # nobody knows; the job is done, or it is rescued

    async def _give_back(self) -> None:
        """A clean stop: what is unfinished is served next, and the worker says deregistration."""
        for claim, task in list(self._holds.items()):
            task.cancel()
            await self._settle(Requeue(claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED))
        try:
            await self._jobs.heartbeat(self.info, [], heartbeat_timeout=timedelta(0))
        except StoreUnavailable:
            return  # then it counts as silent for an hour

    def _request(self) -> str:
        return f"{self.info.id}-{next(self._requests)}"


class SimulatedProducer:
    """Enqueues jobs of every nature; sometimes it forgets that it did and puts a batch again under another request. At
    the end it puts everything once more, as one does who replays a day: nothing of that may run again."""

    def __init__(self, name: str, jobs: JobQueue, draw: random.Random, jobs_max: int) -> None:
        self._name = name
        self._jobs = jobs
        self._draw = draw
        self._jobs_max = jobs_max
        self.acknowledged: dict[str, Job] = {}

    async def run(self) -> None:
        """Until all its jobs are enqueued and acknowledged, and were enqueued again."""
        await self._produce()
        await asyncio.sleep(self._draw.uniform(100, 150))
        await self._put(list(self.acknowledged.values()), f"{self._name}-replay")

    async def _produce(self) -> None:
        made = 0
        while made < self._jobs_max:
            batch = [self._job(made + n) for n in range(self._draw.randint(1, 4))]
            made += len(batch)
            for again in range(2 if self._draw.random() < 0.3 else 1):
                await self._put(batch, f"{self._name}-{made}-{again}")
                await asyncio.sleep(self._draw.uniform(0, 6))

    async def _put(self, batch: list[Job], request: str) -> None:
        try:
            await asked(lambda: self._jobs.enqueue(batch, request=request), self._draw)
            self.acknowledged |= {job.id: job for job in batch}
        except StoreUnavailable:
            await self._put(batch, request + "'")  # too late to ask again; the ids keep it from doubling

    def _job(self, number: int) -> Job:
        draw, id = self._draw, f"{self._name}-{number}"
        nature = Nature(
            takes=draw.choice([0.1, 1, 5, draw.uniform(15, 45), draw.uniform(40, 80)]),
            fails=draw.choice([0, 0, 0, 0, 1, 5]),
            kills=draw.random() < 0.1,
            follow_ups=(f"{id}-next",) if draw.random() < 0.2 else (),
        )
        delay = timedelta(seconds=draw.choice([0, 0, 0, draw.uniform(1, 60)]))
        return Job(id, queue=draw.choice(QUEUES), payload=nature.encode(), delay=delay, lasting=True)
