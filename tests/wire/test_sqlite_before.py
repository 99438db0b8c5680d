"""A database that wrasse wrote before its words changed: it opens, shows everything it held, and work goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from lease_server.scene import served
from wire.conftest import FIXTURES, RECORDS, OpenPlace
from wire.job_scenes import HOUR, WORKER
from wire.lease_calls import OPEN
from wire.places import START
from wire.sqlite_before import as_sql, from_sql, play
from wrasse.backends.memory.connect import Memory
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.engine.turn import ENGINE_STATE, load
from wrasse.jobs.scheduler import PERIODIC
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.leases.leases import Leases
from wrasse.ports.groups import Ack
from wrasse.ports.jobs import Complete, Job, JobFilter, JobQueue, JobState, Reason
from wrasse.ports.journal import LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.ports.sightings import SightingState
from wrasse.ports.streams import START as FIRST
from wrasse.runtime.stream_tasks import EnvelopeCodec

BEFORE = FIXTURES / "schema_before_words.sql"
AUDIT, MAIL = "gbe.events.audit.change", "gbe.tasks.email.queue"
NOW = START + timedelta(hours=6, seconds=8)


async def test_a_database_of_before_is_recorded(open_place: OpenPlace, tmp_path: Path) -> None:
    if RECORDS and not BEFORE.exists():
        place = await open_place("sqlite")
        await play(place, tmp_path / "objects")
        await place.backend.close()
        BEFORE.write_text(as_sql(tmp_path / "wrasse.db"))
    assert BEFORE.exists()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Sqlite]:
    """That database, opened by the code of now."""
    from_sql(BEFORE.read_text(), tmp_path / "before.db")
    opened = await Sqlite.open(tmp_path / "before.db", ManualClock(NOW))
    yield opened
    await opened.close()


async def _ids(jobs: JobQueue, state: JobState, queue: str = "") -> list[str]:
    page = await jobs.page(state, JobFilter(queue=queue or None), None, 100)
    return [info.id for info in page]


async def _numbers(jobs: JobQueue) -> dict[str, tuple[int, ...]]:
    """Of each queue: ready, delayed, held, done, dead."""
    queues = (await jobs.counts()).queues
    return {each.queue: (each.ready, each.scheduled, each.running, each.done, each.dead) for each in queues}


def _tasks(store: Sqlite) -> TaskQueue:
    clock = ManualClock(NOW)
    ports = TaskPorts(store.records, store.streams, store.groups, EnvelopeCodec(clock), clock, Memory(clock).objects)
    return TaskQueue(ports, [TaskType("low", 3), TaskType("high")])


async def test_jobs_of_before_are_in_their_states(store: Sqlite) -> None:
    jobs = store.jobs
    found = {state: sorted(await _ids(jobs, state)) for state in JobState}
    assert found[JobState.READY] == [
        "delayed-1", "m-3", "periodic/hourly/2026-03-01T14:00:00Z", "ready-1", "ready-2", "ready-3", "retry-1",
        "revived-1", "then-1", "unique-1",
    ]  # fmt: skip
    assert found[JobState.RUNNING] == ["follow-1", "held-1", "interrupted-1", "unique-3"]
    assert (found[JobState.DONE], found[JobState.DEAD]) == (
        ["done-1", "done-2", "m-1"],
        ["cancelled-1", "dead-1", "m-2"],
    )
    numbers = await _numbers(jobs)
    assert numbers == {
        "high": (4, 0, 2, 1, 2), "low": (3, 0, 1, 1, 0), "other": (0, 0, 1, 0, 0), "others": (0, 0, 0, 1, 1),
        "some": (2, 0, 0, 0, 0), "after": (1, 0, 0, 0, 0),
    }  # fmt: skip


async def test_a_job_of_before_has_everything_that_was_stored_with_it(store: Sqlite) -> None:
    done, dead, held = [await store.jobs.get(id) for id in ("done-1", "dead-1", "held-1")]
    assert done is not None
    assert dead is not None
    assert held is not None
    assert (done.result, done.job.payload, done.job.kind, done.info.kept_until) == (
        b'{"answer":42}', b'{"n":1}', "resize", START + 24 * HOUR,
    )  # fmt: skip
    assert [each.reason for each in dead.history] == [Reason.FAILED, Reason.TIMEOUT]
    assert (dead.info.reason, dead.info.error, dead.info.failures) == (Reason.TIMEOUT, "too slow", 2)
    assert (dead.job.payload, dead.job.headers["trace_id"]) == (b"\x00\xff", "0af7651916cd43dd8448eb211c80319c")
    assert held.progress is not None
    assert (held.progress.fraction, held.progress.note, held.info.worker, held.job.lasting) == (
        0.5, "half", WORKER.id, True,
    )  # fmt: skip


async def test_work_on_jobs_of_before_goes_on(store: Sqlite) -> None:
    jobs = store.jobs
    held = await jobs.get("held-1")
    assert held is not None
    assert list(await jobs.settle([Complete(held.info.claim, b"late")], request="now")) == [Outcome.DONE]
    claimed = await jobs.claim(["low"], 10, worker="w", heartbeat_timeout=HOUR, request="take")
    assert [each.job.id for each in claimed.jobs] == ["ready-1", "ready-2", "delayed-1"]
    again = await jobs.enqueue([Job("u", unique="report"), Job("ready-2"), Job("deleted-1")], request="put")
    assert [(each.id, each.new) for each in again] == [("unique-1", False), ("ready-2", False), ("deleted-1", False)]


async def test_tasks_of_before_are_in_their_states(store: Sqlite) -> None:
    tasks = _tasks(store)
    found = {state: sorted(await _ids(tasks, state)) for state in JobState}
    assert found[JobState.READY] == ["delayed-1", "ready-1", "ready-2", "ready-3", "retry-1", "revived-1"]
    assert found[JobState.RUNNING] == ["follow-1", "held-1", "interrupted-1"]
    assert (found[JobState.DONE], found[JobState.DEAD]) == (["done-1", "done-2"], ["cancelled-1", "dead-1"])
    numbers = await _numbers(tasks)
    assert numbers == {"low": (3, 0, 1, 1, 0), "high": (3, 0, 2, 1, 2)}


async def test_streams_of_before_are_read_and_acked(store: Sqlite) -> None:
    entries = (await store.streams.read(MAIL, FIRST, 100)).items
    state = await store.streams.info(MAIL)
    assert state is not None
    (group,) = state.groups
    assert (len(entries), group.name, group.pending, group.floor) == (7, "email-workers", 3, entries[0].id)
    got = await store.groups.deliver([MAIL], group.name, "consumer-9", 10, ack_timeout=HOUR)
    assert [each.entry.id for each in got] == [entries[index].id for index in (1, 3, 4, 5, 6)]
    answered = await store.groups.answer([Ack(MAIL, group.name, each.entry.id) for each in got])
    assert list(answered) == [Outcome.DONE] * 5
    dead = (await store.streams.read("gbe._deadletter.tasks", FIRST, 100)).items
    assert [each.fields["reason"] for each in dead if each.fields] == [b"no such user"]
    audit = await store.streams.info(AUDIT)
    assert audit is not None
    assert [(each.name, each.floor.seq) for each in audit.groups] == [("archiver", 3)]


async def test_keys_of_before_are_held_and_free(tmp_path: Path) -> None:
    from_sql(BEFORE.read_text(), tmp_path / "before.db")
    clock = ManualClock(START + timedelta(minutes=10))
    store = await Sqlite.open(tmp_path / "before.db", clock)
    leases = Leases(store.records, Memory(clock).objects, clock, namespaces=store.namespaces)
    found = {}
    async with served(leases, clock) as server:
        for key in ("orders/1", "removed", "a-commit", "a-rollback", "a-open"):
            async with server.client.get(f"/v1/describe?key={key}&namespace=default") as answer:
                body = json.loads(await answer.read())
            found[key] = (body.get("owner", ""), body["version"])
        async with server.client.post("/v1/txn/decide", json={"txn_id": OPEN, "state": "rollback"}) as answer:
            decided = json.loads(await answer.read())
        async with server.client.post(
            "/v1/acquire", json={"key": "a-open", "owner": "w2", "block_seconds": -1}
        ) as answer:
            acquired = answer.status
    await store.close()
    assert found == {
        "orders/1": ("w1", 1), "removed": ("", 2), "a-commit": ("", 1), "a-rollback": ("", 0), "a-open": ("w1", 0),
    }  # fmt: skip
    assert (decided["state"], acquired) == ("rollback", 200)


async def test_the_engines_records_of_before_are_read(store: Sqlite) -> None:
    reports = {
        name: (await load(store.records(ENGINE_STATE), name)).state.reports for name in ("stuck_jobs", "finished_jobs")
    }
    assert [(report.done, report.seen) for report in reports["stuck_jobs"]] == [(2, 2), (1, 1)]
    assert [report.sweep for report in reports["finished_jobs"]] == ["finished_jobs"]
    lines = (await store.journal.page(LineFilter(), None, 100)).items
    assert [(line.intent.suspect, line.outcome) for line in lines] == [
        ("stuck-1", Outcome.DONE), ("stuck-2", Outcome.DONE), ("stuck-2", Outcome.DONE), ("job-9", None),
    ]  # fmt: skip
    assert [line.intent.verb for line in lines] == ["requeue", "requeue", "dead_letter", "dead_letter"]
    assert [record.key for record in await store.records(PERIODIC).page("", None, 10)] == ["daily", "hourly"]


async def test_sightings_of_before_are_read_and_changed(store: Sqlite) -> None:
    standing = await store.sightings.standing("archives")
    assert standing.last is not None
    assert (standing.value, standing.last.number, standing.last.counts) == (b"armed", 1, {"listed": 5})
    found = (await store.sightings.page("archives", None, 10)).items
    assert [(each.unit, each.state, each.state_scan) for each in found] == [
        ("archives/ws1/", SightingState.SEEN, ""), ("archives/ws2/", SightingState.MOVED, "round-1"),
    ]  # fmt: skip
