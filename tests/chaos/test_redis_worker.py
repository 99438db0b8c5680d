"""A worker on a real server: its heartbeat, a server that goes away, and how soon its jobs are rescued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conformance.stores import forget
from processes.kill_scene import KillScene, eventually, open_kill_scene
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


async def enqueue(scene: KillScene, kind: str, *ids: str) -> None:
    producer = Producer(scene.jobs, SystemClock())
    await producer.enqueue_many([producer.job(kind, id=id) for id in ids])


class Poller:
    """Looks at a worker's list and heartbeat every millisecond, both at the same instant."""

    def __init__(self, scene: KillScene, worker: str) -> None:
        assert isinstance(scene.store, Redis)
        self._client = scene.store.client
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
    async with open_kill_scene(tmp_path, 2.0, url) as scene:
        scene.start("engine", scene.heartbeat_timeout)
        scene.worker()
        await scene.until_logged("worker")
        (worker,) = [str(line.facts[0]) for line in scene.log() if line.what == "worker"]
        poller = Poller(scene, worker)
        looking = asyncio.ensure_future(poller.run())
        await enqueue(scene, "wait", "long")
        await scene.until_logged("start", "long")
        begun = time.monotonic()
        for number in range(20):
            await enqueue(scene, "work_in_thread", *(f"short-{number}-{part}" for part in range(5)))
        await asyncio.sleep(
            begun + 3 * scene.heartbeat_timeout - time.monotonic()
        )  # the length of the job is the fact here
        scene.release("long")
        record = await scene.until("long", JobState.DONE)
        looking.cancel()
        await asyncio.wait((looking,))
        await forget_all(scene)
    assert (poller.missing, record.info.attempts, record.info.rescues) == (0, 1, 0)
    assert poller.held > 100


async def outlived(folder: Path, server: Valkey, down: float) -> None:
    """The server is gone for so many seconds, while handlers run and jobs wait."""
    async with open_kill_scene(folder, 1.5, server.url) as scene:
        scene.start("engine", scene.heartbeat_timeout)
        worker = scene.worker(concurrency=2)
        await enqueue(scene, "wait", "a", "b")
        await scene.until_logged("start", "a")
        await scene.until_logged("start", "b")
        await enqueue(scene, "work", *(f"waiting-{number}" for number in range(20)))
        server.kill()
        scene.release("a")
        await asyncio.sleep(down)  # how long it is gone is the fact here
        server.start()
        scene.release("b")

        async def done() -> bool:
            return (await scene.jobs.counts()).queues[0].done == 22

        await eventually(done)
        starts = [line.facts[0] for line in scene.log() if line.what == "start"]
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
    async with open_kill_scene(tmp_path, 2.0, url) as scene:
        scene.start("engine", scene.heartbeat_timeout)
        await scene.until_logged("engine")
        worker = scene.worker()
        await enqueue(scene, "wait", "a")
        await scene.until_logged("start", "a")
        scene.kill(worker)
        killed = time.monotonic()
        await scene.until("a", JobState.READY)
        took = time.monotonic() - killed
        record = await scene.record("a")
        await forget_all(scene)
    print(f"rescued {took:.2f} s after the kill, of which {scene.heartbeat_timeout} s are the heartbeat timeout")
    assert record.info.rescues == 1
    assert took <= scene.heartbeat_timeout + 0.3 * 1.25 + PASS_MAX


async def forget_all(scene: KillScene) -> None:
    """Ends everybody, and leaves nothing on a server that others use."""
    for process in list(scene.running):
        scene.kill(process)
    assert isinstance(scene.store, Redis)
    await forget(scene.store, scene.store.client.options.root)
