"""wrasse sweep, journal and explain, on jobs that really are stuck or old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cli.command_line import wrasse
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.cli.sweep import exit_code
from wrasse.clock import ManualClock, SystemClock
from wrasse.engine.report import Report
from wrasse.engine.turn import ENGINE_STATE, LoadedState, SweepState, save
from wrasse.ports.jobs import Complete, Job, JobQueue, WorkerInfo
from wrasse.runtime.backends import open_store
from wrasse.sweeps import CATALOGUE

pytestmark = pytest.mark.usefixtures("place")
T = TypeVar("T")
HEARTBEAT_TIMEOUT = timedelta(seconds=30)


def in_the_past(ago: timedelta, act: Callable[[JobQueue], Awaitable[T]]) -> T:
    """Does something to the store in this directory as if it were some time ago."""

    async def doing() -> T:
        store = await Sqlite.open("wrasse.db", ManualClock(SystemClock().now() - ago))
        try:
            return await act(store.jobs)
        finally:
            await store.close()

    return asyncio.run(doing())


async def left_behind(jobs: JobQueue) -> None:
    """A worker takes a job and is never heard of again."""
    await jobs.enqueue([Job("stuck", payload=b"x")], request="put")
    await jobs.heartbeat(WorkerInfo("w-1"), (), heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert (await jobs.claim(["low"], 1, worker="w-1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="take")).jobs


async def finished(jobs: JobQueue) -> None:
    """Three jobs are done."""
    await jobs.enqueue([Job(f"old-{n}", queue="old") for n in range(3)], request="put old")
    claimed = await jobs.claim(["old"], 3, worker="w-1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="take old")
    await jobs.settle([Complete(each.claim) for each in claimed.jobs], request="settle")


def test_a_dry_run_says_what_would_be_done_and_why_and_changes_nothing() -> None:
    in_the_past(timedelta(minutes=5), left_behind)
    before = wrasse("jobs", "show", "stuck", "--json").json
    answer = wrasse("sweep", "stuck-jobs", "--dry-run")
    assert answer.code == 0
    assert "requeue  stuck  worker w-1 silent for 3" in answer.out
    assert "rescue 1 of 3" in answer.out
    assert wrasse("jobs", "show", "stuck", "--json").json == before
    assert wrasse("journal", "--json").json["lines"] == []


def test_a_sweep_does_what_its_dry_run_planned() -> None:
    in_the_past(timedelta(minutes=5), left_behind)
    (planned,) = wrasse("sweep", "stuck-jobs", "--dry-run", "--json").json["reports"]
    (report,) = wrasse("sweep", "stuck-jobs", "--json").json["reports"]
    assert [(each["verb"], each["suspect"]) for each in planned["plan"]] == [("requeue", "stuck")]
    assert (report["seen"], report["done"], report["failed"], report["dry_run"]) == (1, 1, 0, False)
    assert wrasse("jobs", "show", "stuck", "--json").json["state"] == "ready"


def test_what_was_swept_stands_in_the_journal_and_can_be_filtered() -> None:
    in_the_past(timedelta(minutes=5), left_behind)
    wrasse("sweep")
    (line,) = wrasse("journal", "--json").json["lines"]
    assert (line["sweep"], line["verb"], line["suspect"], line["outcome"]) == ("stuck_jobs", "requeue", "stuck", "done")
    filters = {
        "--sweep=stuck-jobs": 1, "--sweep=finished_jobs": 0, f"--run={line['run']}": 1, "--run=other": 0,
        "--suspect=stuck": 1, "--suspect=x": 0, "--outcome=done": 1, "--outcome=conflict": 0, "--outcome=open": 0,
        "--since=1h": 1,
    }  # fmt: skip
    found = {each: len(wrasse("journal", each, "--json").json["lines"]) for each in filters}
    assert found == filters
    assert "worker w-1 silent" in wrasse("journal").out


def test_the_journal_is_paged_newest_first() -> None:
    in_the_past(timedelta(minutes=5), left_behind)
    wrasse("sweep")
    in_the_past(timedelta(days=3), finished)
    wrasse("sweep")
    first = wrasse("journal", "--limit=1", "--json").json
    second = wrasse("journal", "--limit=1", "--json", f"--after={first['next']}").json
    assert [first["lines"][0]["sweep"], second["lines"][0]["sweep"]] == ["finished_jobs", "stuck_jobs"]
    assert wrasse("journal", "--oldest", "--limit=1", "--json").json["lines"] == second["lines"]


def test_done_jobs_past_their_time_are_deleted() -> None:
    in_the_past(timedelta(days=3), finished)
    (report,) = wrasse("sweep", "finished-jobs", "--json").json["reports"]
    assert report["done"] == 3
    assert wrasse("jobs", "list", "--state=done", "--json").json["jobs"] == []


def test_sweeps_are_listed_with_what_they_remove(place: Path) -> None:
    (place / "wrasse.yaml").write_text("sweeps: {finished_jobs: {enabled: false}}")
    listed = {each["name"]: each for each in wrasse("sweep", "--list", "--json").json["sweeps"]}
    assert set(listed) == set(CATALOGUE)
    assert (listed["stuck_jobs"]["enabled"], listed["finished_jobs"]["enabled"]) == (True, False)
    assert "jobs of a worker without heartbeat" in wrasse("sweep", "--list").out


def test_a_sweep_that_is_off_runs_only_when_it_is_named(place: Path) -> None:
    (place / "wrasse.yaml").write_text("sweeps: {finished_jobs: {enabled: false}}")
    ran = [each["sweep"] for each in wrasse("sweep", "--json").json["reports"]]
    assert ran == ["expired_leases", "open_transactions", "spent_decisions", "dead_consumers", "stuck_jobs"]
    assert [each["sweep"] for each in wrasse("sweep", "finished_jobs", "--json").json["reports"]] == ["finished_jobs"]


def test_a_sweep_that_another_process_runs_is_refused_with_its_name() -> None:
    from wrasse.engine.loop import ENGINE_LEASES
    from wrasse.leases.manager import LeaseManager

    async def take() -> None:
        store = await open_store("sqlite:wrasse.db")
        lease_manager = LeaseManager(store.records(ENGINE_LEASES), SystemClock())
        assert await lease_manager.acquire("sweep/stuck_jobs", "other-host-7", timedelta(minutes=1))
        await store.close()

    asyncio.run(take())
    answer = wrasse("sweep", "--wait=0s", "--json")
    assert answer.code == 3
    assert "other-host-7" in answer.err
    assert "stuck_jobs" not in [each["sweep"] for each in answer.json["reports"]]
    assert "finished_jobs" in [each["sweep"] for each in answer.json["reports"]]


def test_a_sweep_whose_suspects_cannot_be_judged_fails() -> None:
    in_the_past(timedelta(days=3), finished)

    # A state that nobody wrote stands for any fault in the middle of a run.
    async def spoil() -> None:
        store = await open_store("sqlite:wrasse.db")
        assert await store.records(ENGINE_STATE).create("finished_jobs", b"not a state")
        await store.close()

    asyncio.run(spoil())
    answer = wrasse("sweep", "finished-jobs")
    assert answer.code == 1
    assert "not one that wrasse wrote" in answer.err


def test_a_sweep_that_a_guard_holds_back_exits_with_3_and_says_which() -> None:
    in_the_past(timedelta(minutes=5), left_behind)

    async def another_backend_was_seen_last() -> None:
        store = await open_store("sqlite:wrasse.db")
        state = SweepState(memory={"backend_restarted": '{"identity": "another", "evicted": 0}'})
        assert await save(store.records(ENGINE_STATE), "stuck_jobs", LoadedState(SweepState(), None), state)
        await store.close()

    asyncio.run(another_backend_was_seen_last())
    answer = wrasse("sweep", "stuck-jobs")
    assert answer.code == 3
    assert "stopped by backend_restarted" in answer.out
    assert wrasse("jobs", "show", "stuck", "--json").json["state"] == "running"


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ([], 0),
        ([{}], 0),
        ([{"stopped_by": "actions_max"}], 0),
        ([{}, {"failed": 1}], 1),
        ([{"stopped_by": "backend_down"}, {}], 1),
        ([{"stopped_by": "clock"}], 3),
        ([{"stopped_by": "clock"}, {"failed": 1}], 1),
    ],
)
def test_the_exit_code_of_a_sweep_tells_failed_from_paused(reports: list[dict[str, Any]], code: int) -> None:
    now = SystemClock().now()
    assert exit_code([Report("run", "stuck_jobs", now, now, **each) for each in reports]) == code


def test_explain_tells_of_a_stuck_job_where_it_is_and_what_comes_next() -> None:
    in_the_past(timedelta(minutes=5), left_behind)
    answer = wrasse("explain", "stuck", "--json").json
    assert answer["job"]["state"] == "running"
    assert "stuck_jobs will requeue it with its next run" in answer["next"][0]
    assert "next  stuck_jobs will requeue it" in wrasse("explain", "stuck").out


def test_explain_tells_what_was_done_to_a_job() -> None:
    in_the_past(timedelta(minutes=5), left_behind)
    wrasse("sweep")
    answer = wrasse("explain", "stuck", "--json").json
    assert [line["verb"] for line in answer["journal"]] == ["requeue"]
    assert answer["job"]["history"][0]["reason"] == "worker_died"
    assert "until one is started" in answer["next"][0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--delay=1h",), "scheduled and becomes ready in 59m59s"),
        (("--queue=nobody",), "no worker with these settings serves the queue nobody"),
        ((), "no worker is alive"),
    ],
)
def test_explain_tells_what_a_waiting_job_waits_for(args: tuple[str, ...], words: str) -> None:
    wrasse("jobs", "enqueue", "--id=a", "x", *args)
    assert any(words in line for line in wrasse("explain", "a", "--json").json["next"])


def test_explain_tells_when_a_finished_job_is_forgotten() -> None:
    wrasse("jobs", "enqueue", "--id=a", "x")
    wrasse("jobs", "cancel", "a")
    text = " ".join(wrasse("explain", "a", "--json").json["next"])
    assert "wrasse jobs requeue a" in text
    assert "finished_jobs deletes it in 89d23h" in text


def test_explain_knows_leases_and_runs() -> None:
    import wrasse as package

    with package.sync.connect("sqlite:wrasse.db") as app, app.lease("orders/42", owner="me") as lease:
        answer = wrasse("explain", "orders/42", "--json").json
        assert (answer["lease"]["owner"], answer["lease"]["token"]) == ("me", lease.token)
    in_the_past(timedelta(minutes=5), left_behind)
    (report,) = wrasse("sweep", "stuck-jobs", "--json").json["reports"]
    assert [line["suspect"] for line in wrasse("explain", report["run"], "--json").json["journal"]] == ["stuck"]


def test_explain_of_an_unknown_id_is_a_usage_error() -> None:
    answer = wrasse("explain", "nothing")
    assert (answer.code, "nothing is known about 'nothing'" in answer.err) == (2, True)
