"""A row of any table that something else changed costs what it says: views of everything else go on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.ports.groups import StartAt
from wrasse.ports.jobs import DeadLetterJob, Job, JobFilter, JobState, Reason, WorkerInfo
from wrasse.ports.journal import Intent, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection
from wrasse.ports.sightings import CompleteScan, Evidence, NewSighting, Sighting
from wrasse.ports.streams import START, Draft
from wrasse.streams.group_census import PlainSurvey

T = TypeVar("T")
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
CLOCK = ManualClock()
THINGS = Collection.named("some/things")
NO_TEXT = "CAST(x'61ff' AS TEXT)"
NUMBERS = [str((1 << 63) - 1), str(-(1 << 63))]
BAD = {"TEXT": [NO_TEXT, "''", "'a b'"], "INTEGER": NUMBERS, "BLOB": ["x'ff'"], "REAL": ["9e999"]}
TABLES = ("attempts", "counts", "workers", "records", "lines", "streams", "entries", "pending", "consumers",
          "entry_groups", "sightings", "payloads", "requests", "uniques", "budgets")  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something in every one of these tables."""
    path = tmp_path_factory.mktemp("filled") / "wrasse.db"
    asyncio.run(_fill(path))
    return path


async def _fill(path: Path) -> None:
    store = await Sqlite.open(path, CLOCK)
    await store.jobs.enqueue([Job("a"), Job("b", payload=b"y" * 5_000), Job("c", unique="u")], request="put")
    claimed = await store.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="take")
    await store.jobs.heartbeat(WorkerInfo("w", "host", 1, 1), [], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    await store.jobs.settle([DeadLetterJob(claimed.jobs[0].claim, Reason.FAILED, error="x")], request="settle")
    await store.journal.intend([Intent(f"i{n}", "run", "sweep", "verb", "suspect", "why", 1) for n in range(2)])
    await store.journal.settle([SettledIntent("i0", Outcome.DONE)])
    for name in ("k0", "k1"):
        await store.records(THINGS).create(name, b"{}", due_at=CLOCK.now() - HEARTBEAT_TIMEOUT)
    await store.streams.append([Draft("a.b", b"1", fields={"x": b"1"}), Draft("a.b", b"2"), Draft("c.d", b"3")])
    await store.groups.join("a.b", "g", StartAt(first=True))
    await store.groups.deliver(["a.b"], "g", "c", 1, ack_timeout=HEARTBEAT_TIMEOUT)
    at = CLOCK.now()
    seen = [NewSighting(Sighting(f"unit/{n}", Evidence.OWNER_UNKNOWN, "f", 1, b"", 1, at, 1)) for n in range(2)]
    await store.sightings.commit(CompleteScan("root", "r", 1, at, at, 1, {}), [seen])
    await store.limiter.allow("k", 1, rate=5, burst=2)
    await store.close()


def views(store: Sqlite) -> dict[str, Callable[[], Awaitable[object]]]:
    """What status, metrics, listings, sweeps and explain ask."""
    jobs, things, streams = store.jobs, store.records(THINGS), store.streams
    return {
        "counts": jobs.counts,
        "overdue": lambda: jobs.overdue(None, 10),
        "job a": lambda: jobs.get("a"),
        "job b": lambda: jobs.get("b"),
        **{f"page {state}": lambda state=state: jobs.page(state, JobFilter(), None, 10) for state in JobState},
        "journal": lambda: store.journal.page(LineFilter(), None, 10),
        "open lines": lambda: store.journal.page(LineFilter(open=True), None, 10, newest=True),
        "records": lambda: things.page("", None, 10),
        "due records": lambda: things.due(None, None, 10),
        "namespaces": lambda: store.namespaces.page(None, 10),
        "subjects": lambda: streams.subjects(">", None, 10),
        "survey": lambda: PlainSurvey(streams).survey(">", None, 10),
        "put record": lambda: things.put("k0", b"{}", at="1"),
        "stream a": lambda: streams.info("a.b"),
        "entries": lambda: streams.read("a.b", START, 10),
        "stretch": lambda: streams.chunk("a.b", START, 10),
        "stream c": lambda: streams.read("c.d", START, 10),
        "consumers": lambda: store.groups.consumers("a.b", "g"),
        "sightings": lambda: store.sightings.page("root", None, 10),
        "take": lambda: jobs.claim(["low"], 1, worker="v", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="another"),
    }


@pytest.mark.parametrize("table", TABLES)
async def test_an_invalid_row_of_any_table_ends_no_view(filled: Path, tmp_path: Path, table: str) -> None:
    with closing(apsw.Connection(str(filled))) as db:
        columns = [(name, kind) for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})")]
        key = [name for _, name, _, _, _, place in db.execute(f"PRAGMA table_info({table})") if place]
    failed = []
    tried = 0
    for column, kind in columns:
        for n, bad in enumerate(BAD[kind]):
            path = tmp_path / f"{column}{n}.db"
            shutil.copy(filled, path)
            where = f"({', '.join(key)}) IN (SELECT {', '.join(key)} FROM {table} LIMIT 1)"
            with closing(apsw.Connection(str(path))) as db:
                try:
                    db.execute(f"UPDATE {table} SET {column} = {bad} WHERE {where}")
                except apsw.ConstraintError:
                    continue  # SQLite itself refuses this one
                assert db.changes() == 1
            tried += 1
            store = await Sqlite.open(path, CLOCK)
            for view, ask in views(store).items():
                try:
                    await ask()
                except Exception as error:  # every failure is to be shown, not the first
                    failed.append((column, bad, view, repr(error)))
            await store.close()
    assert tried
    assert failed == []


