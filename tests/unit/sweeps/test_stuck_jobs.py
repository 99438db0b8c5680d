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


class JobsScene:
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
        return await self.claim(worker, len(ids))

    async def claim(self, worker: str, limit: int = 1) -> tuple[ClaimedJob, ...]:
        request = f"take-{next(self._takes)}"
        claimed = await self.jobs.claim(
            ["low"], limit, worker=worker, heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request
        )
        return claimed.jobs

    async def state(self, id: str) -> JobState:
        record = await self.jobs.get(id)
        assert record is not None
        return record.info.state


@pytest.fixture
def scene() -> JobsScene:
    return JobsScene()


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


async def test_a_beating_worker_keeps_its_job(scene: JobsScene) -> None:
    (job,) = await scene.held("a")
    for _ in range(10):
        scene.clock.advance(HEARTBEAT_TIMEOUT - SECOND)
        await scene.jobs.heartbeat(WorkerInfo("w"), [job.claim], heartbeat_timeout=HEARTBEAT_TIMEOUT)
        await run_once(scene.sweep, scene.frame)
    assert await scene.state("a") is JobState.RUNNING


async def test_a_silent_workers_job_is_ready_again_with_the_reason_in_its_history(scene: JobsScene) -> None:
    await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    report = await run_once(scene.sweep, scene.frame)
    record = await scene.jobs.get("a")
    assert record is not None
    assert (report.done, record.info.state, record.info.rescues) == (1, JobState.READY, 1)
    assert [(a.reason, a.error) for a in record.history] == [(Reason.WORKER_DIED, "worker w silent for 30 s")]


async def test_a_waiting_job_is_never_touched_however_long(scene: JobsScene) -> None:
    await scene.jobs.enqueue([Job("a"), Job("b", delay=timedelta(days=1))], request="r")
    scene.clock.advance(timedelta(days=365))
    report = await run_once(scene.sweep, scene.frame)
    assert (report.seen, await scene.state("a"), await scene.state("b")) == (0, JobState.READY, JobState.READY)


async def test_a_job_that_kills_its_workers_is_dead_after_its_rescue_budget(scene: JobsScene) -> None:
    await scene.held("poison")
    starts = 1
    for _ in range(10):
        scene.clock.advance(HEARTBEAT_TIMEOUT)
        await run_once(scene.sweep, scene.frame)
        starts += len(await scene.claim("w"))
    record = await scene.jobs.get("poison")
    assert record is not None
    assert (starts, record.info.state, record.info.reason) == (4, JobState.DEAD, Reason.WORKER_DIED)


async def test_a_job_finished_between_look_and_change_stays_finished(scene: JobsScene) -> None:
    (job,) = await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    page = await scene.sweep.find(None, 10)
    actions = [found for item in page if isinstance(found := scene.sweep.decide(item, page.at), Action)]
    await scene.jobs.settle([Complete(job.claim)], request="s")
    assert list(await scene.sweep.apply(actions)) == [Outcome.CONFLICT]
    assert await scene.state("a") is JobState.DONE


