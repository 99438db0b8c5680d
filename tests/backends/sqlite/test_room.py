"""A disk without room: a clear error, nothing half done, and everything goes on when there is room again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from backends.sqlite import child as sqlite_child
from backends.sqlite.law import broken_laws, stored_ids
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.errors import StoreFull
from wrasse.jobs.producer import Producer, ProducerOptions
from wrasse.ports.jobs import Complete, Job


def test_a_file_that_may_not_grow_keeps_every_answered_enqueue_and_goes_on_when_it_may(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    said = sqlite_child.finish(sqlite_child.start("fills", path))
    failure, read, after = said[-3:]
    assert failure.startswith("StoreFull: there is no room left for")
    assert "free some disk space" in failure
    assert (read, after) == ("read", "after")
    assert stored_ids(path) == {*said[:-3], "after"}
    assert broken_laws(path) == []


async def test_a_full_database_still_lets_jobs_finish(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    store = await Sqlite.open(path)
    await store.jobs.enqueue([Job(f"job-{n}") for n in range(100)], request="first")
    claimed = await store.jobs.claim(["low"], 10, worker="w", heartbeat_timeout=timedelta(seconds=9), request="t")

    def freeze(step: object) -> None:
        db = step.db  # type: ignore[attr-defined]
        db.pragma("max_page_count", db.pragma("page_count"))

    await store._writer.do(freeze)
    with pytest.raises(StoreFull):
        await store.jobs.enqueue([Job(f"more-{n}", payload=b"x" * 900) for n in range(1_000)], request="second")
    outcomes = await store.jobs.settle([Complete(job.claim) for job in claimed.jobs], request="s")
    await store.close()
    assert {str(outcome) for outcome in outcomes} == {"done"}
    assert broken_laws(path) == []
    assert not any(id.startswith("more") for id in stored_ids(path))
    assert apsw.Connection(str(path)).pragma("quick_check") == "ok"


async def test_an_enqueue_without_room_fails_at_once_instead_of_being_tried_again(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")

    def freeze(step: object) -> None:
        db = step.db  # type: ignore[attr-defined]
        db.pragma("max_page_count", db.pragma("page_count"))

    await store._writer.do(freeze)
    producer = Producer(store.jobs, SystemClock(), ProducerOptions(patience=timedelta(hours=1)))
    jobs = [producer.job(payload=b"x" * 900) for _ in range(1_000)]
    async with asyncio.timeout(60):
        with pytest.raises(StoreFull, match="no room left"):
            await producer.enqueue_many(jobs)
    await store.close()
    assert producer.tally.unavailable == 0
