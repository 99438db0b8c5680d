"""Breakers in the views of a process: shown, told in /readyz when one stays open, and no metric of what is gone."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from unit.jobs.worker.scene import eventually
from unit.web.status_scene import HEARTBEAT_TIMEOUT, Shown
from wrasse.jobs.worker.breakers import SHUT_QUEUES, ShutQueues
from wrasse.jobs.worker.running_job import InFlightJob
from wrasse.observability.json_format import to_json
from wrasse.observability.metrics import exposition
from wrasse.ports.jobs import (
    Budget,
    Claim,
    ClaimedJob,
    Delete,
    Job,
    JobFilter,
    JobState,
    Reason,
    Requeue,
    WorkerInfo,
)
from wrasse.web.server import snapshot_json
from wrasse.web.snapshot import Check


@pytest.fixture
async def shown() -> Shown:
    return Shown()


def failed(shown: Shown, queue: str, times: int) -> None:
    """Jobs of a queue that fail in the worker of the process that is watched."""
    for number in range(times):
        job = ClaimedJob(
            Job("x", queue=queue), Claim("x", number, ""), 1, 0, 0, 0, shown.clock.now(), shown.clock.now()
        )
        work = InFlightJob(job, 0, 0.0, 1.0)
        assert shown.breakers.admit(work)
        shown.breakers.record_end(work, Requeue(job.claim, Budget.FAILURES, Reason.FAILED))


async def test_a_breaker_that_stays_open_too_long_makes_the_process_unready(shown: Shown) -> None:
    failed(shown, "low", 20)
    soon = await shown.refresh()
    shown.clock.advance(timedelta(seconds=30))
    failed(shown, "low", 1)
    shown.clock.advance(timedelta(seconds=29))
    assert [each.ok for each in soon.checks if each.name == "breakers"] == [True]
    for _ in range(3):
        shown.clock.advance(timedelta(seconds=30))
        failed(shown, "low", 1)
    late = await shown.refresh()
    assert Check("breakers", False, "open for more than 2m: low") in late.checks
    assert not late.ready


async def test_a_breaker_that_waits_for_a_job_to_try_does_not_make_it_unready(shown: Shown) -> None:
    failed(shown, "low", 20)
    shown.clock.advance(timedelta(hours=1))
    assert Check("breakers", True, "closed") in (await shown.refresh()).checks


async def test_queues_that_any_beating_worker_leaves_alone_are_shown(shown: Shown) -> None:
    failed(shown, "low", 20)
    shown.clock.advance(timedelta(seconds=10))
    records = shown.store.records(SHUT_QUEUES)
    for worker in ("w-1", "w-2"):
        await ShutQueues(shown.breakers, worker, shown.store.jobs, records, shown.clock).write_changes()
    await shown.store.jobs.heartbeat(WorkerInfo("w-1"), (), heartbeat_timeout=HEARTBEAT_TIMEOUT)
    snapshot = await shown.refresh()
    assert [(each.queue, each.state, each.worker) for each in snapshot.shut] == [("low", "open", "w-1")]
    assert json.loads(to_json(snapshot_json(snapshot)))["breakers"][0]["since"] == "2026-01-01T00:00:00Z"
    text = await shown.page()
    assert "Paused queues" in text
    assert "w-2" not in text


async def test_what_a_killed_worker_told_is_deleted_by_the_next_and_its_own_word_ends_with_it(shown: Shown) -> None:
    records = shown.store.records(SHUT_QUEUES)
    failed(shown, "low", 20)
    await ShutQueues(shown.breakers, "killed", shown.store.jobs, records, shown.clock).write_changes()

    async def keys() -> list[str]:
        return [record.key for record in await records.page("", None, 10)]

    async def told_anew() -> bool:
        return await keys() == ["mine"]

    assert await keys() == ["killed"]
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(ShutQueues(shown.breakers, "mine", shown.store.jobs, records, shown.clock).run())
        await eventually(told_anew)
        telling.cancel()
    assert await keys() == []


async def test_a_queue_that_is_gone_is_gone_from_the_metrics_within_the_sample_interval(shown: Shown) -> None:
    await shown.store.jobs.enqueue([Job("a", queue="old"), Job("b", queue="old")], request="1")
    shown.clock.advance(shown.watch.kept)
    before = exposition(await shown.watch.facts()).decode()
    infos = (await shown.store.jobs.page(JobState.READY, JobFilter(queue="old"), None, 10)).items
    await shown.store.jobs.delete([Delete(infos[0].claim, JobState.READY)])
    shown.clock.advance(shown.watch.kept)
    fewer = exposition(await shown.watch.facts()).decode()
    await shown.store.jobs.delete([Delete(infos[1].claim, JobState.READY)])
    shown.clock.advance(shown.watch.kept)
    after = exposition(await shown.watch.facts()).decode()
    assert 'queue_length{queue="old"} 2.0' in before
    assert 'queue_length{queue="old"} 1.0' in fewer
    assert 'queue="old"' not in after
