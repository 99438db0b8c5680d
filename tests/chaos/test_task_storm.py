"""Tasks through a storm, on Redis and on NATS: none is lost, ends twice, fails without having run, or is stuck, and
no queue entry is trimmed that somebody still needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from app.kill_yard import yard_on
from chaos.storm import Weather, storm_over
from chaos.task_laws import check_tasks
from chaos.task_scene import open_task_store, tasks_at
from servers.nats import Nats, nats
from servers.valkey import Valkey, valkey

SILENCE = 1.5
ACTOR = Path(__file__).with_name("task_storm_actor.py")
MILD = Weather(workers=3, producers=1, restart_every=12, pause=0.1, most=6, actor=ACTOR, look=0.2)
SERVERS: dict[str, Callable[[], AbstractContextManager[Valkey | Nats]]] = {
    "redis": lambda: valkey(durable=True),
    "nats": nats,
}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Valkey | Nats]:
    with SERVERS[request.param]() as made:
        yield made


async def weathered(
    folder: Path, server: Valkey | Nats, weather: Weather, rounds: int, jobs_min: int = 0
) -> str:
    """A storm of so many rounds over tasks, then calm, and the laws. Says what it came to."""
    seed = random.randrange(1 << 32)
    url = tasks_at(server.url, folder, SILENCE)
    store = await open_task_store(url)
    async with (
        yard_on(folder, SILENCE, url, store) as yard,
        storm_over(yard, server, weather, random.Random(seed)) as storm,
    ):
        await storm.pass_over(rounds, jobs_min)
        ending, told_again = await check_tasks(yard, store)
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
    print(await weathered(tmp_path, server, MILD, rounds=25))
    assert server.pid


@pytest.mark.full
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("server", SERVERS, indirect=True)
async def test_a_long_storm_loses_no_task_and_ends_none_twice(tmp_path: Path, server: Valkey | Nats) -> None:
    weather = replace(MILD, workers=6, producers=2, restart_every=40, most=20, look=1.0)
    print(await weathered(tmp_path, server, weather, rounds=300, jobs_min=3_000))
    assert server.pid
