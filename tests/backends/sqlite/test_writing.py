"""The writer: what waits goes together, what fails fails alone, and a worker that goes away leaves nothing behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from backends.sqlite.law import broken_laws, stored_ids
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.backends.sqlite.write_transaction import WriteTransaction
from wrasse.clock import ManualClock
from wrasse.errors import UsageError
from wrasse.ports.jobs import REQUESTS_KEPT, Budget, Complete, Enqueued, Job, JobFilter, JobState, Reason, Requeue
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection

HEARTBEAT_TIMEOUT = timedelta(seconds=30)


def commits(db: apsw.Connection, seen: list[str]) -> None:
    db.exec_trace = lambda cursor, sql, bindings: seen.append(sql) or True


async def test_operations_that_wait_together_share_one_commit(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    seen: list[str] = []
    await store._writer.do(lambda step: commits(step.db, seen))
    seen.clear()
    await asyncio.gather(*(store.jobs.enqueue([Job(f"job-{n}")], request=f"r-{n}") for n in range(100)))
    await store.close()
    assert 1 <= seen.count("COMMIT") <= 3


async def test_an_operation_that_fails_spoils_none_of_its_group(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")

    def bad(step: WriteTransaction) -> None:
        step.db.execute("INSERT INTO jobs (seq, id) VALUES (1, 'bad')")

    answers = await asyncio.gather(
        store.jobs.enqueue([Job("before")], request="1"),
        store._writer.do(bad),
        store.jobs.enqueue([Job("after")], request="2"),
        return_exceptions=True,
    )
    found = [job.id for job in await store.jobs.page(JobState.READY, JobFilter(), None, 10)]
    await store.close()
    assert [all(answers[0]), type(answers[1]), all(answers[2])] == [True, apsw.ConstraintError, True]
    assert found == ["before", "after"]
    assert broken_laws(tmp_path / "wrasse.db") == []


async def test_an_operation_cancelled_before_its_turn_is_not_done(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    other = apsw.Connection(str(tmp_path / "wrasse.db"))
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(store.jobs.enqueue([Job("first")], request="1"))
        second = group.create_task(store.jobs.enqueue([Job("second")], request="2"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
    await store.close()
    assert ([put.new for put in first.result()], stored_ids(tmp_path / "wrasse.db")) == ([True], {"first"})


async def test_a_claim_that_is_cancelled_releases_its_jobs(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.jobs.enqueue([Job(f"job-{n}") for n in range(3)], request="p")
    take = asyncio.ensure_future(
        store.jobs.claim(["low"], 2, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t")
    )
    await asyncio.sleep(0)
    take.cancel()
    with pytest.raises(asyncio.CancelledError):
        await take
    again = await store.jobs.claim(["low"], 9, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t")
    await store.close()
    assert [(job.job.id, job.attempt) for job in again.jobs] == [("job-0", 1), ("job-1", 1), ("job-2", 1)]
    assert broken_laws(tmp_path / "wrasse.db") == []


async def test_closing_does_what_was_asked_before_it(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    other = apsw.Connection(str(tmp_path / "wrasse.db"))
    other.execute("BEGIN IMMEDIATE")
    lane = store._writer._thread
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        first = group.create_task(store.jobs.enqueue([Job("first")], request="first"))
        await asyncio.sleep(0)
        while not lane._asks.empty():  # noqa: ASYNC110
            await asyncio.sleep(0)
        # The writer waits for the lock, and what is asked now waits for the writer.
        puts = [group.create_task(store.jobs.enqueue([Job(f"job-{n}")], request=str(n))) for n in range(50)]
        await asyncio.sleep(0)
        group.create_task(store.close())
        while not lane._closing:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other.execute("ROLLBACK")
    assert [all(put.result()) for put in (first, *puts)] == [True] * 51


async def test_closing_ends_the_wait_of_a_taker(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    wait = timedelta(hours=1)
    take = asyncio.ensure_future(
        store.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t", wait=wait)
    )
    while not store._wakeups._wakeups:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(30):
        assert (await take).jobs == ()


async def test_remembered_answers_do_not_pile_up(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    for n in range(100):
        await store.jobs.enqueue([Job(f"job-{n}")], request=f"r-{n}")
        clock.advance(REQUESTS_KEPT / 10)
    kept = await store._writer.do(lambda step: step.db.execute("SELECT count(*) FROM requests").get)
    await store.close()
    assert 10 <= kept <= 15


async def test_a_step_of_the_wall_clock_does_not_make_an_answer_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    await store.jobs.enqueue([Job("a")], request="r")
    clock.step(timedelta(days=1))
    assert await store.jobs.enqueue([Job("a")], request="r") == (Enqueued("a", new=True),)
    clock.step(timedelta(days=-2))
    assert await store.jobs.enqueue([Job("a")], request="r") == (Enqueued("a", new=True),)
    await store.close()


async def test_a_large_claim_is_cut_by_bytes_and_the_rest_comes_next(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    sizes = [1, 15 << 20, 15 << 20, 15 << 20, 2]
    for n, size in enumerate(sizes):
        await store.jobs.enqueue([Job(f"job-{n}", payload=bytes(size))], request=f"p-{n}")
    takes = [
        await store.jobs.claim(["low"], 9, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"t-{n}")
        for n in range(3)
    ]
    await store.close()
    assert [[len(job.job.payload) for job in claimed.jobs] for claimed in takes] == [sizes[:3], sizes[3:], []]


async def test_completions_of_many_claims_in_one_batch_are_each_checked(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.jobs.enqueue([Job(f"job-{n}") for n in range(30)], request="p")
    claims = []
    for n in range(30):
        claimed = await store.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"t-{n}")
        claims.append(claimed.jobs[0].claim)
    back = Requeue(claims[7], Budget.FAILURES, Reason.FAILED)
    await store.jobs.settle([back], request="back")
    outcomes = await store.jobs.settle([*(Complete(claim) for claim in claims), Complete(claims[0])], request="s")
    await store.close()
    assert [n for n, outcome in enumerate(outcomes) if outcome is Outcome.CONFLICT] == [7, 30]
    assert broken_laws(tmp_path / "wrasse.db") == []


async def test_deleted_records_are_remembered_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrasse.backends.sqlite.records.GONE_MAX", 3)
    store = await Sqlite.open(tmp_path / "wrasse.db")
    records = store.records(Collection.named("things"))
    versions = {}
    for n in range(6):
        created = await records.create(f"key-{n}", b"", nonce=f"c-{n}")
        assert created.version is not None
        versions[n] = created.version
        await records.delete(f"key-{n}", at=created.version, nonce=f"d-{n}")
    kept = await store._writer.do(lambda step: step.db.execute("SELECT count(*) FROM records").get)
    old = await records.delete("key-0", at=versions[0], nonce="d-0")
    new = await records.delete("key-5", at=versions[5], nonce="d-5")
    await store.close()
    assert (kept, old.outcome, new.outcome) == (3, Outcome.UNKNOWN, Outcome.DONE)


async def test_a_store_is_not_made_for_nothing(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    with pytest.raises(UsageError):
        await store.jobs.claim(["low"], 0, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t")
    await store.close()
