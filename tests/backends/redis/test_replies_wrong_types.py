"""A key of ours with another type of value stops what it belongs to. Everything else continues, no job is lost, and
the key is named with what it holds and what it should hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from backends.redis.scene import HOUR, Scene
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, fresh
from conformance.stores import Store
from wrasse.backends.redis.keys import RedisKeys
from wrasse.errors import StoreBroken
from wrasse.ports.backend import FAIL
from wrasse.ports.jobs import Budget, Complete, DeadLetterJob, Job, JobFilter, JobState, Rate, Reason, Requeue
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.stuck_jobs import StuckJobs

WRITES: dict[str, tuple[str | int, ...]] = {
    "string": ("SET", "KEY", "not ours"),
    "hash": ("HSET", "KEY", "field", "not ours"),
    "set": ("SADD", "KEY", "not ours"),
    "list": ("RPUSH", "KEY", "not ours"),
    "zset": ("ZADD", "KEY", 1, "not ours"),
    "stream": ("XADD", "KEY", "*", "field", "not ours"),
}
OF_QUEUE: dict[str, tuple[Callable[[RedisKeys], str], str]] = {
    "list": (lambda keys: keys.queue("bad").list, "list"),
    "delayed": (lambda keys: keys.queue("bad").delayed, "zset"),
    "wake": (lambda keys: keys.queue("bad").wake, "list"),
    "rate": (lambda keys: keys.queue("bad").rate, "list"),
}
SHARED = {
    "token": "string", "ids": "hash", "ids_expiry": "zset", "uniques": "hash", "uniques_expiry": "zset",
    "groups": "hash", "groups_expiry": "zset", "where": "hash", "queues": "set", "held": "zset", "holds": "hash",
    "done": "zset", "dead": "zset", "finished": "hash", "counts": "hash", "completed": "list", "dead_letter": "list",
    "progress": "hash", "workers": "zset", "workers_info": "hash", "strangers": "zset",
}  # fmt: skip
SPARED = ("counts", "completed", "progress", "workers", "workers_info", "strangers")


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Scene]:
    store = Store("redis", tmp_path)
    await store.open()
    yield Scene(store)
    await store.close()


async def _spoil(scene: Scene, key: str, kind: str) -> None:
    """Puts another program's value at the key; what was there stays aside under another name."""
    if await scene.do("EXISTS", key):
        await scene.do("RENAME", key, f"aside:{key}")
    await scene.do(*(key if word == "KEY" else word for word in WRITES[kind]))


async def _restore(scene: Scene, key: str) -> None:
    await scene.do("DEL", key)
    if await scene.do("EXISTS", f"aside:{key}"):
        await scene.do("RENAME", f"aside:{key}", key)


async def _named(scene: Scene) -> str:
    damages = await scene.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    return " ".join(name for each in damages if each.kind == "wrong_type" for name in each.names)


@pytest.mark.parametrize(
    ("part", "kind"), [(part, kind) for part, (_, right) in OF_QUEUE.items() for kind in WRITES if kind != right]
)
async def test_a_key_of_one_queue_costs_that_queue(bare: Scene, part: str, kind: str) -> None:
    client, (key_of, _) = bare.jobs_client, OF_QUEUE[part]
    key = key_of(bare.keys)
    await client.enqueue(
        Job("stays", queue="bad", delay=HOUR), Job("held", queue="bad"), Job("late", delay=HOUR), "one"
    )
    (held,) = await client.claim(queues=("bad",), heartbeat_timeout=HEARTBEAT_TIMEOUT)
    await _spoil(bare, key, kind)
    rates = [Rate("bad", 5, HOUR)]
    claimed = await bare.redis.jobs.claim(
        ("bad", "low"), 10, worker="w2", heartbeat_timeout=HOUR, request=fresh(), rates=rates
    )
    assert [each.job.id for each in claimed.jobs] == ["one"]
    assert await client.complete(claimed.jobs[0].claim) == [Outcome.DONE]
    await client.enqueue("two")
    assert {"two", "late"} <= set(await client.ids(JobState.READY))
    counts = await client.jobs.counts()
    assert any(key in each and "holds a" in each for each in counts.unreadable)
    assert (await client.count("low")).ready == 1
    assert key in await _named(bare)
    assert [each for each in await bare.redis.examine() if each.state == FAIL and key in each.what]
    # The rescue into the queue waits until its key is right again; nothing is lost.
    bare.clock.advance(LONGER)
    (found,) = (await client.jobs.overdue(None, 10)).items
    outcome = await client.rescue(found.claim)
    await _restore(bare, key)
    if outcome == [Outcome.CONFLICT]:
        assert await client.rescue(found.claim) == [Outcome.DONE]
    assert await client.state("held") is JobState.READY
    assert await client.state("stays") is JobState.READY
    assert held.job.id == "held"


