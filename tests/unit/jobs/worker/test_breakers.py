"""A worker and its breakers: a queue whose jobs keep failing is left alone, the others go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from faults import GOOD, LOST_REPLY, LOST_REQUEST, Fault, FaultyJobs, Network, Seeded
from unit.jobs.worker.scene import CLOCK, QUICK, enqueue, eventually, memory, numbered, record, until, working
from wrasse.backends.memory.connect import Memory
from wrasse.breaker import BreakerSettings, BreakerState
from wrasse.errors import BadPayload
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.worker.breakers import BreakerFacts, verdict
from wrasse.jobs.worker.context import WorkerSettings
from wrasse.jobs.worker.heartbeat import LoopHeartbeat
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.jobs.worker.worker import Worker
from wrasse.ports.jobs import Budget, Cancel, Claim, Complete, DeadLetterJob, Job, JobFilter, JobState, Reason, Requeue

LONG = timedelta(hours=1)
NEVER_AGAIN = RetryPolicy(failures_max=0)
SETTINGS = replace(
    QUICK,
    retry=NEVER_AGAIN,
    wait=timedelta(milliseconds=50),
    breaker=BreakerSettings(0.5, LONG, LONG, 4),
    breaker_pause=timedelta(milliseconds=5),
)
SHORT = replace(SETTINGS, breaker=BreakerSettings(0.5, LONG, timedelta(milliseconds=50), 4))
HOLD = Claim("a", 1, "n")


class Shop:
    """A handler that fails as long as it is told to, and what it was called for."""

    def __init__(self) -> None:
        self.broken = True
        self.fails_from = 0
        self.called: list[str] = []
        self.gate = asyncio.Event()

    async def work(self, job: RunningJob) -> None:
        self.called.append(job.id)
        if job.id.startswith("slow"):
            await self.gate.wait()
        if job.id.startswith("unreadable"):
            raise BadPayload("no")
        if self.broken and job.queue == "low" and len(self.called) > self.fails_from:
            raise OSError("down")

    def handlers(self) -> Handlers:
        made = Handlers()
        made.add("", self.work)
        return made


def breaker(worker: Worker, queue: str = "low") -> BreakerFacts:
    assert worker.breakers is not None
    return next(each for each in worker.breakers.facts() if each.queue == queue)


@asynccontextmanager
async def tripped(store: Memory, shop: Shop, settings: WorkerSettings = SETTINGS) -> AsyncIterator[Worker]:
    """A worker whose breaker of the queue `low` has just opened."""
    async with working(store.jobs, shop.handlers(), settings) as worker:
        await enqueue(store.jobs, *numbered(4))
        await eventually(lambda: breaker(worker).trips == 1)
        yield worker


async def test_an_open_breaker_leaves_its_queue_alone_and_the_others_go_on() -> None:
    store, shop = memory(), Shop()
    async with tripped(store, shop):
        await enqueue(store.jobs, Job("waits"), Job("goes on", queue="high"))
        await until(store.jobs, "goes on", JobState.DONE)
        await enqueue(store.jobs, Job("and on", queue="high"))
        await until(store.jobs, "and on", JobState.DONE)
        waits = await record(store.jobs, "waits")
    assert (waits.info.state, waits.info.attempts) == (JobState.READY, 0)


async def test_after_the_cooldown_one_job_is_tried_and_its_success_lets_the_rest_in() -> None:
    store, shop = memory(), Shop()
    async with tripped(store, shop, SHORT) as worker:
        shop.broken = False
        await enqueue(store.jobs, *(Job(f"rest {n}") for n in range(10)))
        for n in range(10):
            await until(store.jobs, f"rest {n}", JobState.DONE)
        assert breaker(worker) == BreakerFacts("low", BreakerState.CLOSED, 1)


async def test_only_the_probe_runs_until_it_has_ended() -> None:
    store, shop = memory(), Shop()
    async with tripped(store, shop, SHORT) as worker:
        shop.broken = False
        await enqueue(store.jobs, Job("slow probe"), *(Job(f"rest {n}") for n in range(10)))
        await eventually(lambda: "slow probe" in shop.called)
        await enqueue(store.jobs, Job("meanwhile", queue="high"))
        await until(store.jobs, "meanwhile", JobState.DONE)
        assert [id for id in shop.called if id.startswith("rest")] == []
        rest = [await record(store.jobs, f"rest {n}") for n in range(10)]
        assert {each.info.attempts for each in rest} == {0}, "not even taken"
        assert not breaker(worker).waits, "the probe is out"
        shop.gate.set()
        await until(store.jobs, "rest 9", JobState.DONE)


async def test_a_probe_that_fails_costs_one_job_per_cooldown() -> None:
    store, shop = memory(), Shop()
    async with tripped(store, shop, SHORT) as worker:
        await enqueue(store.jobs, *(Job(f"next {n}") for n in range(10)))
        await eventually(lambda: breaker(worker).trips == 3)
        assert len([id for id in shop.called if id.startswith("next")]) == 2


async def test_an_empty_queue_keeps_its_probe_for_the_job_that_comes() -> None:
    store, shop = memory(), Shop()
    async with tripped(store, shop, SHORT) as worker:
        await eventually(lambda: breaker(worker).waits)
        for n in range(5):  # it has been asked for in vain by now
            await enqueue(store.jobs, Job(f"high {n}", queue="high"))
            await until(store.jobs, f"high {n}", JobState.DONE)
        shop.broken = False
        await enqueue(store.jobs, Job("at last"))
        await until(store.jobs, "at last", JobState.DONE)
        assert breaker(worker).state is BreakerState.CLOSED


@pytest.mark.parametrize("how", ["unreadable payload", "cancelled"])
async def test_a_probe_that_decides_nothing_is_given_back(how: str) -> None:
    store, shop = memory(), Shop()
    async with tripped(store, shop, SHORT) as worker:
        shop.broken = False
        if how == "cancelled":
            await enqueue(store.jobs, Job("slow one"))
            await eventually(lambda: "slow one" in shop.called)
            await store.jobs.move([Cancel("slow one")])
        else:
            await enqueue(store.jobs, Job("unreadable"))
            await until(store.jobs, "unreadable", JobState.DEAD)
        await eventually(lambda: breaker(worker).waits)
        assert breaker(worker).trips == 1
        await enqueue(store.jobs, Job("decides"))
        await until(store.jobs, "decides", JobState.DONE)
        assert breaker(worker).state is BreakerState.CLOSED


async def test_what_was_taken_ahead_goes_back_free_when_the_breaker_opens() -> None:
    store, shop = memory(), Shop()
    shop.fails_from = 2_000  # by then the worker is fast, and prefetches
    settings = replace(SETTINGS, concurrency=1, breaker=BreakerSettings(0.0001, LONG, LONG, 4))
    await enqueue(store.jobs, *numbered(3_000))
    async with working(store.jobs, shop.handlers(), settings) as worker:
        await eventually(lambda: breaker(worker).trips == 1)

        async def all_back() -> bool:
            return (await store.jobs.counts()).queues[0].running == 0

        await eventually(all_back)
        counts = (await store.jobs.counts()).queues[0]
        following = (await store.jobs.page(JobState.READY, JobFilter(), None, 1)).items[0]
    assert (len(shop.called), counts.dead, counts.ready) == (2_001, 1, 999)
    back = [await record(store.jobs, f"job {n}") for n in range(2_001, 3_000)]
    assert sum(each.info.interruptions for each in back) > 0
    assert {each.info.failures for each in back} == {0}
    assert following.id == "job 2001", "in the order in which they were"


async def test_stopping_a_worker_does_not_feed_its_breaker() -> None:
    store, shop = memory(), Shop()
    shop.broken = False
    settings = replace(SETTINGS, concurrency=8)
    async with working(store.jobs, shop.handlers(), settings) as worker:
        await enqueue(store.jobs, *(Job(f"slow {n}") for n in range(8)))
        await eventually(lambda: len(shop.called) == 8)
    assert [(await record(store.jobs, f"slow {n}")).info.state for n in range(8)] == [JobState.READY] * 8
    assert breaker(worker) == BreakerFacts("low", BreakerState.CLOSED, 0)


async def test_jobs_in_flight_when_it_opened_neither_close_it_nor_fill_its_window() -> None:
    store, shop = memory(), Shop()
    async with working(store.jobs, shop.handlers(), replace(SHORT, concurrency=8)) as worker:
        await enqueue(store.jobs, *(Job(f"slow {n}") for n in range(4)))
        await eventually(lambda: len(shop.called) == 4)
        await enqueue(store.jobs, *numbered(4))
        await eventually(lambda: breaker(worker).trips == 1)
        shop.broken = False
        shop.gate.set()
        for n in range(4):
            await until(store.jobs, f"slow {n}", JobState.DONE)
        assert breaker(worker).state is not BreakerState.CLOSED
        await eventually(lambda: breaker(worker).waits)


class TakesFail:
    """A plan: the next takes, once it is told to begin, meet these faults."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.begun = False

    def next(self, call: str) -> Fault:
        return self.faults.pop(0) if self.begun and call == "claim" and self.faults else GOOD


