"""Tasks through a storm, on Redis and on NATS: none is lost, ends twice, fails without having run, or is stuck, and
no queue entry is trimmed that somebody still needs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest

from chaos.storm import Server, Weather, storm_over
from chaos.task_laws import check_tasks
from chaos.task_scene import RETRIES, TYPE, TaskStore, open_task_store, tasks_at
from conformance.queue_client import QueueClient
from processes.kill_scene import kill_scene_on
from servers.nats import Nats, nats
from servers.valkey import Valkey, valkey
from wrasse.engine.sweep import Action
from wrasse.jobs.stream_tasks.fields import queue_of
from wrasse.ports.jobs import JobFilter, JobState
from wrasse.streams.retention import Retention, RetentionRule
from wrasse.sweeps.stuck_jobs import StuckJobs

HEARTBEAT_TIMEOUT = 1.5
SHORT = timedelta(milliseconds=200)
ACTOR = Path(__file__).with_name("task_storm_actor.py")
MILD = Weather(2, 1, 2, restart_every=6, pause=0.1, most=6, poison=False, actor=ACTOR, look=0.2)
SERVERS: dict[str, Callable[[], AbstractContextManager[Valkey | Nats]]] = {
    "redis": lambda: valkey(durable=True),
    "nats": nats,
}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Valkey | Nats]:
    with SERVERS[request.param]() as made:
        yield made


class Addressed(Server, Protocol):
    """A server that is reached by a URL."""

    url: str


async def weathered(folder: Path, server: Addressed, weather: Weather, rounds: int, jobs_min: int = 0) -> str:
    """A storm of so many rounds over tasks, then calm, and the laws. Says what it came to."""
    seed = random.getrandbits(32)  # from the seed of the run
    url = tasks_at(server.url, folder, HEARTBEAT_TIMEOUT)
    store = await open_task_store(url)
    async with (
        kill_scene_on(folder, HEARTBEAT_TIMEOUT, url, store) as scene,
        storm_over(scene, server, weather, random.Random(seed)) as storm,
    ):
        await storm.pass_over(rounds, jobs_min)
        ending, told_again = await check_tasks(scene, store)
        trimmed = sum(int(count) for (count,) in ending.facts.get("trimmed", ()))
        return (
            f"seed {seed}: {storm.blows} blows, {storm.restarts} of them at the server, {len(ending.done)} tasks done, "
            f"{len(ending.dead)} dead, {ending.again} handlers started again, {ending.twice} side effects ran twice, "
            f"{trimmed} entries trimmed, {told_again} ends told again"
        )


@pytest.mark.timeout(360)
@pytest.mark.parametrize("server", SERVERS, indirect=True)
async def test_a_storm_loses_no_task_ends_none_twice_and_trims_nothing_that_is_needed(
    tmp_path: Path, server: Valkey | Nats
) -> None:
    print(await weathered(tmp_path, server, MILD, rounds=12))
    assert server.pid


@pytest.mark.full
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("server", SERVERS, indirect=True)
async def test_a_long_storm_loses_no_task_and_ends_none_twice(tmp_path: Path, server: Valkey | Nats) -> None:
    # A process takes a second of a core to start: blows that came faster would hit hardly anything else.
    weather = replace(MILD, workers=4, producers=2, restart_every=20, most=20, poison=True, gap=1.2, look=1.0)
    print(await weathered(tmp_path, server, weather, rounds=120, jobs_min=500))
    assert server.pid


@pytest.mark.full
@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("server", "planted", "blow"),
    [("redis", "ack_before_claim", "kill"), ("redis", "trim_by_pending", "freeze")],
    indirect=["server"],
)
async def test_a_precaution_taken_away_is_noticed(
    tmp_path: Path, server: Valkey | Nats, planted: str, blow: str
) -> None:
    weather = replace(MILD, workers=1, engines=1, blows=(blow,), restart_every=1_000, planted=planted, aim=("worker",))
    with pytest.raises(AssertionError, match="a waiting task had no entry"):
        await weathered(tmp_path, server, weather, rounds=6)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
async def test_under_a_backlog_of_ten_timeouts_every_task_runs_once_and_none_fails(
    tmp_path: Path, server: Valkey | Nats
) -> None:
    store = await open_task_store(tasks_at(server.url, tmp_path, SHORT.total_seconds()))
    client, names = QueueClient(store.jobs), sorted(f"t{n}" for n in range(50))
    rule = RetentionRule(queue_of(TYPE), SHORT, exact=True)
    protect = Retention((rule,)).protecting(rule.pattern, rule)
    await client.enqueue(*names)
    begun = at = await store.jobs.time.now()

    while at < begun + 10 * SHORT:  # a task at a time, while the sweeps look at the rest
        await client.complete(*(claimed.claim for claimed in await client.claim(limit=1)))
        at = await swept(store)
        await store.backend.streams.trim(rule.pattern, age=SHORT, below=None, protect=protect, limit=1_000)
        await asyncio.sleep(SHORT.total_seconds())
    while late := await client.claim():
        await client.complete(*(claimed.claim for claimed in late))

    done = await store.jobs.page(JobState.DONE, JobFilter(), None, 100)
    queue = await store.backend.streams.info(rule.pattern)
    await store.close()
    assert queue is not None
    assert sorted((info.id, info.attempts) for info in done) == [(name, 1) for name in names]
    assert queue.appended == len(names), "a task that waits was told of again"


async def swept(store: TaskStore) -> datetime:
    """One run of stuck_jobs as the settings build it, without its engine; when it looked."""
    sweep = StuckJobs(store.jobs, heartbeat_timeout=timedelta(0), retries={TYPE: RETRIES})
    await store.jobs.strays.scan(None, 100, heartbeat_timeout=SHORT, dry=False)
    page = await sweep.find(None, 100)
    await sweep.apply([each for info in page if isinstance(each := sweep.decide(info, page.at), Action)])
    return page.at
