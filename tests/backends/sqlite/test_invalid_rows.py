"""A row of the database that something else changed costs that job: its neighbours are claimed, listed and counted."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path

import apsw
import pytest

from conformance.queue_client import QueueClient
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.engine.run import RunContext, run_once
from wrasse.ids import Ids
from wrasse.ports.jobs import Cancel, Claim, Complete, Delete, Job, JobFilter, JobState, Reason, WorkerInfo
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.stuck_jobs import StuckJobs

HEARTBEAT_TIMEOUT = timedelta(seconds=30)
FAR, BEFORE = (1 << 63) - 1, -(1 << 63)
NO_TEXT = "CAST(x'61ff' AS TEXT)"
# What makes a row one that cannot be run as a job.
BODIES = [
    "headers = '{'", "headers = '[1]'", "headers = '{\"a\": 1}'", f"headers = {NO_TEXT}", f"headers = '{'[' * 5000}'",
    f"created_at = {FAR}", f"created_at = {BEFORE}", f"not_before = {FAR}", f"delay = {FAR}", f"timeout = {BEFORE}",
    "payload = NULL", f"kind = {NO_TEXT}", f"priority = {NO_TEXT}", "extras = '{'", "extras = '[]'",
    "member = 1, extras = '{'", f"deadline = {FAR}, created_at = {FAR}",
]  # fmt: skip
# What a listing cannot show as it is.
STATES = [
    "reason = 'nonsense'", f"error = {NO_TEXT}", f"worker = {NO_TEXT}", f"created_at = {FAR}", f"claimed_at = {BEFORE}",
    f"heartbeat_at = {FAR}", f"finished_at = {FAR}", f"kind = {NO_TEXT}",
]  # fmt: skip
# Odd, and a job all the same.
ODD = [f"attempts = {FAR}", f"size = {FAR}", f"size = {BEFORE}", "attempts = -5", f"ready_at = {FAR}", "lasting = 7"]


class Scene:
    """A database, and another program that writes into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.requests = count()

    async def open(self, *ids: str) -> Sqlite:
        self.store = await Sqlite.open(self.path, self.clock)
        await self.store.jobs.enqueue([Job(id, payload=id.encode()) for id in ids], request="put")
        return self.store

    def damage(self, id: str, how: str) -> None:
        self.write(f"UPDATE jobs SET {how} WHERE id = '{id}'")

    def write(self, sql: str) -> None:
        with closing(apsw.Connection(str(self.path))) as db:
            db.execute(sql)
            assert db.changes() == 1

    async def take(self, limit: int = 10) -> list[str]:
        request = f"take {next(self.requests)}"
        claimed = await self.store.jobs.claim(
            ["low"], limit, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request
        )
        return [each.job.id for each in claimed.jobs]

    async def listed(self, state: JobState) -> dict[str, Reason | None]:
        found = {}
        after = None
        while True:
            page = await self.store.jobs.page(state, JobFilter(), after, 2)
            found |= {info.id: info.reason for info in page}
            if not page.more:
                return found
            after = page.cursors[-1]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "wrasse.db")


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("how", BODIES)
async def test_a_claim_goes_past_an_invalid_row_and_dead_letters_it(scene: Scene, how: str, limit: int) -> None:
    store = await scene.open("bad", "a", "worse", "b")
    scene.damage("bad", how)
    scene.damage("worse", how)
    await scene.listed(JobState.READY)
    assert await store.jobs.get("bad") is not None
    assert (await store.jobs.counts()).queues[0].ready == 4
    taken = await scene.take(limit) + await scene.take(limit)
    assert (taken, await scene.take()) == (["a", "b"], [])
    assert await scene.listed(JobState.DEAD) == {"bad": Reason.INVALID_PAYLOAD, "worse": Reason.INVALID_PAYLOAD}
    counted = (await store.jobs.counts()).queues[0]
    assert (counted.ready, counted.running, counted.dead) == (0, 2, 2)
    found = await store.jobs.get("bad")
    assert found is not None
    assert "of the table jobs is invalid" in found.info.error
    gone = Delete(Claim("bad", found.info.token, found.info.nonce), JobState.DEAD)
    await store.jobs.delete([gone])
    assert await scene.listed(JobState.DEAD) == {"worse": Reason.INVALID_PAYLOAD}
    await store.close()


@pytest.mark.parametrize("how", ODD)
async def test_a_row_with_odd_numbers_is_a_job(scene: Scene, how: str) -> None:
    store = await scene.open("a", "odd", "also", "b")
    scene.damage("odd", how)
    scene.damage("also", how)
    assert set(await scene.listed(JobState.READY)) == {"a", "odd", "also", "b"}
    await store.jobs.counts()
    taken = [id for _ in range(4) for id in await scene.take()]
    assert taken == ["a", "odd", "also", "b"]
    await store.close()


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING, JobState.DEAD])
@pytest.mark.parametrize("how", STATES)
async def test_a_listing_shows_an_invalid_row_as_invalid(scene: Scene, how: str, state: JobState) -> None:
    store = await scene.open("a", "bad", "c")
    if state is not JobState.READY:
        await scene.take()
    if state is JobState.DEAD:
        scene.clock.advance(timedelta(minutes=5))
        await run_once(StuckJobs(store.jobs, rescues_max=0), RunContext(store.journal, scene.clock, Ids(scene.clock)))
    scene.damage("bad", how)
    reason = Reason.WORKER_DIED if state is JobState.DEAD else None
    assert await scene.listed(state) == {"a": reason, "bad": Reason.INVALID_PAYLOAD, "c": reason}
    found = await store.jobs.get("bad")
    assert found is not None
    assert "of the table jobs is invalid" in found.info.error
    await store.jobs.counts()
    await store.close()


