"""Files become jobs: each once, in the right queue, at the shared rate, and a stop need not wait."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from faults import LOST_REPLY, FaultyJobs, Network, Script
from unit.jobs.file_producer.scene import jobs_of, names_of, producer_of
from unit.jobs.worker.scene import eventually
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable


def fill(root: Path, count: int, ending: str = "") -> None:
    for number in range(count):
        (root / f"f{number:04}{ending}").write_text("x")


async def test_a_file_becomes_a_job_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.PDF").write_text("four")
    memory = Memory()
    await producer_of(tmp_path, memory).walk()
    (job,) = await jobs_of(memory)
    assert json.loads(job.payload) == {"filepath": str(tmp_path / "a.PDF"), "filesize": 4}
    assert (job.queue, job.priority, job.kind, job.lasting) == ("high", "high", "", True)


async def test_a_second_walk_puts_nothing_twice(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    memory = Memory()
    await producer_of(tmp_path, memory).walk()
    again = producer_of(tmp_path, memory)
    await again.walk()
    assert (again.done.enqueued, again.done.known, len(await names_of(memory))) == (0, 5, 5)


async def test_a_file_that_changed_is_put_again(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    memory = Memory()
    await producer_of(tmp_path, memory).walk()
    os.utime(tmp_path / "f0000", ns=(1, 1))
    again = producer_of(tmp_path, memory)
    await again.walk()
    assert (again.done.enqueued, again.done.known) == (1, 1)


async def test_more_files_than_one_look_takes_are_all_put(tmp_path: Path) -> None:
    fill(tmp_path, 2_500)
    memory = Memory()
    producer = producer_of(tmp_path, memory)
    await producer.walk()
    assert (producer.done.seen.found, producer.done.enqueued) == (2_500, 2_500)


async def test_a_stop_ends_a_wait_for_the_rate_and_leaves_nothing_half_put(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    clock = ManualClock()  # it never moves, so the wait would not end
    memory = Memory(clock)
    producer = producer_of(tmp_path, memory, clock=clock, rate=100)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(producer.walk())
        await eventually(lambda: producer.done.enqueued == 25)
        producer.stop()
    assert len(await names_of(memory)) == 25


async def test_what_is_known_already_takes_nothing_from_the_rate(tmp_path: Path) -> None:
    fill(tmp_path, 40)
    clock = ManualClock()
    memory = Memory(clock)
    await producer_of(tmp_path, memory, clock=clock).walk()
    again = producer_of(tmp_path, memory, clock=clock, rate=100)
    async with asyncio.timeout(30):
        await again.walk()  # with a clock that stands still the rate allows 25
    assert again.done.known == 40


async def test_without_a_rate_the_limiter_is_not_asked(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    memory = Memory()
    await producer_of(tmp_path, memory, rate=0).walk()
    assert not memory.limiter._spent


async def test_a_backend_that_does_not_answer_is_an_error_after_the_patience(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    memory = Memory()
    network = Network(Script({}))
    network.down = True
    producer = producer_of(tmp_path, memory, jobs=FaultyJobs(memory.jobs, network))
    with pytest.raises(StoreUnavailable):
        await producer.walk()


async def test_files_wait_for_a_backend_that_comes_back(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    memory = Memory()
    network = Network(Script({}))
    network.down = True
    producer = producer_of(tmp_path, memory, jobs=FaultyJobs(memory.jobs, network), patience=None)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(producer.walk())
        await eventually(lambda: producer._producer.tally.unavailable > 0)
        network.down = False
    assert producer.done.enqueued == 3


async def test_a_lost_reply_puts_no_file_twice(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    memory = Memory()
    network = Network(Script({0: LOST_REPLY}, only="enqueue"))
    producer = producer_of(tmp_path, memory, jobs=FaultyJobs(memory.jobs, network), patience=None)
    await producer.walk()
    assert len(await names_of(memory)) == 3
