"""Stuck jobs: what is held by the living stays, what is held by the silent comes back, and nothing else is touched."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given, strategies as st

from faults import LOST_REPLY, LOST_REQUEST, FaultyJobs, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.run import RunContext, run_once
from wrasse.engine.sweep import Action, Keep
from wrasse.ids import Ids
from wrasse.ports.inconsistency import StrayScan
from wrasse.ports.jobs import ClaimedJob, Complete, Job, JobInfo, JobState, Reason, WorkerInfo
from wrasse.ports.journal import LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.ports.rules.job_transitions import rescue
from wrasse.sweeps.stuck_jobs import StraySearch, StuckJobs

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
SECONDS = st.integers(min_value=0, max_value=120).map(lambda s: timedelta(seconds=s))
HELD = JobInfo("j", "", "low", "low", 0, JobState.RUNNING, 3, "n", 1, 0, 0, 0, T0, worker="w", claimed_at=T0)


class Yard:
    """A queue, and workers that may stop its heartbeat."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.jobs = self.memory.jobs
        self.frame = RunContext(self.memory.journal, self.clock, Ids(self.clock))
        self.sweep = StuckJobs(self.jobs)
        self._takes = count()

    async def held(self, *ids: str, worker: str = "w") -> tuple[ClaimedJob, ...]:
        await self.jobs.enqueue([Job(id) for id in ids], request=f"put-{ids}")
        return await self.take(worker, len(ids))

    async def take(self, worker: str, limit: int = 1) -> tuple[ClaimedJob, ...]:
        request = f"take-{next(self._takes)}"
        claimed = await self.jobs.claim(
            ["low"], limit, worker=worker, heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request
        )
        return claimed.jobs

    async def place(self, id: str) -> JobState:
        record = await self.jobs.get(id)
        assert record is not None
        return record.info.state


@pytest.fixture
def yard() -> Yard:
    return Yard()


def _held(beat: timedelta, until: timedelta) -> JobInfo:
    return replace(HELD, heartbeat_at=T0 + beat, deadline=T0 + until)


@given(beat=SECONDS, until=SECONDS, at=SECONDS)
def test_a_job_within_its_deadline_or_its_silence_is_kept(beat: timedelta, until: timedelta, at: timedelta) -> None:
    found = StuckJobs(Memory().jobs).decide(_held(beat, until), T0 + at)
    assert isinstance(found, Keep) is (at < until or at - beat < HEARTBEAT_TIMEOUT)


@given(beat=SECONDS, until=SECONDS, at=SECONDS, later=SECONDS)
def test_a_job_once_stuck_stays_stuck_as_time_passes(
    beat: timedelta, until: timedelta, at: timedelta, later: timedelta
) -> None:
    sweep, job = StuckJobs(Memory().jobs), _held(beat, until)
    if isinstance(sweep.decide(job, T0 + at), Action):
        assert isinstance(sweep.decide(job, T0 + at + later), Action)


@given(st.integers(min_value=0, max_value=10))
def test_a_job_is_buried_when_its_rescues_are_spent_and_not_before(rescues: int) -> None:
    found = StuckJobs(Memory().jobs).decide(
        replace(_held(timedelta(0), HEARTBEAT_TIMEOUT), rescues=rescues), T0 + HEARTBEAT_TIMEOUT
    )
    assert isinstance(found, Action)
    assert found.verb == ("dead_letter" if rescues >= 3 else "requeue")


@pytest.mark.parametrize(("failures", "verb"), [(0, "requeue"), (1, "dead_letter")])
def test_a_job_with_a_budget_of_its_own_is_rescued_as_its_queue_would_rescue_it(failures: int, verb: str) -> None:
    job = replace(_held(timedelta(0), HEARTBEAT_TIMEOUT), failures=failures, rescues=1, retries_max=2)
    found = StuckJobs(Memory().jobs).decide(job, T0 + HEARTBEAT_TIMEOUT)
    assert isinstance(found, Action)
    assert (found.verb, found.change) == (verb, rescue(job, T0 + HEARTBEAT_TIMEOUT, 3))


async def test_a_beating_worker_keeps_its_job(yard: Yard) -> None:
    (job,) = await yard.held("a")
    for _ in range(10):
        yard.clock.advance(HEARTBEAT_TIMEOUT - SECOND)
        await yard.jobs.heartbeat(WorkerInfo("w"), [job.claim], heartbeat_timeout=HEARTBEAT_TIMEOUT)
        await run_once(yard.sweep, yard.frame)
    assert await yard.place("a") is JobState.RUNNING


async def test_a_silent_workers_job_is_ready_again_with_the_reason_in_its_history(yard: Yard) -> None:
    await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    report = await run_once(yard.sweep, yard.frame)
    record = await yard.jobs.get("a")
    assert record is not None
    assert (report.done, record.info.state, record.info.rescues) == (1, JobState.READY, 1)
    assert [(a.reason, a.error) for a in record.history] == [(Reason.WORKER_DIED, "worker w silent for 30 s")]


async def test_a_waiting_job_is_never_touched_however_long(yard: Yard) -> None:
    await yard.jobs.enqueue([Job("a"), Job("b", delay=timedelta(days=1))], request="r")
    yard.clock.advance(timedelta(days=365))
    report = await run_once(yard.sweep, yard.frame)
    assert (report.seen, await yard.place("a"), await yard.place("b")) == (0, JobState.READY, JobState.READY)


async def test_a_job_that_kills_its_workers_is_dead_after_its_rescue_budget(yard: Yard) -> None:
    await yard.held("poison")
    starts = 1
    for _ in range(10):
        yard.clock.advance(HEARTBEAT_TIMEOUT)
        await run_once(yard.sweep, yard.frame)
        starts += len(await yard.take("w"))
    record = await yard.jobs.get("poison")
    assert record is not None
    assert (starts, record.info.state, record.info.reason) == (4, JobState.DEAD, Reason.WORKER_DIED)


