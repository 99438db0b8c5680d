"""A worker on a real server: its heartbeat, a server that goes away, and how soon its jobs are rescued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conformance.stores import forget
from processes.kill_scene import Yard, eventually, open_yard
from servers.valkey import Valkey, valkey
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.scripts import Script
from wrasse.clock import SystemClock
from wrasse.jobs.producer import Producer
from wrasse.ports.jobs import JobState

LOOK = Script.of("look", "return {redis.call('LLEN', KEYS[1]), redis.call('EXISTS', KEYS[2])}")
PASS_MAX = 10.0  # seconds a run of the sweep may take on a machine that does much else


@pytest.fixture
def url(redis_server: Valkey) -> str:
    return f"{redis_server.url}?root=t{uuid4().hex}"


@pytest.fixture
def durable() -> Iterator[Valkey]:
    with valkey(durable=True) as made:
        yield made


async def put(yard: Yard, kind: str, *ids: str) -> None:
    producer = Producer(yard.jobs, SystemClock())
    await producer.enqueue_many([producer.job(kind, id=id) for id in ids])


class Poller:
    """Looks at a worker's list and heartbeat every millisecond, both at the same instant."""

    def __init__(self, yard: Yard, worker: str) -> None:
        assert isinstance(yard.store, Redis)
        self._client = yard.store.client
        keys = RedisKeys(self._client.options)
        self._names = keys.processing(worker), keys.heartbeat(worker)
        self.held = self.missing = 0

    async def run(self) -> None:
        while True:
            entries, heartbeat = await self._client.run(LOOK, self._names)
            self.held += entries > 0
            self.missing += entries > 0 and not heartbeat
            await asyncio.sleep(0.001)


async def test_a_heartbeat_is_there_from_before_an_entry_appears_until_it_is_gone_however_long_it_runs(
    tmp_path: Path, url: str
) -> None:
    async with open_yard(tmp_path, 2.0, url) as yard:
        yard.start("engine", yard.heartbeat_timeout)
        yard.worker()
        await yard.until_logged("worker")
        (worker,) = [str(line.facts[0]) for line in yard.log() if line.what == "worker"]
        poller = Poller(yard, worker)
        looking = asyncio.ensure_future(poller.run())
        await put(yard, "wait", "long")
        await yard.until_logged("start", "long")
        begun = time.monotonic()
        for number in range(20):
            await put(yard, "work_in_thread", *(f"short-{number}-{part}" for part in range(5)))
        await asyncio.sleep(
            begun + 3 * yard.heartbeat_timeout - time.monotonic()
        )  # the length of the job is the fact here
        yard.release("long")
        record = await yard.until("long", JobState.DONE)
        looking.cancel()
        await asyncio.wait((looking,))
        await forget_all(yard)
    assert (poller.missing, record.info.attempts, record.info.rescues) == (0, 1, 0)
    assert poller.held > 100


async def outlived(folder: Path, server: Valkey, down: float) -> None:
    """The server is gone for so many seconds, while handlers run and jobs wait."""
    async with open_yard(folder, 1.5, server.url) as yard:
        yard.start("engine", yard.heartbeat_timeout)
        worker = yard.worker(concurrency=2)
        await put(yard, "wait", "a", "b")
        await yard.until_logged("start", "a")
        await yard.until_logged("start", "b")
        await put(yard, "work", *(f"waiting-{number}" for number in range(20)))
        server.kill()
        yard.release("a")
        await asyncio.sleep(down)  # how long it is gone is the fact here
        server.start()
        yard.release("b")

        async def done() -> bool:
            return (await yard.jobs.counts()).queues[0].done == 22

        await eventually(done)
        starts = [line.facts[0] for line in yard.log() if line.what == "start"]
        assert worker.poll() is None
        assert max(starts.count(id) for id in starts) <= 2


async def test_a_server_that_is_gone_for_a_while_costs_no_job_and_no_restart(tmp_path: Path, durable: Valkey) -> None:
    await outlived(tmp_path, durable, down=3)
    assert durable.pid


@pytest.mark.full
async def test_a_server_that_is_gone_for_half_a_minute_costs_no_job_and_no_restart(
    tmp_path: Path, durable: Valkey
) -> None:
    await outlived(tmp_path, durable, down=30)
    assert durable.pid


async def test_the_job_of_a_killed_worker_is_rescued_within_a_silence_an_interval_and_a_run(
    tmp_path: Path, url: str
) -> None:
    async with open_yard(tmp_path, 2.0, url) as yard:
        yard.start("engine", yard.heartbeat_timeout)
        await yard.until_logged("engine")
        worker = yard.worker()
        await put(yard, "wait", "a")
        await yard.until_logged("start", "a")
        yard.kill(worker)
        killed = time.monotonic()
        await yard.until("a", JobState.READY)
        took = time.monotonic() - killed
        record = await yard.record("a")
        await forget_all(yard)
    print(f"rescued {took:.2f} s after the kill, of which {yard.heartbeat_timeout} s are the heartbeat timeout")
    assert record.info.rescues == 1
    assert took <= yard.heartbeat_timeout + 0.3 * 1.25 + PASS_MAX


async def forget_all(yard: Yard) -> None:
    """Ends everybody, and leaves nothing on a server that others use."""
    for process in list(yard.running):
        yard.kill(process)
    assert isinstance(yard.store, Redis)
    await forget(yard.store, yard.store.client.options.root)
