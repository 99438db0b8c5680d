"""Workers, producers and engines are killed at random moments; no job is lost, finished twice, or stuck at the end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from app.kill_yard import Yard, eventually, open_yard
from wrasse.ports.jobs import Job, JobState, Place, Reason

SILENCE = 1.5
RESCUES_MAX = 3
WORKERS = 3


class Chaos:
    """Keeps the actors running, and takes one of them down each round."""

    def __init__(self, yard: Yard, draw: random.Random) -> None:
        self.yard = yard
        self.draw = draw
        self.workers = [yard.worker() for _ in range(WORKERS)]
        self.engines = [yard.start("engine", SILENCE) for _ in range(2)]
        self.producers = [yard.start("producer", "p0")]
        self.paused: dict[int, subprocess.Popen[bytes]] = {}

    async def round(self, number: int) -> None:
        """Lets them work for a moment, kills or pauses one, and starts another in its place."""
        await asyncio.sleep(self.draw.uniform(0.05, 0.9))
        for worker in list(self.workers):
            if worker.poll() is not None:  # a poison job got it
                self.yard.running.remove(worker)
                self.workers[self.workers.index(worker)] = self.yard.worker()
        self._resume(number)
        match self.draw.choice(("worker", "worker", "worker", "engine", "producer", "pause")):
            case "worker":
                self._replace(self.workers, lambda: self.yard.worker())
            case "engine":
                self._replace(self.engines, lambda: self.yard.start("engine", SILENCE))
            case "producer":
                self._replace(self.producers, lambda: self.yard.start("producer", f"p{number + 1}"))
            case "pause":
                worker = self.draw.choice(self.workers)
                os.kill(worker.pid, signal.SIGSTOP)
                self.paused[number] = worker

    def calm(self) -> None:
        """No more faults, and no more jobs."""
        self._resume(1_000_000)
        for producer in self.producers:
            self.yard.kill(producer)

    async def until_at_rest(self) -> None:
        """Waits until nothing is ready or held, with dead workers replaced as before."""

        async def at_rest() -> bool:
            for worker in list(self.workers):
                if worker.poll() is not None:
                    self.yard.running.remove(worker)
                    self.workers[self.workers.index(worker)] = self.yard.worker()
            return all(q.ready + q.delayed + q.held == 0 for q in (await self.yard.jobs.counts()).queues)

        await eventually(at_rest, within=90)

    def _resume(self, number: int) -> None:
        for since, worker in list(self.paused.items()):
            if number - since >= 6:
                del self.paused[since]
                if worker.poll() is None:
                    os.kill(worker.pid, signal.SIGCONT)

    def _replace(self, actors: list[subprocess.Popen[bytes]], start: object) -> None:
        victim = self.draw.choice(actors)
        self.yard.kill(victim)
        assert callable(start)
        actors[actors.index(victim)] = start()


def facts(yard: Yard, what: str) -> list[tuple[object, ...]]:
    return [line.facts for line in yard.log() if line.what == what]


async def assert_nothing_lost(yard: Yard, finished: list[JobState]) -> None:
    """Every job that a producer was told is stored, is; and nothing is that nobody put."""
    stored = Counter(state.id for state in finished)
    told = {id for ids in facts(yard, "put") for id in ids}
    meant = {id for ids in facts(yard, "will") for id in ids} | {"poison"}
    assert told - set(stored) == set()
    assert set(stored) - meant == set()
    assert max(stored.values()) == 1


async def assert_none_finished_twice(yard: Yard, done: list[JobState]) -> None:
    """A job's result names the token that finished it; no handler ever started under a greater one."""
    started: dict[object, int] = {}
    for id, token in facts(yard, "start"):
        assert isinstance(token, int)
        started[id] = max(token, started.get(id, 0))
    for state in done:
        result = (await yard.record(state.id)).result
        assert result is not None
        assert msgspec.json.decode(result)["token"] == started[state.id]


async def assert_only_the_poison_is_dead(yard: Yard, dead: list[JobState]) -> None:
    [poison] = [state for state in dead if state.id == "poison"]
    assert poison.reason is Reason.WORKER_DIED
    assert poison.rescues == RESCUES_MAX + 1
    assert len([id for id, _ in facts(yard, "start") if id == "poison"]) <= RESCUES_MAX + 1
    assert [state.id for state in dead] == ["poison"]


async def kill_for(rounds: int, folder: Path) -> None:
    draw = random.Random()
    async with open_yard(folder, SILENCE) as yard:
        chaos = Chaos(yard, draw)
        for number in range(rounds):
            if number == rounds // 3:
                await yard.jobs.put([Job("poison", kind="poison")], request="poison")
            await chaos.round(number)
        chaos.calm()
        await chaos.until_at_rest()
        done, dead = await yard.everything(Place.DONE), await yard.everything(Place.DEAD)
        await assert_nothing_lost(yard, done + dead)
        await assert_none_finished_twice(yard, done)
        await assert_only_the_poison_is_dead(yard, dead)
        ends = Counter(id for id, _ in facts(yard, "end"))
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
