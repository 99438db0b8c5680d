"""Workers, producers and repeaters are killed at random moments: every group calls back once, every slot has one job,
no result is lost, no limit is exceeded, and of a unique name there is one job at a time."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

import seeds
from processes.kill_scene import KillScene, eventually, open_kill_scene
from processes.periodic_actor import MEMBERS, RATE, repeater_on
from servers.valkey import Valkey
from wrasse.ports.jobs import JobRecord, JobState

ACTOR = Path(__file__).with_name("periodic_actor.py")
HEARTBEAT_TIMEOUT = 1.5


class Chaos:
    """Two of each role, of which one is killed and replaced each round."""

    def __init__(self, scene: KillScene, draw: random.Random) -> None:
        self.scene = scene
        self.draw = draw
        self.started = 0
        self.workers = [self._start("worker", HEARTBEAT_TIMEOUT) for _ in range(2)]
        self.repeaters = [self._start("repeater") for _ in range(2)]
        self.producers = [self._start("producer", "p0")]

    def _start(self, role: str, *more: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ACTOR), role, self.scene.url, *(str(one) for one in more)]
        environment = seeds.environment(PYTHONPATH=str(ACTOR.parents[1]))
        process = subprocess.Popen(command, cwd=self.scene.folder, env=environment)
        self.scene.running.append(process)
        self.started += 1
        return process

    async def round(self) -> None:
        await asyncio.sleep(self.draw.uniform(0.05, 0.6))
        match self.draw.choice(("worker", "worker", "repeater", "producer")):
            case "worker":
                self._replace(self.workers, lambda: self._start("worker", HEARTBEAT_TIMEOUT))
            case "repeater":
                self._replace(self.repeaters, lambda: self._start("repeater"))
            case "producer":
                self._replace(self.producers, lambda: self._start("producer", f"p{self.started}"))

    def _replace(self, some: list[subprocess.Popen[bytes]], start: Callable[[], subprocess.Popen[bytes]]) -> None:
        victim = self.draw.choice(some)
        self.scene.kill(victim)
        some[some.index(victim)] = start()

    async def until_there_is_enough_to_compare(self) -> None:
        """A busy machine starts processes so slowly that most of them are killed before they do anything."""

        async def enough() -> bool:
            done = [info.id for info in await self.scene.everything(JobState.DONE)]
            alone = [id for id in done if id.startswith("only-")]
            limited = [id for id in done if id.startswith("limited-")]
            ticks = [id for id in done if id.startswith("periodic/tick/")]
            return len(alone) > 3 and len(ticks) > 3 and len(limited) > RATE.limit

        await eventually(enough, within=90)

    async def calm(self) -> None:
        """Nothing new comes in, and what is there is worked off."""
        for process in (*self.producers, *self.repeaters):
            self.scene.kill(process)
        await repeater_on(self.scene.store).enqueue_due()

        async def at_rest() -> bool:
            return all(q.ready + q.scheduled + q.running == 0 for q in (await self.scene.jobs.counts()).queues)

        await eventually(at_rest, within=90)


@pytest.fixture(params=("sqlite", "redis"))
def url(request: pytest.FixtureRequest) -> str:
    """Of the store: a root of its own on the server that all share, or nothing for a database of its own."""
    if request.param == "sqlite":
        return ""
    server: Valkey = request.getfixturevalue("redis_server")
    return f"{server.url}?root=t{uuid4().hex}"


async def test_kills_cost_no_callback_no_slot_no_result_and_no_limit(tmp_path: Path, url: str) -> None:
    await check_under_kills(tmp_path, url, rounds=30, seed=random.getrandbits(32))


@pytest.mark.full
async def test_many_kills_cost_no_callback_no_slot_no_result_and_no_limit(tmp_path: Path, url: str) -> None:
    await check_under_kills(tmp_path, url, rounds=200, seed=random.getrandbits(32))


async def check_under_kills(folder: Path, url: str, rounds: int, seed: int) -> None:
    async with open_kill_scene(folder, HEARTBEAT_TIMEOUT, url) as scene:
        chaos = Chaos(scene, random.Random(seed))
        await scene.until_logged("then")
        for _ in range(rounds):
            await chaos.round()
        await chaos.until_there_is_enough_to_compare()
        await chaos.calm()
        done = await scene.everything(JobState.DONE)
        records = {info.id: await scene.record(info.id) for info in done}
        dead = await scene.everything(JobState.DEAD)
        assert dead == [], f"seed {seed}"
        check_groups(scene, records)
        check_slots(records)
        check_results(scene, records)
        check_limit(records)
        check_unique(records)


def check_groups(scene: KillScene, records: dict[str, JobRecord]) -> None:
    """A group that was enqueued has all its members and one callback; one that was not has neither."""
    log = scene.log()
    opened = {line.facts[0] for line in log if line.what == "opened"}
    assert opened
    for id in [line.facts[0] for line in log if line.what == "will"]:
        members = [part for part in range(MEMBERS) if f"{id}/{part}" in records]
        callback = records.get(f"{id}/then")
        assert len(members) == (MEMBERS if callback is not None else 0)
        assert callback is not None or id not in opened
        if callback is not None:
            assert callback.job.headers["wrasse-group-done"] == str(MEMBERS)
            assert callback.job.headers["wrasse-group-dead"] == "0"


def check_slots(records: dict[str, JobRecord]) -> None:
    """One job for every second from the first slot to the last."""
    ids = sorted(id for id in records if id.startswith("periodic/tick/"))
    slots = [datetime.strptime(id.rpartition("/")[2], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) for id in ids]
    assert len(slots) > 3
    assert slots == [slots[0] + timedelta(seconds=number) for number in range(len(slots))]


def check_results(scene: KillScene, records: dict[str, JobRecord]) -> None:
    """The result of every member is there, from an attempt that ran to its end, and its last progress with it."""
    ended = {line.facts[:2] for line in scene.log() if line.what == "end"}
    for id, record in records.items():
        if record.job.kind == "member":
            assert record.result is not None
            assert (id, msgspec.json.decode(record.result)["token"]) in ended
            assert record.progress is not None
            assert record.info.kept_until is not None


def check_limit(records: dict[str, JobRecord]) -> None:
    """In no stretch of one second were more jobs taken than the limit allows, counting every attempt."""
    limited = [record for record in records.values() if record.job.queue == RATE.queue]
    takes = sorted(
        at
        for record in limited
        for at in (*(attempt.claimed_at for attempt in record.history), record.info.claimed_at)
        if at is not None
    )
    assert len(takes) > RATE.limit
    for first, beyond in zip(takes, takes[RATE.limit :], strict=False):
        assert beyond - first >= RATE.per


def check_unique(records: dict[str, JobRecord]) -> None:
    """Of the jobs that share a unique name, each was first taken after the one before it was done."""
    only = [record for record in records.values() if record.job.unique == "only"]
    spans = sorted((_first_taken(record), record.info.finished_at) for record in only)
    assert len(spans) > 3
    for (_, finished), (taken, _) in itertools.pairwise(spans):
        assert finished is not None
        assert finished <= taken


def _first_taken(record: JobRecord) -> datetime:
    first = record.history[0].claimed_at if record.history else record.info.claimed_at
    assert first is not None
    return first
