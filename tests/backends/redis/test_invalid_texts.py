"""Any bytes that another program wrote over a text of ours on Redis cost the job, group or name that the text belongs
to. Claims, heartbeats, settlements, rescues, sweeps, listings, counts and fsck go on with everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from backends.redis.scene import EVERY, GARBAGE, HOUR, KINDS, MEMBERS, Scene
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, fresh
from conformance.stores import Store
from wrasse.errors import StoreBroken
from wrasse.ports.jobs import Cancel, Complete, Delete, Job, JobFilter, JobGroup, JobState, Progress, Rate, RequeueDead
from wrasse.ports.outcome import Outcome

# Which field of which hash, and the jobs that it may cost.
TEXTS: dict[str, tuple[Callable[[Scene], tuple[str, str]], tuple[str, ...]]] = {
    "hold": (lambda scene: (scene.keys.holds, scene.claim_key_of("held-1")), ("held-1",)),
    "done": (lambda scene: (scene.keys.finished, "done-1"), ("done-1",)),
    "kept": (lambda scene: (scene.keys.finished, "kept"), ("kept",)),
    "dead": (lambda scene: (scene.keys.finished, "dead-1"), ("dead-1",)),
    "way to a running job": (lambda scene: (scene.keys.where, "held-1"), ("held-1",)),
    "way to a done job": (lambda scene: (scene.keys.where, "done-1"), ("done-1",)),
    "given id": (lambda scene: (scene.keys.ids, "given"), ()),
    "lasting id": (lambda scene: (scene.keys.ids, "done-1"), ()),
    "unique name": (lambda scene: (scene.keys.uniques, "name-2"), ()),
    "unique name of a running job": (lambda scene: (scene.keys.uniques, "name-1"), ()),
    "unique name with a window": (lambda scene: (scene.keys.uniques, "name-3"), ()),
    "size of a group": (lambda scene: (scene.keys.groups, "s:g1"), ()),
    "done of a group": (lambda scene: (scene.keys.groups, "d:g1"), ()),
    "dead of a group": (lambda scene: (scene.keys.groups, "x:g1"), ()),
    "callback of a group": (lambda scene: (scene.keys.groups, "c:g1"), ()),
    "mark of a fired group": (lambda scene: (scene.keys.groups, "f:g1"), ()),
    "number of running jobs": (lambda scene: (scene.keys.counts, "held:low"), ()),
    "number of done jobs": (lambda scene: (scene.keys.counts, "done:low"), ()),
    "number of dead jobs": (lambda scene: (scene.keys.counts, "dead:low"), ()),
    "progress": (lambda scene: (scene.keys.progress, "held-1"), ()),
    "worker": (lambda scene: (scene.keys.workers_info, "w1"), ()),
}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = Store("redis", tmp_path)
    await store.open()
    made = Scene(store)
    await made.set_up()
    yield made
    await store.close()


async def _overwrite(scene: Scene, key: str, field: str, kind: str) -> None:
    if key == scene.keys.finished:
        field = (await scene.do("HGET", scene.keys.where, field)).decode()
    stored = await scene.do("HGET", key, field)
    await scene.do("HSET", key, field, GARBAGE[kind](stored or b"1 2 3"))


async def _works_on(scene: Scene, spared: set[str]) -> None:
    """Everything that can be asked of the queue, about every job but these."""
    client, jobs = scene.jobs_client, scene.jobs_client.jobs
    claims = [claim for id, claim in scene.holds.items() if id not in spared]
    # Reads.
    for state in JobState:
        await client.ids(state)
        await client.ids(state, newest=True, limit=1)
        await client.ids(state, JobFilter(queue="low"))
    for id in EVERY:
        found = await jobs.get(id)
        assert id in spared or found is not None, id
    await jobs.counts()
    await scene.redis.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    await scene.redis.examine()
    # Enqueue, with every kind of record beside the job.
    fresh_jobs = [Job("new-1"), Job("new-2", unique="name-9"), Job("new-3", lasting=True), Job("new-4", group="g9")]
    put = await jobs.enqueue(fresh_jobs, request=fresh(), groups=[JobGroup("g9", 1, Job("back-9"))])
    assert [each.new for each in put] == [True] * 4
    for again in (Job("given"), Job("done-1", lasting=True), Job("again-1", unique="name-1")):
        await client.enqueue(again)
    for number, name in enumerate(("name-2", "name-3")):
        await client.enqueue(Job(f"again-{number + 2}", unique=name))
    # Heartbeats and settlements.
    told = {claim.id: Progress(0.7, "more") for claim in scene.holds.values()}
    mine = await jobs.heartbeat(
        client.worker, [*scene.holds.values()], heartbeat_timeout=HEARTBEAT_TIMEOUT, progress=told
    )
    assert len(mine.mine) == len(scene.holds)
    assert await client.heartbeat(*claims, heartbeat_timeout=HEARTBEAT_TIMEOUT) == [True] * len(claims)
    claimed = await jobs.claim(
        ("low",), 100, worker="w1", heartbeat_timeout=HOUR, request=fresh(), rates=[Rate("low", 1000, HOUR)]
    )
    ready = {each.job.id: each.claim for each in claimed.jobs}
    assert {*MEMBERS, "new-1", "new-2", "new-3", "new-4", "waiting"} <= {*ready}
    assert await client.complete(ready["new-1"], ready["new-4"], *(ready[id] for id in MEMBERS)) == [Outcome.DONE] * 5
    assert await client.fail(ready["new-2"]) == [Outcome.DONE]
    assert await client.dead_letter(ready["new-3"]) == [Outcome.DONE]
    assert await client.state("back-9") is JobState.READY, "the callback of another group"
    # Rescues: what was held, and is silent now.
    scene.clock.advance(LONGER)
    overdue = await jobs.overdue(None, 10)
    assert {claim.id for claim in claims} <= {info.id for info in overdue}
    outcomes = dict(zip([s.id for s in overdue], [(await client.rescue(s.claim))[0] for s in overdue], strict=True))
    assert {outcomes[claim.id] for claim in claims} <= {Outcome.DONE}
    await scene.redis.strays.scan(None, 100, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    # Cancels, revivals, deletes.
    await client.move(*[Cancel(id, "enough") for id in EVERY])
    for info in await jobs.page(JobState.DEAD, JobFilter(), None, 1):
        await client.move(RequeueDead(info.claim))
    for state in (JobState.DONE, JobState.DEAD, JobState.READY):
        states = [*await jobs.page(state, JobFilter(), None, 100)]
        await jobs.delete([Delete(state.claim, state) for state in states])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", TEXTS)
async def test_any_bytes_in_a_text_cost_what_it_belongs_to(scene: Scene, what: str, kind: str) -> None:
    where, costs = TEXTS[what]
    await _overwrite(scene, *where(scene), kind)
    await _works_on(scene, {*costs})
    scene.clock.advance(HOUR)
    await scene.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert await scene.check() == [], "fsck repairs what it finds"


@pytest.mark.parametrize("kind", KINDS)
async def test_any_bytes_among_the_entries_of_a_key_cost_that_entry(scene: Scene, kind: str) -> None:
    text, low = GARBAGE[kind](b"1 2 3"), scene.keys.queue("low")
    for key in (scene.keys.strangers, scene.keys.workers, low.delayed):
        await scene.do("ZADD", key, 1, text)
    for key in (low.rate, low.list, scene.keys.dead_letter, scene.keys.completed, scene.keys.processing("w9")):
        await scene.do("LPUSH", key, text)
    for key in (scene.keys.held, scene.keys.done, scene.keys.dead):
        await scene.do("ZADD", key, 1, text)
    await scene.do("SADD", scene.keys.queues, text)
    await scene.do("SET", scene.keys.heartbeat("w8"), text)
    await _works_on(scene, set())
    scene.clock.advance(HOUR)
    await scene.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert await scene.check() == [], "fsck repairs what it finds"


@pytest.mark.parametrize("kind", KINDS)
async def test_any_bytes_for_the_cursor_of_strays_begin_the_scan_anew(scene: Scene, kind: str) -> None:
    await scene.do("SET", scene.keys.strays, GARBAGE[kind](b"1 2 3"))
    await scene.redis.strays.scan(None, 1_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
    assert (await scene.do("GET", scene.keys.strays)).isdigit()


@pytest.mark.parametrize("kind", KINDS)
async def test_any_bytes_for_a_remembered_answer_cost_that_request(scene: Scene, kind: str) -> None:
    client = scene.jobs_client
    for letter in "tps":
        for key in scene.keys.requests:
            await scene.do("HSET", key, f"{letter}asked", GARBAGE[kind](b"1 2 3"))
    asked = (
        lambda: client.jobs.enqueue([Job("new")], request="asked"),
        lambda: client.jobs.claim(("low",), 1, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="asked"),
        lambda: client.jobs.settle([Complete(scene.holds["held-1"])], request="asked"),
    )
    for ask in asked:
        with suppress(StoreBroken):
            await ask()
    await _works_on(scene, {"held-1"})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cut"])  # a cut one is still a number
async def test_any_bytes_for_the_counter_of_tokens_change_nothing_and_are_named(scene: Scene, kind: str) -> None:
    await scene.do("SET", scene.keys.token, GARBAGE[kind](b"12 13"))
    with pytest.raises(StoreBroken, match="a counter of ours that is not a number") as failed:
        await scene.jobs_client.claim()
    assert "wrasse jobs fsck --repair" in failed.value.do
    await scene.do("DEL", scene.keys.token)
    await scene.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert await scene.check() == []
    assert await scene.missing() == set()