@pytest.mark.parametrize("how", [*STATES, *BODIES, f"deadline = {BEFORE}"])
async def test_stuck_jobs_go_past_an_invalid_row(scene: Scene, how: str) -> None:
    store = await scene.open("a", "bad", "c")
    await scene.take()
    scene.damage("bad", how)
    scene.clock.advance(timedelta(minutes=5))
    await run_once(StuckJobs(store.jobs), RunContext(store.journal, scene.clock, Ids(scene.clock)))
    assert {"a", "c"} <= set(await scene.listed(JobState.READY))
    assert {"a", "c"} <= set(await scene.take())
    await store.close()


async def test_a_place_that_is_none_is_shown_and_harms_nothing(scene: Scene) -> None:
    store = await scene.open("a", "bad", "c")
    scene.damage("bad", "state = 9")
    found = await store.jobs.get("bad")
    assert found is not None
    assert (found.info.state, found.info.reason) == (JobState.DEAD, Reason.INVALID_PAYLOAD)
    assert await scene.listed(JobState.READY) == {"a": None, "c": None}
    assert await scene.listed(JobState.DEAD) == {"bad": Reason.INVALID_PAYLOAD}
    assert await scene.take() == ["a", "c"]
    await store.close()


async def test_an_id_that_is_no_text_costs_its_job_only(scene: Scene) -> None:
    store = await scene.open("a", "bad", "c")
    scene.damage("bad", f"id = {NO_TEXT}")
    assert await scene.listed(JobState.READY) == {"a": None, "a\ufffd": Reason.INVALID_PAYLOAD, "c": None}
    assert await scene.take() == ["a", "c"]
    assert await scene.take() == []
    await store.close()


async def test_counts_go_past_instants_outside_of_the_calendar(scene: Scene) -> None:
    store = await scene.open("a")
    scene.damage("a", f"ready_at = {BEFORE}")
    await store.jobs.heartbeat(WorkerInfo("w", "host", 1, 1), [], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    scene.write(f"UPDATE workers SET deadline = {FAR}, heartbeat_at = {BEFORE}")
    counts = await store.jobs.counts()
    assert (counts.queues[0].ready, len(counts.workers)) == (1, 1)
    await store.close()


DAMAGE = {
    "queue": "queue = CAST(x'61ff' AS TEXT)",
    "worker": "worker = CAST(x'61ff' AS TEXT)",
    "nonce": "nonce = CAST(x'61ff' AS TEXT)",
    "id": "id = CAST(x'61ff' AS TEXT)",
    "group": "member = 1, extras = '{\"group\": 5}'",
}


@pytest.mark.parametrize("how", DAMAGE)
async def test_changes_of_other_jobs_go_past_an_invalid_row(tmp_path: Path, how: str) -> None:
    path, clock = tmp_path / "wrasse.db", ManualClock()
    store = await Sqlite.open(path, clock, done_max=2)
    jobs, client = store.jobs, QueueClient(store.jobs)

    def damage(id: str) -> None:
        with closing(apsw.Connection(str(path))) as db:
            db.execute(f"UPDATE jobs SET {DAMAGE[how]} WHERE id = ?", (id,))

    await client.enqueue("bad", "a", "b", "c", "d")
    claims = {claimed.job.id: claimed.claim for claimed in await client.claim()}
    damage("bad")
    assert (await client.heartbeat(*claims.values()))[1:] == [True] * 4
    ended = await client.settle(Complete(claims["a"], b"1"), Complete(claims["bad"], b"2"), Complete(claims["b"], b"3"))
    assert (ended[0], ended[2]) == (Outcome.DONE, Outcome.DONE)
    assert await client.complete(claims["c"]) == [Outcome.DONE], "done jobs beyond `done_max` go"
    outcomes = await client.move(Cancel("bad", "enough"), Cancel("d", "enough"))
    assert outcomes[1] is Outcome.DONE
    for state in (JobState.DONE, JobState.DEAD):
        infos = [*await jobs.page(state, JobFilter(), None, 10)]
        gone = await jobs.delete([Delete(info.claim, state) for info in infos])
        assert {end for end, info in zip(gone, infos, strict=True) if info.id in "abcd"} == {Outcome.DONE}

    await client.enqueue(Job("late", delay=timedelta(seconds=1)), Job("later", delay=timedelta(seconds=1)))
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"UPDATE jobs SET {DAMAGE[how].replace('61ff', '62ff')} WHERE id = 'late'")
    clock.advance(timedelta(seconds=2))
    await client.enqueue("e")
    assert {claimed.job.id for claimed in await client.claim()} >= {"later", "e"}
    await store.close()
