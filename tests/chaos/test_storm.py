"""Jobs on a Redis that writes every command to disk, through a storm: none is lost, finished twice, or stuck."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.storm import Weather, storm_over
from chaos.storm_laws import check_all
from processes.kill_scene import open_kill_scene
from servers.valkey import Valkey, valkey

HEARTBEAT_TIMEOUT = 1.5
STORMS_MAX = 5  # until a planted fault shows


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey(durable=True) as made:
        yield made


async def weathered(folder: Path, server: Valkey, weather: Weather, rounds: int, jobs_min: int = 0) -> str:
    """A storm of so many rounds, and on until there were enough jobs; then calm, and the laws. Says what it came to."""
    seed = random.getrandbits(32)  # from the seed of the run
    async with (
        open_kill_scene(folder, HEARTBEAT_TIMEOUT, server.url) as scene,
        storm_over(scene, server, weather, random.Random(seed)) as storm,
    ):
        await storm.pass_over(rounds, jobs_min)
        ending = await check_all(scene, server.port)
        return (
            f"seed {seed}: {storm.blows} blows, {storm.restarts} of them at the server, {len(ending.done)} jobs done, "
            f"{len(ending.dead)} dead, {ending.again} handlers started again, {ending.twice} side effects ran twice"
        )


@pytest.mark.timeout(360)
async def test_a_storm_loses_no_job_finishes_none_twice_and_leaves_none_stuck(tmp_path: Path, server: Valkey) -> None:
    print(await weathered(tmp_path, server, Weather(), rounds=40))
    assert server.pid


@pytest.mark.full
@pytest.mark.timeout(3_000)
async def test_a_storm_over_fifty_thousand_jobs_loses_none_and_finishes_none_twice(
    tmp_path: Path, server: Valkey
) -> None:
    weather = Weather(restart_every=50, pause=0.02, most=100)
    print(await weathered(tmp_path, server, weather, rounds=200, jobs_min=50_000))
    assert server.pid


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("planted", "blow", "aim", "law"),
    [
        ("finish_without_hold", "freeze", "worker", "there twice|finished by the wrong one|completed list is wrong"),
        ("rescue_without_removal", "kill", "worker", "there twice|a worker's list is left"),
        ("put_without_request", "deaf", "producer", "there twice"),
    ],
)
async def test_a_precaution_taken_away_is_noticed(tmp_path: Path, planted: str, blow: str, aim: str, law: str) -> None:
    weather = Weather(2, 1, 1, (blow,), restart_every=1_000, planted=planted, poison=False, aim=(aim,))
    with pytest.raises(AssertionError, match=law):
        await one_storm_after_another(tmp_path, weather)


async def one_storm_after_another(folder: Path, weather: Weather) -> None:
    """A blow has to fall between a command and its reply, which not every storm brings."""
    for number in range(STORMS_MAX):
        (own := folder / str(number)).mkdir()
        with valkey(durable=True) as server:
            await weathered(own, server, weather, rounds=8)