async def test_a_job_beaten_between_look_and_change_stays_held(scene: JobsScene) -> None:
    (job,) = await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    page = await scene.sweep.find(None, 10)
    actions = [found for item in page if isinstance(found := scene.sweep.decide(item, page.at), Action)]
    await scene.jobs.heartbeat(WorkerInfo("w"), [job.claim], heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert list(await scene.sweep.apply(actions)) == [Outcome.CONFLICT]
    assert await scene.state("a") is JobState.RUNNING


async def test_the_late_finish_of_a_robbed_worker_is_refused(scene: JobsScene) -> None:
    (job,) = await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    await run_once(scene.sweep, scene.frame)
    assert list(await scene.jobs.settle([Complete(job.claim)], request="late")) == [Outcome.CONFLICT]


async def test_two_runs_in_lockstep_rescue_each_job_once(scene: JobsScene) -> None:
    ids = [f"j{number}" for number in range(50)]
    await scene.held(*ids)
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    slow = StuckJobs(scene.jobs, batch_max=7)
    reports = await asyncio.gather(run_once(scene.sweep, scene.frame), run_once(slow, scene.frame))
    records = [await scene.jobs.get(id) for id in ids]
    assert [record.info.rescues for record in records if record] == [1] * 50
    assert sum(report.done for report in reports) == 50


async def test_one_stuck_job_behind_ten_thousand_finished_ones_is_found_in_the_first_run(scene: JobsScene) -> None:
    for start in range(0, 10_000, 1_000):
        claimed = await scene.held(*(f"j{number}" for number in range(start, start + 1_000)))
        await scene.jobs.settle([Complete(job.claim) for job in claimed], request=f"s{start}")
    await scene.held("stuck")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    report = await run_once(scene.sweep, scene.frame)
    assert (report.seen, report.done) == (1, 1)


async def test_a_dry_run_names_every_move_and_its_reason_and_makes_none(scene: JobsScene) -> None:
    await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    report = await run_once(scene.sweep, scene.frame, dry_run=True)
    assert [(line.verb, line.suspect, line.reason) for line in report.plan] == [
        ("requeue", "a", "worker w silent for 30 s; rescue 1 of 3")
    ]
    assert await scene.state("a") is JobState.RUNNING


async def test_what_a_lost_reply_left_open_is_found_out_from_the_jobs_history(scene: JobsScene) -> None:
    await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    lossy = StuckJobs(FaultyJobs(scene.jobs, Network(Script({0: LOST_REPLY}, only="move"))))
    report = await run_once(lossy, scene.frame)
    assert (report.unknown, report.stopped_by) == (1, "backend_down")
    scene.clock.advance(scene.frame.open_after)
    await run_once(scene.sweep, scene.frame)
    lines = await scene.memory.journal.page(LineFilter(), None, 10)
    assert [line.outcome for line in lines] == [Outcome.DONE]


async def test_an_intent_that_never_became_a_move_is_not_taken_for_an_earlier_rescue(scene: JobsScene) -> None:
    await scene.held("a")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    await run_once(scene.sweep, scene.frame)
    (job,) = await scene.claim("w")
    scene.clock.advance(HEARTBEAT_TIMEOUT)
    lossy = StuckJobs(FaultyJobs(scene.jobs, Network(Script({0: LOST_REQUEST}, only="move"))))
    await run_once(lossy, scene.frame)
    await scene.jobs.heartbeat(WorkerInfo("w"), [job.claim], heartbeat_timeout=timedelta(hours=1))
    scene.clock.advance(scene.frame.open_after)
    await run_once(scene.sweep, scene.frame)
    lines = await scene.memory.journal.page(LineFilter(), None, 10)
    assert [line.outcome for line in lines] == [Outcome.DONE, Outcome.CONFLICT]


@pytest.mark.parametrize("reason", [Reason.UNROUTABLE, Reason.INVALID_PAYLOAD])
def test_a_job_that_no_queue_would_be_right_for_is_buried_with_that_reason(scene: JobsScene, reason: Reason) -> None:
    suspect = replace(HELD, heartbeat_at=T0, deadline=T0 + HEARTBEAT_TIMEOUT, reason=reason)
    early, late = scene.sweep.decide(suspect, T0), scene.sweep.decide(suspect, T0 + HEARTBEAT_TIMEOUT)
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
async def test_strays_are_searched_before_every_run_and_left_alone_in_a_dry_one(
    scene: JobsScene, dry_run: bool
) -> None:
    strays = _Strays()
    sweep = replace(scene.sweep, heartbeat_timeout=SECOND, search=StraySearch(strays, scene.clock))
    await run_once(sweep, scene.frame, dry_run=dry_run)
    assert strays.scans == [(SECOND, dry_run)]