@pytest.mark.parametrize("faults", [(LOST_REPLY,), (LOST_REPLY, LOST_REPLY), (LOST_REQUEST, LOST_REPLY)])
async def test_a_probe_whose_take_is_not_answered_is_neither_lost_nor_doubled(faults: tuple[Fault, ...]) -> None:
    store, shop, plan = memory(), Shop(), TakesFail(*faults)
    network = FaultyJobs(store.jobs, Network(plan))
    one = replace(SHORT, queues=("low",), breaker=BreakerSettings(0.5, LONG, timedelta(milliseconds=200), 4))
    async with working(network, shop.handlers(), one) as worker:
        await enqueue(store.jobs, *numbered(4))
        await eventually(lambda: breaker(worker).trips == 1)
        shop.broken, plan.begun = False, True
        await enqueue(store.jobs, Job("probe"), Job("rest"))
        for id in ("probe", "rest"):
            done = await until(store.jobs, id, JobState.DONE)
            assert done.info.attempts == 1
    assert (plan.faults, shop.called[4:]) == ([], ["probe", "rest"])


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_the_network_does_one_probe_runs_at_a_time_and_everything_ends(seed: int) -> None:
    chance = random.Random(seed)
    store, faults = memory(), Seeded(chance, 0.1, 0.1, 0.0, delay_max=0.002)
    settings = replace(SHORT, retry=RetryPolicy(1_000, timedelta(milliseconds=1), timedelta(milliseconds=5)))
    probes, probes_max = 0, 0

    async def work(job: RunningJob) -> None:
        nonlocal probes, probes_max
        probing = breaker(worker, job.queue).state is BreakerState.HALF_OPEN and job.queue == "low"
        probes += probing
        probes_max = max(probes_max, probes)
        try:
            await asyncio.sleep(0.001)
            if job.queue == "low" and breaker(worker).trips < 5 and chance.random() < 0.8:
                raise OSError("down")
        finally:
            probes -= probing

    made = Handlers()
    made.add("", work)
    jobs = [Job(f"{queue} {n}", queue=queue) for n in range(50) for queue in ("low", "high")]
    await enqueue(store.jobs, *jobs)
    async with working(FaultyJobs(store.jobs, Network(faults)), made, settings) as worker:
        for job in jobs:
            await until(store.jobs, job.id, JobState.DONE)
        assert breaker(worker).trips >= 5
    assert probes_max == 1


async def test_run_pending_runs_all_there_is_however_many_fail() -> None:
    store, shop = memory(), Shop()
    await enqueue(store.jobs, *numbered(30))
    worker = Worker(store.jobs, shop.handlers(), CLOCK, LoopHeartbeat(store.jobs, CLOCK), SETTINGS)
    assert await worker.run_pending() == 30


def test_what_counts_is_what_is_charged_to_the_failure_budget() -> None:
    failed = Requeue(HOLD, Budget.FAILURES, Reason.FAILED)
    assert verdict(Complete(HOLD)) is True
    assert verdict(failed) is verdict(replace(failed, reason=Reason.TIMEOUT)) is False
    assert verdict(DeadLetterJob(HOLD, Reason.FAILED, spends=Budget.FAILURES)) is False
    silent = (
        Requeue(HOLD, Budget.INTERRUPTIONS, Reason.INTERRUPTED),
        Requeue(HOLD, Budget.FAILURES, Reason.NO_HANDLER),
        DeadLetterJob(HOLD, Reason.NO_HANDLER, spends=Budget.FAILURES),
        DeadLetterJob(HOLD, Reason.INVALID_PAYLOAD),
    )
    assert {verdict(each) for each in silent} == {None}