async def test_a_job_finished_between_look_and_change_stays_finished(yard: Yard) -> None:
    (job,) = await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    page = await yard.sweep.find(None, 10)
    actions = [found for item in page if isinstance(found := yard.sweep.decide(item, page.at), Action)]
    await yard.jobs.settle([Complete(job.claim)], request="s")
    assert list(await yard.sweep.apply(actions)) == [Outcome.CONFLICT]
    assert await yard.place("a") is JobState.DONE


async def test_a_job_beaten_between_look_and_change_stays_held(yard: Yard) -> None:
    (job,) = await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    page = await yard.sweep.find(None, 10)
    actions = [found for item in page if isinstance(found := yard.sweep.decide(item, page.at), Action)]
    await yard.jobs.heartbeat(WorkerInfo("w"), [job.claim], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert list(await yard.sweep.apply(actions)) == [Outcome.CONFLICT]
    assert await yard.place("a") is JobState.RUNNING


async def test_the_late_finish_of_a_robbed_worker_is_refused(yard: Yard) -> None:
    (job,) = await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    await run_once(yard.sweep, yard.frame)
    assert list(await yard.jobs.settle([Complete(job.claim)], request="late")) == [Outcome.CONFLICT]


async def test_two_runs_in_lockstep_rescue_each_job_once(yard: Yard) -> None:
    ids = [f"j{number}" for number in range(50)]
    await yard.held(*ids)
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    slow = StuckJobs(yard.jobs, batch_max=7)
    reports = await asyncio.gather(run_once(yard.sweep, yard.frame), run_once(slow, yard.frame))
    records = [await yard.jobs.get(id) for id in ids]
    assert [record.info.rescues for record in records if record] == [1] * 50
    assert sum(report.done for report in reports) == 50


async def test_one_stuck_job_behind_ten_thousand_finished_ones_is_found_in_the_first_run(yard: Yard) -> None:
    for start in range(0, 10_000, 1_000):
        claimed = await yard.held(*(f"j{number}" for number in range(start, start + 1_000)))
        await yard.jobs.settle([Complete(job.claim) for job in claimed], request=f"s{start}")
    await yard.held("stuck")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    report = await run_once(yard.sweep, yard.frame)
    assert (report.seen, report.done) == (1, 1)


async def test_a_dry_run_names_every_move_and_its_reason_and_makes_none(yard: Yard) -> None:
    await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    report = await run_once(yard.sweep, yard.frame, dry_run=True)
    assert [(line.verb, line.suspect, line.reason) for line in report.plan] == [
        ("requeue", "a", "worker w silent for 30 s; rescue 1 of 3")
    ]
    assert await yard.place("a") is JobState.RUNNING


async def test_what_a_lost_reply_left_open_is_found_out_from_the_jobs_history(yard: Yard) -> None:
    await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    lossy = StuckJobs(FaultyJobs(yard.jobs, Network(Script({0: LOST_REPLY}, only="move"))))
    report = await run_once(lossy, yard.frame)
    assert (report.unknown, report.stopped_by) == (1, "backend_down")
    yard.clock.advance(yard.frame.open_after)
    await run_once(yard.sweep, yard.frame)
    lines = await yard.memory.journal.page(LineFilter(), None, 10)
    assert [line.outcome for line in lines] == [Outcome.DONE]


async def test_an_intent_that_never_became_a_move_is_not_taken_for_an_earlier_rescue(yard: Yard) -> None:
    await yard.held("a")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    await run_once(yard.sweep, yard.frame)
    (job,) = await yard.take("w")
    yard.clock.advance(HEARTBEAT_TIMEOUT)
    lossy = StuckJobs(FaultyJobs(yard.jobs, Network(Script({0: LOST_REQUEST}, only="move"))))
    await run_once(lossy, yard.frame)
    await yard.jobs.heartbeat(WorkerInfo("w"), [job.claim], heartbeat_timeout=timedelta(hours=1))
    yard.clock.advance(yard.frame.open_after)
    await run_once(yard.sweep, yard.frame)
    lines = await yard.memory.journal.page(LineFilter(), None, 10)
    assert [line.outcome for line in lines] == [Outcome.DONE, Outcome.CONFLICT]


@pytest.mark.parametrize("reason", [Reason.UNROUTABLE, Reason.INVALID_PAYLOAD])
def test_a_job_that_no_queue_would_be_right_for_is_buried_with_that_reason(yard: Yard, reason: Reason) -> None:
    suspect = replace(HELD, heartbeat_at=T0, deadline=T0 + HEARTBEAT_TIMEOUT, reason=reason)
    early, late = yard.sweep.decide(suspect, T0), yard.sweep.decide(suspect, T0 + HEARTBEAT_TIMEOUT)
    assert isinstance(late, Action)
    assert (early, late.verb, late.change.reason) == (Keep("beating"), "dead_letter", reason)


class _Strays:
    """Nothing but a note of who scanned."""

    def __init__(self) -> None:
        self.scans: list[tuple[timedelta, bool]] = []

    async def scan(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        self.scans.append((heartbeat_timeout, dry))
        return StrayScan(0, 0, 0, "0", ended=True)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_strays_are_searched_before_every_run_and_left_alone_in_a_dry_one(yard: Yard, dry_run: bool) -> None:
    strays = _Strays()
    sweep = replace(yard.sweep, heartbeat_timeout=SECOND, search=StraySearch(strays, yard.clock))
    await run_once(sweep, yard.frame, dry_run=dry_run)
    assert strays.scans == [(SECOND, dry_run)]
