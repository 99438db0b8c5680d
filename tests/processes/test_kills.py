"""Workers, producers and engines are killed at random moments; no job is lost, finished twice, or stuck at the end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import seeds
from processes.kill_scene import KillScene, eventually, open_kill_scene
from wrasse.clock import SystemClock
from wrasse.jobs.producer import Producer
from wrasse.ports.jobs import JobInfo, JobState, Reason

HEARTBEAT_TIMEOUT = 1.5
RESCUES_MAX = 3
WORKERS = 3
PAUSE = 5.0  # longer than until it is found dead: its heartbeat process goes on for one timeout, the claim for another


class Chaos:
    """Keeps the actors running, and takes one of them down each round."""

    def __init__(self, scene: KillScene, draw: random.Random) -> None:
        self.scene = scene
        self.draw = draw
        self.workers = [scene.worker() for _ in range(WORKERS)]
        self.engines = [scene.start("engine", HEARTBEAT_TIMEOUT) for _ in range(2)]
        self.producers = [scene.start("producer", "p0")]
        self.paused: list[tuple[float, subprocess.Popen[bytes]]] = []

    async def round(self, number: int) -> None:
        """Lets them work for a moment, kills or pauses one, and starts another in its place."""
        await asyncio.sleep(self.draw.uniform(0.05, 0.9))
        for worker in list(self.workers):
            if worker.poll() is not None:  # a poison job got it
                self.scene.running.remove(worker)
                self.workers[self.workers.index(worker)] = self.scene.worker()
        self._resume()
        match "pause" if number % 5 == 2 else self.draw.choice(("worker", "worker", "engine", "producer")):
            case "worker":
                self._replace(self.workers, lambda: self.scene.worker())
            case "engine":
                self._replace(self.engines, lambda: self.scene.start("engine", HEARTBEAT_TIMEOUT))
            case "producer":
                self._replace(self.producers, lambda: self.scene.start("producer", f"p{number + 1}"))
            case "pause":
                worker = await self._pause_in_the_middle()
                self.paused.append((time.monotonic() + PAUSE, worker))

    async def calm(self) -> None:
        """No more jobs, and no more faults once the last pause is over."""
        for producer in self.producers:
            self.scene.kill(producer)
        while self.paused:
            await asyncio.sleep(0.1)
            self._resume()

    async def until_at_rest(self) -> None:
        """Waits until nothing is ready or held, with dead workers replaced as before."""

        async def at_rest() -> bool:
            for worker in list(self.workers):
                if worker.poll() is not None:
                    self.scene.running.remove(worker)
                    self.workers[self.workers.index(worker)] = self.scene.worker()
            return all(q.ready + q.scheduled + q.running == 0 for q in (await self.scene.jobs.counts()).queues)

        await eventually(at_rest, within=90)

    async def _pause_in_the_middle(self) -> subprocess.Popen[bytes]:
        """Stops a worker while one of its handlers runs, so that its finish comes too late; not in the middle of a
        write, which would keep everybody else from writing."""
        held = [worker for _, worker in self.paused]
        worker = self.draw.choice([worker for worker in self.workers if worker not in held] or self.workers)
        for _ in range(100):
            os.kill(worker.pid, signal.SIGSTOP)
            if self._handlers_running(worker.pid) and self.scene.writable():
                break
            os.kill(worker.pid, signal.SIGCONT)
            await asyncio.sleep(0.01)
        return worker

    def _handlers_running(self, pid: int) -> bool:
        lines = [line.what for line in self.scene.log() if line.pid == pid]
        return lines.count("start") > lines.count("end")

    def _resume(self) -> None:
        for until, worker in list(self.paused):
            if time.monotonic() >= until:
                self.paused.remove((until, worker))
                if worker.poll() is None:
                    os.kill(worker.pid, signal.SIGCONT)

    def _replace(self, actors: list[subprocess.Popen[bytes]], start: object) -> None:
        held = [worker for _, worker in self.paused]
        victim = self.draw.choice([actor for actor in actors if actor not in held] or actors)
        self.scene.kill(victim)
        assert callable(start)
        actors[actors.index(victim)] = start()


def facts(scene: KillScene, what: str) -> list[tuple[object, ...]]:
    return [line.facts for line in scene.log() if line.what == what]


async def assert_nothing_lost(scene: KillScene, finished: list[JobInfo]) -> None:
    """Every job that a producer was told is stored, is; and nothing is that nobody put."""
    stored = Counter(info.id for info in finished)
    told = {id for ids in facts(scene, "put") for id in ids}
    meant = {id for ids in facts(scene, "will") for id in ids} | {"poison"}
    assert told - set(stored) == set()
    assert set(stored) - meant == set()
    assert max(stored.values()) == 1


async def assert_none_finished_twice(scene: KillScene, done: list[JobInfo]) -> None:
    """A job's result names the token that finished it; no handler ever started under a greater one."""
    started: dict[object, int] = {}
    for id, token in facts(scene, "start"):
        assert isinstance(token, int)
        started[id] = max(token, started.get(id, 0))
    for info in done:
        result = (await scene.record(info.id)).result
        assert result is not None
        assert msgspec.json.decode(result)["token"] == started[info.id]


async def assert_dead_by_the_budget_alone(scene: KillScene, dead: list[JobInfo]) -> None:
    """The poison is dead within its budget. Another job is only if chance really took so many workers from it: killing
    at random, on a machine that is busy, that happens now and then."""
    assert "poison" in [info.id for info in dead]
    assert len([id for id, _ in facts(scene, "start") if id == "poison"]) <= RESCUES_MAX + 1
    for info in dead:
        deaths = [each for each in (await scene.record(info.id)).history if each.reason is Reason.WORKER_DIED]
        assert (info.reason, info.rescues, len(deaths)) == (Reason.WORKER_DIED, RESCUES_MAX + 1, RESCUES_MAX + 1)
    assert len(dead) <= 3


async def kill_for(rounds: int, folder: Path) -> None:
    draw = seeds.draw("kills")
    async with open_kill_scene(folder, HEARTBEAT_TIMEOUT) as scene:
        producer = Producer(scene.jobs, SystemClock())
        chaos = Chaos(scene, draw)
        for number in range(rounds):
            if number == rounds // 3:
                await producer.enqueue(producer.job("poison", id="poison"))
            await chaos.round(number)
        await chaos.calm()
        await chaos.until_at_rest()
        done, dead = await scene.everything(JobState.DONE), await scene.everything(JobState.DEAD)
        await assert_nothing_lost(scene, done + dead)
        await assert_none_finished_twice(scene, done)
        await assert_dead_by_the_budget_alone(scene, dead)
        ends = Counter(id for id, _ in facts(scene, "end"))
        twice = sum(count - 1 for count in ends.values())
        print(f"{rounds} rounds, {len(done)} jobs done, {twice} side effects ran again after a kill")


@pytest.mark.timeout(180)
async def test_random_kills_lose_no_job_finish_none_twice_and_leave_none_stuck(tmp_path: Path) -> None:
    await kill_for(30, tmp_path)
    assert (tmp_path / "jobs.db").exists()


@pytest.mark.full
@pytest.mark.timeout(1_200)
async def test_two_hundred_random_kills_lose_no_job_finish_none_twice_and_leave_none_stuck(tmp_path: Path) -> None:
    await kill_for(200, tmp_path)
    assert (tmp_path / "jobs.db").exists()
