"""The worker on a real Redis, with what the lists show of it: priorities, retries, stops, the breaker."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from backends.redis.peer import go_job
from processes.daemons import running, until
from servers.valkey import Valkey, valkey
from wrasse import App
from wrasse.config.load import load
from wrasse.jobs.worker.running_job import RunningJob

HIGH, LOW, DEAD, COMPLETED = (
    "jobqueue:high_priority", "jobqueue:low_priority", "jobqueue:dead_letter", "jobqueue:completed"
)  # fmt: skip
HELD, BEATS = "jobqueue:worker:*:processing", "jobqueue:processing:worker:*"
WORK = """
import asyncio
async def brief(job):
    open("begun", "w").close()
    await asyncio.sleep(1.5)
async def long(job):
    await asyncio.sleep(600)
"""
Open = Callable[..., App]


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.fixture
def client(server: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as own:
        own.flushall()
        yield own


@pytest.fixture
def open_app(place: Path, server: Valkey, client: redis.Redis) -> Open:
    def open_one(**settings: str) -> App:
        given = {name.replace("__", "."): value for name, value in settings.items()}
        base = {"redis.addr": f"127.0.0.1:{server.port}", "worker.backoff.base": "1ms", "worker.backoff.max": "2ms"}
        return App(load(overrides={**base, **given}))

    return open_one


async def _until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not look():  # noqa: ASYNC110  # what is looked at is on a server
            await asyncio.sleep(0.005)


async def _work(app: App, look: Callable[[], bool]) -> None:
    """A worker until there is something to see."""
    async with app, asyncio.TaskGroup() as group:
        worker = app.worker(signals=False)
        working = group.create_task(worker.run())
        await _until(look)
        worker.stop("5s")
        await working


async def test_a_failing_job_runs_four_times_and_is_then_a_dead_letter_that_says_why(
    open_app: Open, client: redis.Redis
) -> None:
    app, runs = open_app(), 0

    @app.handler()
    async def fail(job: RunningJob) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("it broke")

    client.lpush(LOW, go_job("a"))
    await _work(app, lambda: client.llen(DEAD) == 1)
    (letter,) = map(json.loads, client.lrange(DEAD, 0, -1))
    assert (runs, letter["reason"], "it broke" in letter["error"]) == (4, "failed", True)


async def test_jobs_of_the_high_queue_run_before_those_of_the_low_one(open_app: Open, client: redis.Redis) -> None:
    app, ran = open_app(worker__count="1"), list[str]()

    @app.handler()
    async def note(job: RunningJob) -> None:
        ran.append(job.id)

    client.lpush(LOW, *(go_job(f"low-{n}") for n in range(20)))
    client.lpush(HIGH, *(go_job(f"high-{n}", priority="high") for n in range(20)))
    await _work(app, lambda: client.llen(COMPLETED) == 40)
    assert ran == [f"high-{n}" for n in range(20)] + [f"low-{n}" for n in range(20)]


async def test_with_weights_the_low_queue_gets_its_share_of_a_full_high_one(
    open_app: Open, client: redis.Redis
) -> None:
    app, ran = open_app(worker__count="1", worker__weights="{high: 3, low: 1}"), list[str]()

    @app.handler()
    async def note(job: RunningJob) -> None:
        ran.append(job.id)

    client.lpush(LOW, *(go_job(f"low-{n}") for n in range(100)))
    client.lpush(HIGH, *(go_job(f"high-{n}", priority="high") for n in range(100)))
    await _work(app, lambda: client.llen(COMPLETED) == 200)
    assert 5 <= sum(id.startswith("low") for id in ran[:100]) <= 60


async def test_a_handler_that_changes_its_job_leaves_no_entry_behind(open_app: Open, client: redis.Redis) -> None:
    app = open_app()

    @app.handler()
    async def meddle(job: RunningJob) -> None:
        job.data["filesize"] = 8

    client.lpush(LOW, go_job("a"))
    await _work(app, lambda: client.llen(COMPLETED) + client.llen(DEAD) == 1)
    assert client.lrange(COMPLETED, 0, -1) == [go_job("a")]
    assert ([*client.scan_iter(HELD)], [*client.scan_iter(BEATS)]) == ([], [])


async def test_during_a_backoff_the_slot_is_free_and_the_job_is_in_no_hands(
    open_app: Open, client: redis.Redis
) -> None:
    app = open_app(worker__count="1", worker__backoff__base="1h", worker__backoff__max="1h")

    @app.handler()
    async def fail_one(job: RunningJob) -> None:
        if job.id == "bad":
            raise ValueError("it broke")

    client.lpush(LOW, go_job("bad"), go_job("good"))
    await _work(app, lambda: client.llen(COMPLETED) == 1)
    assert ([*client.scan_iter(HELD)], client.zcard(f"{LOW}:delayed")) == ([], 1)


async def test_an_open_breaker_leaves_its_queue_as_it_is_and_the_other_goes_on(
    open_app: Open, client: redis.Redis
) -> None:
    app = open_app(
        worker__count="1", worker__max_retries="0", circuit_breaker__min_samples="4",
        circuit_breaker__cooldown_period="1h",
    )  # fmt: skip

    @app.handler()
    async def fail_high(job: RunningJob) -> None:
        if job.id.startswith("high"):
            raise ValueError("it broke")

    client.lpush(HIGH, *(go_job(f"high-{n}", priority="high") for n in range(30)))
    client.lpush(LOW, *(go_job(f"low-{n}") for n in range(30)))
    await _work(app, lambda: client.llen(COMPLETED) == 30)
    assert client.llen(HIGH) + client.llen(DEAD) == 30
    assert client.llen(DEAD) < 10


@pytest.fixture
def shop(place: Path, server: Valkey, client: redis.Redis) -> Path:
    (place / "shop.py").write_text(WORK)
    (place / "wrasse.yaml").write_text(f"redis:\n  addr: 127.0.0.1:{server.port}\n")
    client.lpush(LOW, go_job("a", retries=1))
    return place


def test_a_stop_lets_what_runs_finish_takes_nothing_new_and_ends_with_0(shop: Path, client: redis.Redis) -> None:
    with running(shop, "--role=worker", "--handler=shop:brief") as daemon:
        until((shop / "begun").exists, "the handler runs")  # what is held and not begun is given back
        daemon.signal(signal.SIGTERM)
        daemon.said("stopping")
        client.lpush(LOW, go_job("b"))
        assert daemon.end() == 0
    assert (client.llen(COMPLETED), client.lrange(LOW, 0, -1)) == (1, [go_job("b")])


def test_a_stop_puts_back_what_does_not_finish_with_its_retries_as_they_were(shop: Path, client: redis.Redis) -> None:
    with running(shop, "--role=worker", "--handler=shop:long", "--set=worker.grace=200ms") as daemon:
        until(lambda: [*client.scan_iter(HELD)] or None, "the job is held")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
    assert [json.loads(raw)["retries"] for raw in client.lrange(LOW, 0, -1)] == [1]
    assert ([*client.scan_iter(HELD)], [*client.scan_iter(BEATS)]) == ([], [])