@pytest.mark.parametrize("kind", [kind for kind in WRITES if kind != "list"])
async def test_what_asks_for_the_bad_queue_is_told_the_key(bare: Scene, kind: str) -> None:
    key = bare.keys.queue("bad").list
    await _spoil(bare, key, kind)
    said = rf"the key {key} holds a {'sorted set' if kind == 'zset' else kind} instead of a list"
    for job in (Job("made", minted=True, queue="bad"), Job("given", queue="bad")):
        with pytest.raises(StoreBroken, match=said) as failed:
            await bare.jobs_client.enqueue(job, Job("other"))
        assert "RENAME" in failed.value.do
    with pytest.raises(StoreBroken, match=said):
        await bare.jobs_client.ids(JobState.READY, JobFilter(queue="bad"))
    assert await bare.jobs_client.ids(JobState.READY) == []  # an enqueue is whole or nothing


@pytest.mark.parametrize("ending", ["finish", "fail", "bury"])
@pytest.mark.parametrize("which", ["queue", "processing", "dead_letter", "completed"])
async def test_no_job_is_lost_when_its_way_is_of_a_wrong_type(bare: Scene, which: str, ending: str) -> None:
    keys = {
        "queue": bare.keys.queue("low").list, "processing": bare.keys.processing("w1"),
        "dead_letter": bare.keys.dead_letter, "completed": bare.keys.completed,
    }  # fmt: skip
    claim = await bare.jobs_client.claimed("one")
    await _spoil(bare, keys[which], "string")
    ends = {
        "finish": Complete(claim), "bury": DeadLetterJob(claim, Reason.FAILED, error="it broke"),
        "fail": Requeue(claim, Budget.FAILURES, Reason.FAILED, error="it broke"),
    }  # fmt: skip
    (outcome,) = await bare.jobs_client.settle(ends[ending])
    assert await bare.jobs_client.state("one") is not None
    await _restore(bare, keys[which])
    if outcome is Outcome.CONFLICT:
        assert await bare.jobs_client.settle(ends[ending]) == [Outcome.DONE]
    assert await bare.check() == []


@pytest.mark.parametrize("which", ["processing", "heartbeat"])
async def test_a_bad_key_of_one_worker_costs_that_worker(bare: Scene, which: str) -> None:
    key = getattr(bare.keys, which)("w9")
    await _spoil(bare, key, "hash")
    await bare.jobs_client.claimed("one")
    await bare.jobs_client.enqueue("two")
    assert key in await _named(bare)
    bare.clock.advance(LONGER)
    await bare.do("DEL", bare.keys.heartbeat("w1"))
    await bare.redis.strays.scan(None, 100, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    sweep = StuckJobs(bare.redis.jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert [info.id for info in (await sweep.find(None, 10)).items] == ["one"]
    if which == "processing":
        with pytest.raises(StoreBroken, match=key):
            await bare.redis.jobs.claim(("low",), 1, worker="w9", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh())
    assert set(await bare.jobs_client.ids(JobState.READY)) == {"two"}


@pytest.mark.parametrize(("name", "right"), SHARED.items())
async def test_a_bad_key_that_all_share_is_named_and_loses_nothing(bare: Scene, name: str, right: str) -> None:
    await bare.set_up()
    key = getattr(bare.keys, name)
    await _spoil(bare, key, "stream")
    client, failures = bare.jobs_client, []
    steps = (
        lambda: client.enqueue(Job("new", unique="n"), "plain"),
        lambda: client.claim(limit=2),
        lambda: client.heartbeat(*bare.holds.values(), heartbeat_timeout=HOUR),
        lambda: client.complete(bare.holds["held-1"]),
        lambda: client.jobs.overdue(None, 10),
        lambda: bare.redis.strays.scan(None, 100, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False),
        lambda: client.jobs.get("waiting"),
        lambda: client.ids(JobState.READY),
    )
    for step in steps:
        try:
            await step()
        except StoreBroken as broken:
            failures.append(broken.message)
    assert all(f"the key {key} holds a stream instead of a" in each for each in failures), failures
    assert name not in SPARED or not failures
    assert any(key in each for each in (await client.jobs.counts()).unreadable)
    assert key in await _named(bare)
    await _restore(bare, key)
    assert await bare.missing() == set()
