"""Listings of waiting jobs on Redis during pushes and claims, and jobs found by id in long queues."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.redis.interleaved import InterleavedClient
from backends.redis.peer import GoPeer, go_job
from conformance.queue_client import HEARTBEAT_TIMEOUT, QueueClient
from conformance.stores import Store
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.jobs import pages
from wrasse.backends.redis.jobs.changes import delete, move
from wrasse.backends.redis.jobs.job_listing import record
from wrasse.errors import UsageError
from wrasse.ports.jobs import Cancel, Delete, Job, JobFilter, JobState, Reason
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

ALL = JobFilter()


class Hall:
    """A queue, and another program on the same Redis."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.backend, Redis)
        self.store, self.jobs_client, self.peer = store, QueueClient(store.jobs), GoPeer(store.backend.client)

    async def page(self, after: str | None = None, limit: int = 3, *, newest: bool = False) -> Page:
        return await self.store.jobs.page(JobState.READY, ALL, after, limit, newest=newest)

    async def rest(self, after: str | None, *, newest: bool = False) -> list[str]:
        return [state.id for state in await self.page(after, 1_000, newest=newest)]


@pytest.fixture
async def hall(tmp_path: Path) -> AsyncIterator[Hall]:
    store = Store("redis", tmp_path)
    await store.open()
    yield Hall(store)
    await store.close()


async def test_a_listing_goes_on_behind_what_it_showed_while_jobs_are_taken(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*"abcdefgh")
    first = await hall.page()
    await hall.jobs_client.claim(limit=2)
    assert await hall.rest(first.cursor) == ["d", "e", "f", "g", "h"]


async def test_a_listing_goes_on_with_what_is_served_next_when_all_it_showed_was_taken(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*"abcdefgh")
    first = await hall.page()
    await hall.jobs_client.claim(limit=5)
    assert await hall.rest(first.cursor) == ["f", "g", "h"]


async def test_a_listing_goes_on_while_jobs_are_put(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*"abcdef")
    forwards, backwards = await hall.page(), await hall.page(newest=True)
    await hall.jobs_client.enqueue("g", "h")
    assert await hall.rest(forwards.cursor) == ["d", "e", "f", "g", "h"]
    assert await hall.rest(backwards.cursor, newest=True) == ["c", "b", "a"]


async def test_a_listing_goes_on_after_what_it_showed_last_was_deleted(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*"abcdef")
    first = await hall.page()
    await hall.store.jobs.delete([Delete(state.claim, JobState.READY) for state in first])
    assert await hall.rest(first.cursor) == ["d", "e", "f"]


async def test_a_listing_shows_nothing_twice_when_only_the_last_it_showed_was_deleted(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*"abcdef")
    first = await hall.page()
    await hall.store.jobs.delete([Delete(first.items[-1].claim, JobState.READY)])
    assert await hall.rest(first.cursor) == ["d", "e", "f"]


async def test_a_cancel_follows_a_job_that_is_taken_meanwhile(hall: Hall) -> None:
    await hall.jobs_client.enqueue("a")
    between = InterleavedClient(hall.peer.client, "move", hall.jobs_client.claim_one)
    outcomes = await move(between, hall.peer.keys, [Cancel("a")])
    assert (between.happened, outcomes, await hall.jobs_client.state("a")) == (True, (Outcome.DONE,), JobState.DEAD)


async def test_a_job_that_is_taken_while_it_is_looked_for_is_found(hall: Hall) -> None:
    await hall.jobs_client.enqueue("a")
    between = InterleavedClient(hall.peer.client, "find", hall.jobs_client.claim_one)
    found = await record(between, hall.peer.keys, "a")
    assert found is not None
    assert (between.happened, found.info.state) == (True, JobState.RUNNING)


async def test_a_listing_goes_on_after_a_job_was_given_back(hall: Hall) -> None:
    (claim,) = [await hall.jobs_client.claimed("z")]
    await hall.jobs_client.enqueue(*"abcdef")
    first = await hall.page()
    await hall.jobs_client.fail(claim)
    assert await hall.rest(first.cursor) == ["d", "e", "f"]


async def test_a_job_that_another_program_pushed_is_listed(hall: Hall) -> None:
    await hall.jobs_client.enqueue("a")
    await hall.peer.push(go_job("theirs"))
    assert await hall.rest(None) == ["a", "theirs"]


async def test_what_is_no_job_is_listed_with_its_reason(hall: Hall) -> None:
    await hall.jobs_client.enqueue("a")
    await hall.peer.push(b"no job")
    await hall.jobs_client.enqueue("b")
    page = await hall.store.jobs.page(JobState.READY, ALL, None, 10)
    assert [each.reason for each in page] == [None, Reason.INVALID_PAYLOAD, None]
    assert "JSON" in page.items[1].error


