"""Weights and limits with a worker at work."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from unit.jobs.worker.scene import CLOCK, QUICK, enqueue, eventually, handlers, working
from wrasse.backends.memory.connect import Memory
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.ports.jobs import Job, Rate


async def test_with_weights_no_full_queue_starves_another() -> None:
    store, ran = Memory(CLOCK), list[str]()

    async def note(job: RunningJob) -> None:
        ran.append(job.queue)

    await enqueue(store.jobs, *(Job(f"{queue}-{n}", "x", queue) for queue in ("high", "low") for n in range(300)))
    settings = replace(QUICK, concurrency=1, weights={"high": 2, "low": 1})
    async with working(store.jobs, handlers(x=note), settings):
        await eventually(lambda: len(ran) == 600)
    assert ran.index("low") < 300
    assert ran.count("high") == ran.count("low") == 300


async def test_a_limited_queue_waits_and_the_others_do_not() -> None:
    store, ran = Memory(CLOCK), list[str]()

    async def note(job: RunningJob) -> None:
        ran.append(job.queue)

    await enqueue(store.jobs, *(Job(f"{queue}-{n}", "x", queue) for queue in ("high", "low") for n in range(20)))
    settings = replace(QUICK, rates=(Rate("high", 3, timedelta(hours=1)),))
    async with working(store.jobs, handlers(x=note), settings):
        await eventually(lambda: ran.count("low") == 20)
    assert ran.count("high") == 3
