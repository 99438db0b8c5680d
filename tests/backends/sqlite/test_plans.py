"""Flat cost: every statement that the ports make finds its rows by an index, never by reading a table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.ids import Ids
from wrasse.ports.jobs import (
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobGroup,
    JobState,
    Progress,
    Rate,
    Reason,
    Requeue,
    RequeueDead,
    WorkerInfo,
)
from wrasse.ports.journal import Intent, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, IndexEntry, StatusRange

LARGE = ("jobs", "payloads", "attempts", "ids", "requests", "records", "lines", "uniques", "teams", "limited_takes")
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
# These read the first few rows in the order of the table itself, without a condition, and stop there.
BOUNDED = (
    "SELECT n FROM requests ORDER BY n LIMIT",
    "FROM lines WHERE true ORDER BY id",
    "FROM uniques ORDER BY n LIMIT",
)

Statements = dict[str, object]


@pytest.fixture
def statements() -> Iterator[Statements]:
    """Every statement that connections make from here on, with one set of values for it."""
    seen: Statements = {}

    def note(cursor: apsw.Cursor, sql: str, values: object) -> bool:
        seen[sql] = values
        return True

    def trace(db: apsw.Connection) -> None:
        db.exec_trace = note

    apsw.connection_hooks.append(trace)
    yield seen
    apsw.connection_hooks.remove(trace)


def plan(db: apsw.Connection, sql: str, values: object) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type]


def faults(sql: str, lines: list[str]) -> list[str]:
    """Steps of a plan whose cost grows with the table."""
    scans = [f"{line} in {sql}" for line in lines if line in {f"SCAN {table}" for table in LARGE}]
    sorts = [f"{line} in {sql}" for line in lines if "TEMP B-TREE" in line and "carray" not in sql]
    return sorts if any(bounded in sql for bounded in BOUNDED) else scans + sorts


async def use_jobs(store: Sqlite, clock: ManualClock) -> None:
    jobs = store.jobs
    long = Job("long", payload=bytes(5_000))
    await jobs.enqueue(
        [Job("a", lasting=True), Job("b"), Job("c", delay=HEARTBEAT_TIMEOUT / 2), long, Job("d")], request="p"
    )
    claimed = await jobs.claim(["high", "low"], 4, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t")
    await jobs.claim(["high", "low"], 4, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t")
    a, b, c, d = (job.claim for job in claimed.jobs)
    await jobs.heartbeat(WorkerInfo("w"), [a, b], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    back = Requeue(b, Budget.FAILURES, Reason.FAILED, delay=HEARTBEAT_TIMEOUT)
    await jobs.settle([Complete(a, b"result", (Job("e"),)), back], request="s")
    clock.advance(2 * HEARTBEAT_TIMEOUT)
    page = await jobs.overdue(None, 1)
    await jobs.overdue(page.cursors[0], 1)
    await jobs.move([Requeue(c, Budget.RESCUES, Reason.WORKER_DIED), DeadLetterJob(d, Reason.WORKER_DIED), Cancel("e")])
    dead = await jobs.get("e")
    assert dead is not None
    await jobs.move([RequeueDead(dead.info.claim)])
    await jobs.counts()
    again = await jobs.claim(["low"], 9, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t2")
    await jobs.settle([Complete(job.claim) for job in again.jobs], request="s2")
    await jobs.delete([Delete(a, JobState.DONE), Delete(Claim("nothing", 0, ""), JobState.READY)])


async def use_comforts(store: Sqlite, clock: ManualClock) -> None:
    jobs = store.jobs
    member = Job("member", queue="few", group="g", keep=HEARTBEAT_TIMEOUT)
    groups = [JobGroup("g", 1, Job("callback"))]
    await jobs.enqueue(
        [Job("one", unique="u"), Job("two", unique="u", window=HEARTBEAT_TIMEOUT), member], request="c", groups=groups
    )
    rates = [Rate("few", 1, HEARTBEAT_TIMEOUT)]
    claimed = await jobs.claim(["few"], 4, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="c", rates=rates)
    await jobs.claim(
        ["few"],
        1,
        worker="w",
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        request="c2",
        rates=rates,
        wait=timedelta(milliseconds=1),
    )
    (claim,) = (job.claim for job in claimed.jobs)
    await jobs.heartbeat(
        WorkerInfo("w"), [claim], heartbeat_timeout=HEARTBEAT_TIMEOUT, progress={"member": Progress(0.5)}
    )
    await jobs.settle([Complete(claim, b"1")], request="c")


async def list_jobs(store: Sqlite, clock: ManualClock) -> None:
    """Every listing, from its start and from a cursor, both ways."""
    await store.jobs.enqueue([Job(f"job-{n}", delay=HEARTBEAT_TIMEOUT * (n % 2)) for n in range(9)], request="list")
    await store.jobs.claim(["low"], 2, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="list")
    ends = {"ready": "ready:1:1", "running": "running:1:1", "done": "done:1:1", "dead": "dead:1:1"}
    filters = [
        JobFilter(),
        JobFilter(queue="low"),
        JobFilter(kind="k", reason=Reason.FAILED, error_contains="e"),
        JobFilter(finished_before=clock.now(), finished_after=clock.now() - HEARTBEAT_TIMEOUT),
    ]
    for state in JobState:
        for where in filters:
            for newest in (False, True):
                for after in (None, ends[state]):
                    await store.jobs.page(state, where, after, 5, newest=newest)
    await store.jobs.page(JobState.READY, JobFilter(scheduled=True), "scheduled:1:1", 5)


async def use_records(store: Sqlite, clock: ManualClock) -> None:
    records = store.records(Collection.named("things"))
    created = await records.create("a/b", b"1", due_at=clock.now(), nonce="n")
    assert created.version is not None
    changed = await records.put("a/b", b"2", at=created.version, due_at=clock.now())
    await records.get("a/b")
    for after in (None, "a"):
        await records.page("", after, 5)
        await records.page("a", after, 5)
    await records.due(None, None, 5)
    stands = await records.create("indexed", b"1", index_entry=IndexEntry("s", 1))
    await records.put("indexed", b"2", at=str(stands.version), index_entry=IndexEntry("t", 1))
    found = await records.get("indexed")
    assert found is not None
    await records.reindex([(found, IndexEntry("s", 2))])
    await records.status_counts([StatusRange("s"), StatusRange("s", 5)])
    for newest in (False, True):
        await records.status_page("s", None, 5, newest=newest)
    await records.due(clock.now(), "1:a", 5)
    assert changed.version is not None
    await records.delete("a/b", at=changed.version)


async def use_journal(store: Sqlite, clock: ManualClock) -> None:
    ids = Ids(clock)
    line = Intent(ids.new(), "run", "stuck_jobs", "requeue", "job", "silent")
    await store.journal.intend([line])
    await store.journal.intend([line])
    await store.journal.settle([SettledIntent(line.id, Outcome.DONE)])
    filters = [
        LineFilter(),
        LineFilter(sweep="stuck_jobs"),
        LineFilter(run="run"),
        LineFilter(suspect="job"),
        LineFilter(open=True),
        LineFilter(sweep="stuck_jobs", open=True),
    ]
    for where in filters:
        for newest in (False, True):
            await store.journal.page(where, None, 5, newest=newest)
            await store.journal.page(where, line.id, 5, newest=newest)
    await store.journal.delete(clock.now() + HEARTBEAT_TIMEOUT, 5)


async def test_no_statement_reads_or_sorts_a_whole_table(tmp_path: Path, statements: Statements) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock, done_max=1)
    for use in (use_jobs, use_comforts, list_jobs, use_records, use_journal):
        await use(store, clock)
    await store.close()
    made = {sql: values for sql, values in statements.items() if any(f" {table}" in sql for table in LARGE)}
    db = apsw.Connection(str(tmp_path / "wrasse.db"))
    schema = ("CREATE", "ALTER", "DROP", "--")
    asked = {sql: plan(db, sql, values) for sql, values in made.items() if not sql.lstrip().startswith(schema)}
    assert len(asked) > 60, "the statements were heard"
    assert [fault for sql, lines in asked.items() for fault in faults(sql, lines)] == []


def test_a_scan_or_a_sort_would_be_noticed(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "any.db"))
    db.execute("CREATE TABLE jobs (n INTEGER)")
    for sql in ("SELECT n FROM jobs", "SELECT n FROM jobs ORDER BY n"):
        assert faults(sql, plan(db, sql, None))