async def test_queues_are_listed_one_after_another_each_in_its_order(hall: Hall) -> None:
    jobs = [Job(f"{queue}{n}", queue=queue) for n in range(3) for queue in ("slow", "fast")]
    await hall.jobs_client.enqueue(*jobs, Job("later", queue="fast", delay=HEARTBEAT_TIMEOUT))
    found = await hall.jobs_client.ids(JobState.READY)
    assert found == ["fast0", "fast1", "fast2", "slow0", "slow1", "slow2", "later"]
    assert await hall.jobs_client.ids(JobState.READY, newest=True) == found[::-1]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "served:1:2", "dead:1:1-a", "delayed:x:y:z:low", "served:1.5:a:b:low", f"served:{10**20}:a:b:low"],
)
async def test_a_cursor_of_something_else_is_refused(hall: Hall, cursor: str) -> None:
    await hall.jobs_client.enqueue("a")
    with pytest.raises(UsageError):
        await hall.page(cursor)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.DONE])
async def test_a_cursor_of_another_place_is_refused(hall: Hall, state: JobState) -> None:
    with pytest.raises(UsageError):
        await hall.store.jobs.page(state, ALL, "dead:1:1-a", 10)


async def test_a_waiting_job_is_found_wherever_it_stands(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ENTRIES_MAX", 10)
    jobs = [Job(f"job-{n}", minted=True) for n in range(95)]
    await hall.jobs_client.enqueue(*jobs, *(Job(f"later-{n}", minted=True, delay=HEARTBEAT_TIMEOUT) for n in range(35)))
    wanted = ["job-0", "job-47", "job-94", "later-0", "later-20", "later-34"]
    found = [await hall.jobs_client.state(id) for id in wanted]
    outcomes = await hall.jobs_client.move(*map(Cancel, [*wanted, "job-95"]))
    assert (found, outcomes) == ([JobState.READY] * 6, [Outcome.DONE] * 6 + [Outcome.CONFLICT])
    count = await hall.jobs_client.count()
    assert (count.ready, count.scheduled, count.dead) == (92, 32, 6)


@pytest.mark.parametrize("id", ['say "hi"', "back\\slash", "a&b<c>d", "zwölf", "%d.*[x]", "\U0001f41f"])
@pytest.mark.parametrize("spelled", ["ours", "ascii", "go", "elsewhere"])
async def test_a_waiting_job_is_found_however_its_id_is_spelled(hall: Hall, id: str, spelled: str) -> None:
    await hall.jobs_client.enqueue("known")
    text = json.dumps(id, ensure_ascii=spelled == "ascii")
    if spelled == "go":
        text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    raw = '{"headers":{"id":"other"}, "id" : %s}' if spelled == "elsewhere" else '{"id":%s}'
    await hall.jobs_client.enqueue(id) if spelled == "ours" else await hall.peer.push((raw % text).encode())
    outcomes = await hall.jobs_client.move(Cancel(id))
    assert (outcomes, await hall.jobs_client.state(id)) == ([Outcome.DONE], JobState.DEAD)


async def test_a_listing_of_large_jobs_is_complete_though_it_is_read_in_small_parts(hall: Hall) -> None:
    ids = [f"large-{n:03}" for n in range(230)]
    for start in range(0, len(ids), 10):
        await hall.jobs_client.enqueue(*(Job(id, payload=b"x" * 30_000) for id in ids[start : start + 10]))
    ready = await hall.rest(None)
    claims = [claimed.claim for _ in range(50) for claimed in await hall.jobs_client.claim(limit=10)]
    held = [info.id for info in await hall.store.jobs.page(JobState.RUNNING, ALL, None, 1_000)]
    for start in range(0, len(claims), 10):
        await hall.jobs_client.complete(*claims[start : start + 10])
    done = [info.id for info in await hall.store.jobs.page(JobState.DONE, ALL, None, 1_000)]
    assert (ready, sorted(held), sorted(done)) == (ids, ids, ids)


async def test_jobs_deleted_out_of_the_middle_leave_the_others_in_their_order(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*(f"job-{n:02}" for n in range(40)))
    states = (await hall.page(None, 100)).items
    outcomes = await hall.store.jobs.delete([Delete(state.claim, JobState.READY) for state in states[1::3]])
    assert (set(outcomes), len(outcomes)) == ({Outcome.DONE}, 13)
    assert await hall.rest(None) == [state.id for n, state in enumerate(states) if n % 3 != 1]
    assert (await hall.jobs_client.count()).ready == 27


async def test_jobs_that_moved_up_between_look_and_delete_are_deleted_all_the_same(hall: Hall) -> None:
    await hall.jobs_client.enqueue(*"abcdef")
    states = (await hall.page(None, 100)).items
    between = InterleavedClient(hall.peer.client, "delete", lambda: hall.jobs_client.claim(limit=2))
    wanted = [Delete(state.claim, JobState.READY) for state in states[1::2]]
    outcomes = await delete(between, hall.peer.keys, wanted, HEARTBEAT_TIMEOUT)
    assert (between.happened, outcomes) == (True, (Outcome.CONFLICT, Outcome.DONE, Outcome.DONE))
    assert await hall.rest(None) == ["c", "e"]
