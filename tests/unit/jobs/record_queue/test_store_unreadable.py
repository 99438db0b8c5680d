"""A job's record that something else overwrote costs that job: its neighbours are claimed, listed, counted, rescued."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.jobs.record_queue.queue import EXPIRED_MAX, RecordedJobs
from wrasse.jobs.record_queue.store import INLINE_BYTES_MAX
from wrasse.ports.jobs import Cancel, Complete, Job, JobFilter, JobState, Reason, WorkerInfo
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.records import Records

_SILENCE = timedelta(seconds=30)


async def test_an_unreadable_record_costs_one_job(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Directory.open(tmp_path, clock)
    jobs = RecordedJobs(store.records, store.objects, clock)
    records = store.records(jobs._store.names.jobs)
    await jobs.enqueue([Job(id) for id in ("a", "bad", "c", "held", "worse")], request="put")
    await _overwrite(records, "bad")

    listed = await jobs.page(JobState.READY, JobFilter(), None, 10)
    assert [info.id for info in listed] == ["a", "unreadable-bad", "c", "held", "worse"]
    assert [info.reason for info in listed] == [None, Reason.INVALID_PAYLOAD, None, None, None]
    assert "the record 'bad' is not a job" in listed.items[1].error
    assert (await jobs.counts()).queues[0].ready == 5

    claimed = await jobs.claim(["low"], 10, worker="w", heartbeat_timeout=_SILENCE, request="take")
    assert [each.job.id for each in claimed.jobs] == ["a", "c", "held", "worse"]
    await _overwrite(records, "worse")
    assert [(each.queue, each.running) for each in (await jobs.counts()).queues] == [("low", 3), ("unreadable", 1)]
    held = await jobs.page(JobState.RUNNING, JobFilter(), None, 10)
    (shown,) = (info for info in held if info.reason is Reason.INVALID_PAYLOAD)
    assert (shown.id, shown.size, shown.deadline is None) == ("unreadable-worse", 11, False)
    claims = [each.claim for each in claimed.jobs]
    beaten = await jobs.heartbeat(WorkerInfo("w", slots=4), claims, heartbeat_timeout=_SILENCE)
    assert beaten.mine == (True, True, True, False), "one heartbeat for all of a worker's jobs"
    clock.advance(timedelta(minutes=5))
    assert {info.id for info in await jobs.overdue(None, 10)} == {"a", "c", "held"}
    again = await jobs.claim(["low"], 10, worker="v", heartbeat_timeout=_SILENCE, request="again")
    assert {each.job.id for each in again.jobs} == {"a", "c", "held"}, "rescued beside what cannot be read"

    kept = await records.get("bad")
    assert kept is not None
    assert kept.value == b"\xff not a job", "the bytes stay for a person to look at"
    await jobs.close()
    await store.close()


@pytest.mark.parametrize("state", ["ready", "running", "dead"])
@pytest.mark.parametrize("envelope", [True, False], ids=["bytes of the record", "bytes of the file"])
async def test_a_job_whose_record_is_unreadable_is_shown_by_id(tmp_path: Path, state: str, envelope: bool) -> None:
    clock = ManualClock()
    store = await Directory.open(tmp_path, clock)
    jobs = RecordedJobs(store.records, store.objects, clock)
    await jobs.enqueue([Job("bad"), Job("bad-too")], request="put")
    if state != "ready":
        await jobs.claim(["low"], 1, worker="w", heartbeat_timeout=_SILENCE, request="take")
    if state == "dead":
        await jobs.move([Cancel("bad")])
    if envelope:
        (tmp_path / "jobs/jobs/bad.json").write_bytes(b"\xff not a job")
    else:
        await _overwrite(store.records(jobs._store.names.jobs), "bad")
    for id in ("bad", "unreadable-bad"):
        shown = await jobs.get(id)
        assert shown is not None
        assert (shown.info.state, shown.info.reason, shown.info.size) == (state, Reason.INVALID_PAYLOAD, 11)
        assert shown.job.payload == b"\xff not a job"
        assert "the record 'bad' is not a job" in shown.info.error
    assert await jobs.get("unreadable-bad-too") is None
    await jobs.close()
    await store.close()


async def test_many_unreadable_records_do_not_keep_others_from_a_rescue(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Directory.open(tmp_path, clock)
    jobs = RecordedJobs(store.records, store.objects, clock)
    records = store.records(jobs._store.names.jobs)
    ids = [f"a{n:03}" for n in range(EXPIRED_MAX)]
    await jobs.enqueue([Job(id) for id in [*ids, "z"]], request="put")
    await jobs.claim(["low"], 1_000, worker="w", heartbeat_timeout=_SILENCE, request="take")
    for id in ids:
        await _overwrite(records, id)
    clock.advance(timedelta(minutes=5))
    again = await jobs.claim(["low"], 10, worker="v", heartbeat_timeout=_SILENCE, request="again")
    assert [each.job.id for each in again.jobs] == ["z"]
    await jobs.close()
    await store.close()


async def _overwrite(records: Records, key: str) -> None:
    found = await records.get(key)
    assert found is not None
    written = await records.put(key, b"\xff not a job", at=found.version, due_at=found.due_at)
    assert written


async def test_a_payload_that_is_gone_costs_one_job_of_a_claim() -> None:
    memory = Memory(ManualClock())
    jobs = RecordedJobs(memory.records, memory.objects, ManualClock())
    await jobs.enqueue([Job("gone", payload=b"x" * (INLINE_BYTES_MAX + 1)), Job("b")], request="put")
    (part,) = (info for info in await memory.objects.page("jobs/parts/", None, 10))
    await memory.objects.delete([ObjectDelete(part.key, part.version)])

    claimed = await jobs.claim(["low"], 10, worker="w", heartbeat_timeout=_SILENCE, request="take")

    (dead,) = await jobs.page(JobState.DEAD, JobFilter(), None, 10)
    assert ([each.job.id for each in claimed.jobs], [each.id for each in claimed.rejected]) == (["b"], ["gone"])
    assert (dead.id, dead.reason) == ("gone", Reason.INVALID_PAYLOAD)
    shown = await jobs.get("gone")
    assert shown is not None
    assert "cannot be read" in shown.info.error


async def test_a_take_asked_again_after_its_jobs_ended_takes_no_others() -> None:
    memory = Memory(ManualClock())
    jobs = RecordedJobs(memory.records, memory.objects, ManualClock())
    await jobs.enqueue([Job("a"), Job("b")], request="put")
    first = await jobs.claim(["low"], 1, worker="w", heartbeat_timeout=_SILENCE, request="take")
    await jobs.settle([Complete(each.claim) for each in first.jobs], request="settle")

    again = await jobs.claim(["low"], 1, worker="w", heartbeat_timeout=_SILENCE, request="take")

    assert ([each.job.id for each in first.jobs], again.jobs) == (["a"], ())
