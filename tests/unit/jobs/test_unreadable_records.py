"""A job's record that something else overwrote costs that job: its neighbours are claimed, listed, counted, rescued."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from wrasse.backends.directory.connect import Directory
from wrasse.clock import ManualClock
from wrasse.jobs.recorded import RecordedJobs
from wrasse.ports.jobs import Job, JobFilter, Place, Reason
from wrasse.ports.records import Records

_SILENCE = timedelta(seconds=30)


async def test_an_unreadable_record_costs_one_job(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Directory.open(tmp_path, clock)
    jobs = RecordedJobs(store.records, store.objects, clock)
    records = store.records(jobs._store.names.jobs)
    await jobs.put([Job(id) for id in ("a", "bad", "c", "held", "worse")], request="put")
    await _overwrite(records, "bad")

    listed = await jobs.page(Place.READY, JobFilter(), None, 10)
    assert [state.id for state in listed] == ["a", "unreadable-bad", "c", "held", "worse"]
    assert [state.reason for state in listed] == [None, Reason.INVALID_PAYLOAD, None, None, None]
    assert "the record 'bad' is not a job" in listed.items[1].error
    assert (await jobs.counts()).queues[0].ready == 5

    taken = await jobs.take(["low"], 10, worker="w", silence=_SILENCE, request="take")
    assert [each.job.id for each in taken.jobs] == ["a", "c", "held", "worse"]
    await _overwrite(records, "worse")
    assert (await jobs.counts()).queues[0].held == 3
    clock.advance(timedelta(minutes=5))
    assert {state.id for state in await jobs.overdue(None, 10)} == {"a", "c", "held"}
    again = await jobs.take(["low"], 10, worker="v", silence=_SILENCE, request="again")
    assert {each.job.id for each in again.jobs} == {"a", "c", "held"}, "rescued beside what cannot be read"

    kept = await records.get("bad")
    assert kept is not None
    assert kept.value == b"\xff not a job", "the bytes stay for a person to look at"
    await jobs.close()
    await store.close()


async def _overwrite(records: Records, key: str) -> None:
    found = await records.get(key)
    assert found is not None
    written = await records.put(key, b"\xff not a job", at=found.version, due_at=found.due_at)
    assert written
