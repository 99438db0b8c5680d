"""SIGKILL of consumers of a queue on a directory, at random points: no job is lost, and none is finished twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.backends.directory.connect import Directory
from wrasse.clock import ManualClock, SystemClock
from wrasse.jobs.record_queue.queue import RecordedJobs
from wrasse.jobs.record_queue.store import JobRecordNames
from wrasse.ports.jobs import Job, JobFilter, JobState

ACTOR = Path(__file__).with_name("consumer_actor.py")
CONSUMERS = 3
DONE_WITHIN = 300.0  # seconds; only ever reached by a failure


class RecordScene:
    """Consumers that are killed and replaced."""

    def __init__(self, actor: asyncio.subprocess.Process) -> None:
        self._actor = actor
        self.pids: list[int] = []

    async def start(self) -> None:
        assert self._actor.stdin is not None
        assert self._actor.stdout is not None
        self._actor.stdin.write(b"\n")
        self.pids.append(int(await self._actor.stdout.readline()))

    def kill(self) -> None:
        pid = self.pids.pop(random.randrange(len(self.pids)))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        while self.pids:
            self.kill()
        assert self._actor.stdin is not None
        self._actor.stdin.close()
        await self._actor.wait()


async def run(folder: Path, count: int, kills: int) -> Counter[str]:
    """Enqueues jobs, lets consumers work them and kills so many of these; what the log says."""
    store = await Directory.open(folder / "data", SystemClock())
    jobs = RecordedJobs(store.records, store.objects, SystemClock())
    for begin in range(0, count, 500):
        batch = [Job(f"j{n}", minted=True) for n in range(begin, min(begin + 500, count))]
        await jobs.enqueue(batch, request=f"from {begin}")
    log = folder / "log"
    actor = await asyncio.create_subprocess_exec(
        sys.executable, ACTOR, str(folder / "data"), str(log),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    scene = RecordScene(actor)
    try:
        async with asyncio.timeout(DONE_WITHIN):
            for _ in range(CONSUMERS):
                await scene.start()
            while await _left(jobs):
                if kills:
                    kills -= 1
                    scene.kill()
                    await scene.start()
                await asyncio.sleep(random.uniform(0.05, 0.25))  # the next blow falls at a moment of chance
    finally:
        await scene.close()
        await store.close()
    return Counter(log.read_text().splitlines())


async def _left(jobs: RecordedJobs) -> bool:
    pages = [
        await jobs.page(state, JobFilter(), None, 1) for state in (JobState.READY, JobState.RUNNING, JobState.DEAD)
    ]
    return any(len(page) for page in pages)


async def loose(folder: Path) -> list[str]:
    """What is still there an hour later, after somebody has looked."""
    clock = ManualClock(SystemClock().now() + timedelta(hours=1))
    store = await Directory.open(folder / "data", clock)
    jobs = RecordedJobs(store.records, store.objects, clock)
    await jobs.claim(["low"], 10, worker="w", heartbeat_timeout=timedelta(seconds=5), request="late")
    await jobs.close()
    records = await store.records(JobRecordNames().jobs).page("", None, 10)
    objects = await store.objects.page("jobs/ready/", None, 10)
    await store.close()
    return [record.key for record in records] + [info.key for info in objects]


@pytest.mark.parametrize(("count", "kills"), [(60, 8), pytest.param(2_000, 200, marks=pytest.mark.full)])
async def test_no_job_is_lost_and_none_is_finished_twice(tmp_path: Path, count: int, kills: int) -> None:
    told = await run(tmp_path, count, kills)
    ids = [f"j{n}" for n in range(count)]
    lost = [id for id in ids if not told[f"ran {id}"]]
    twice = [id for id in ids if told[f"finished {id}"] > 1]
    assert (lost, twice, await loose(tmp_path)) == ([], [], [])