@pytest.mark.parametrize("change", ["UPDATE identity SET name = CAST(x'ff' AS TEXT)", "DELETE FROM identity"])
async def test_a_database_whose_name_is_invalid_answers_as_another_one(
    filled: Path, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "wrasse.db"
    shutil.copy(filled, path)
    db = apsw.Connection(str(path))
    db.execute(change)
    db.close()
    store = await Sqlite.open(path)
    assert isinstance((await store.health_sample()).identity, str)
    await store.close()


async def test_what_is_invalid_is_shown_beside_its_neighbours(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    shutil.copy(filled, path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"UPDATE lines SET outcome = 'nonsense', suspect = {NO_TEXT}, intended_at = 1 << 62 WHERE id = 'i0'")
        db.execute("UPDATE records SET name = x'6bff', due = -9223372036854775808 WHERE name = CAST('k0' AS BLOB)")
        db.execute("UPDATE entries SET fields = x'ff' WHERE fields IS NOT NULL")
        db.execute("UPDATE sightings SET first_at = 1 << 62 WHERE unit = CAST('unit/0' AS BLOB)")
    store = await Sqlite.open(path, CLOCK)
    lines = [line async for line in _all(lambda after: store.journal.page(LineFilter(), after, 1))]
    assert [(line.intent.suspect, line.outcome) for line in lines] == [("a\ufffd", Outcome.UNKNOWN), ("suspect", None)]
    assert "the invalid outcome 'nonsense'" in lines[0].detail
    things = store.records(THINGS)
    assert [each.key async for each in _all(lambda after: things.page("", after, 1))] == ["k1", "k\ufffd"]
    assert [each.key async for each in _all(lambda after: things.due(None, after, 1))] == ["k\ufffd", "k1"]
    entries = await store.streams.read("a.b", START, 10)
    assert [entry.fields for entry in entries] == [{"unreadable": b"\xff"}, None]
    units = [each.unit async for each in _all(lambda after: store.sightings.page("root", after, 1))]
    assert units == ["unit/1"], "the unit counts as not seen, so that nothing is done to it"
    await store.close()


async def test_a_group_whose_position_was_set_back_delivers_again(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    shutil.copy(filled, path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE entry_groups SET delivered_ms = -1, delivered_seq = -1")
    store = await Sqlite.open(path, CLOCK)
    again = await store.groups.deliver(["a.b"], "g", "d", 10, ack_timeout=HEARTBEAT_TIMEOUT)
    assert [each.entry.body for each in again] == [b"1", b"2"]
    await store.close()


@pytest.mark.parametrize("state", [9, -1])
async def test_a_job_in_a_state_that_is_none_is_listed_counted_and_repaired(tmp_path: Path, state: int) -> None:
    path = tmp_path / "wrasse.db"
    store = await Sqlite.open(path, CLOCK)
    await store.jobs.enqueue([Job(id, payload=id.encode()) for id in ("a", "bad", "c")], request="put")
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE jobs SET state = ? WHERE id = 'bad'", (state,))
    dead = [info async for info in _all(lambda after: store.jobs.page(JobState.DEAD, JobFilter(), after, 1))]
    assert [(info.id, info.reason) for info in dead] == [("bad", Reason.INVALID_PAYLOAD)]
    assert (await store.jobs.counts()).queues[0].dead == 1

    found = await store.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert [(each.kind, each.count, each.repaired) for each in found] == [("state", 1, 0), ("counts", 1, 0)]
    assert found[0].names == ("bad",)
    repaired = await store.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert [(each.kind, each.repaired) for each in repaired] == [("state", 1), ("counts", 1)]
    assert not await store.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    (queue,) = (await store.jobs.counts()).queues
    assert (queue.ready, queue.dead) == (2, 1)
    shown = await store.jobs.get("bad")
    assert shown is not None
    assert (shown.info.state, shown.job.payload) == (JobState.DEAD, b"bad")
    assert f"its state was {state}" in shown.info.error
    await store.close()


async def _all(page: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Everything, page by page."""
    after: str | None = None
    while True:
        found = await page(after)
        for each in found:
            yield each
        after = found.cursor
        if after is None:
            return
