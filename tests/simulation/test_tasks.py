"""Tasks whose workers are slow and whose sweep acts on what it saw a while ago: a finished task stays finished, each is
finished once, none ends without having run, and in the end all are finished.

The design document resets the state of a stuck task without a condition. Planted here, that must be noticed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from conformance.queue_client import QueueClient
from unit.jobs.stream_tasks.scene import MAIL, STEP, TaskWorld
from wrasse.engine.sweep import Action
from wrasse.jobs.stream_tasks.fields import TASKS
from wrasse.jobs.stream_tasks.queue import TaskQueue
from wrasse.ports.jobs import Claim, DeadLetterJob, JobState, Move, Requeue
from wrasse.ports.outcome import Outcome

SEEDS, NOTICED_WITHIN, STEPS, TASKS_MAX = 20, 40, 120, 6


class Broken(AssertionError):
    """A law did not hold."""


def law(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


class ResetsWithoutCondition(TaskQueue):
    """Whatever the sweep found stuck is pending again, whoever has finished it since."""

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        records = self.ports.records(TASKS)
        for each in moves:
            assert isinstance(each, Requeue | DeadLetterJob)
            record = await records.get(f"{MAIL}:{each.claim.id}")
            assert record is not None
            fields = msgspec.json.decode(record.value, type=dict[str, str])
            reset = {**fields, "state": "pending"}
            await records.put(record.key, msgspec.json.encode(reset), at=record.version)
        return [Outcome.DONE] * len(moves)


class Story:
    """One story, told by its seed: everything happens one step at a time, in any order."""

    def __init__(self, seed: int, jobs: type[TaskQueue]) -> None:
        self.random = random.Random(seed)
        self.world = TaskWorld()
        self.world.jobs = jobs(self.world.jobs.ports, self.world.types)
        self.clients = [QueueClient(self.world.jobs, f"w{n}") for n in range(3)]
        self.holds: list[tuple[QueueClient, Claim]] = []
        self.ran: set[str] = set()
        self.finished: set[str] = set()
        self.planned: list[Action[Requeue | DeadLetterJob]] = []
        self.put = 0

    async def tell(self) -> None:
        acts = (self.puts, self.takes, self.finishes, self.beats, self.waits, self.looks, self.applies)
        for _ in range(STEPS):
            await self.random.choice(acts)()
            await self.judge()
        await self.rest()

    async def puts(self) -> None:
        if self.put < TASKS_MAX:
            self.put += 1
            await self.clients[0].enqueue(f"t{self.put}")

    async def takes(self) -> None:
        client = self.random.choice(self.clients)
        for claimed in await client.claim(limit=1, heartbeat_timeout=STEP):
            law(claimed.job.id not in self.finished, f"{claimed.job.id} was finished, and runs again")
            self.ran.add(claimed.job.id)
            self.holds.append((client, claimed.claim))

    async def finishes(self) -> None:
        """However late it is."""
        if self.holds:
            client, claim = self.holds.pop(self.random.randrange(len(self.holds)))
            if await client.complete(claim) == [Outcome.DONE]:
                law(claim.id not in self.finished, f"{claim.id} was finished twice")
                self.finished.add(claim.id)

    async def beats(self) -> None:
        if self.holds:
            client, claim = self.random.choice(self.holds)
            await client.heartbeat(claim, heartbeat_timeout=STEP)

    async def waits(self) -> None:
        self.world.clock.advance(timedelta(seconds=self.random.choice([1, 10, 29, 31])))

    async def looks(self) -> None:
        sweep = self.world.sweep
        page = await sweep.find(None, 100)
        self.planned = [each for info in page if isinstance(each := sweep.decide(info, page.at), Action)]

    async def applies(self) -> None:
        if self.planned:
            await self.world.sweep.apply(self.planned)
            self.planned = []

    async def judge(self) -> None:
        for id in self.finished:
            law(await self.clients[0].state(id) is JobState.DONE, f"{id} was finished, and is not any more")
        for id in await self.clients[0].ids(JobState.DEAD):
            law(id in self.ran, f"{id} ended without having run")

    async def rest(self) -> None:
        """Nobody is slow any more, and everything comes to an end."""
        for _ in range(40):
            self.world.clock.advance(STEP)
            await self.world.swept()
            for client in self.clients:
                for claimed in await client.claim(limit=1, heartbeat_timeout=STEP):
                    law(claimed.job.id not in self.finished, f"{claimed.job.id} was finished, and runs again")
                    self.ran.add(claimed.job.id)
                    await client.complete(claimed.claim)
        await self.judge()
        for n in range(1, self.put + 1):
            state = await self.clients[0].state(f"t{n}")
            law(state in (JobState.DONE, JobState.DEAD), f"t{n} is still {state}")


def broken_by(seed: int, jobs: type[TaskQueue] = TaskQueue) -> str:
    """What went wrong in this story; nothing, if all is well."""
    try:
        asyncio.run(Story(seed, jobs).tell())
    except Broken as broken:
        return str(broken)
    return ""


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, SEEDS, 10)], ids=str)
def test_a_finished_task_stays_finished_and_every_task_is_finished_once(seeds: range) -> None:
    assert {seed: broken_by(seed) for seed in seeds} == dict.fromkeys(seeds, "")


def test_a_state_reset_without_a_condition_is_noticed() -> None:
    assert any(broken_by(seed, ResetsWithoutCondition) for seed in range(NOTICED_WITHIN))
