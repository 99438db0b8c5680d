"""Finished jobs: forgotten after their time, never before, and never anything that is not finished."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from faults import FaultyJobs, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.run import RunBudget, RunContext, run_once
from wrasse.engine.sweep import Action, Keep
from wrasse.ids import Ids
from wrasse.ports.jobs import Complete, DeadLetterJob, Job, JobFilter, JobInfo, JobState, Reason, RequeueDead
from wrasse.ports.journal import LineFilter
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.finished_jobs import FinishedJobs

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
DAY = timedelta(days=1)
SPANS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=200))


class JobsScene:
    """A queue with jobs that ended well and jobs that did not."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.jobs = self.memory.jobs
        self.frame = RunContext(self.memory.journal, self.clock, Ids(self.clock))
        self.sweep = FinishedJobs(self.jobs)

    async def finished(self, state: JobState, *jobs: Job) -> None:
        request = f"{state}-{jobs[0].id}-{len(jobs)}"
        await self.jobs.enqueue(jobs, request=f"put-{request}")
        claimed = await self.jobs.claim(
            ["low"], len(jobs), worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"take-{request}"
        )
        claims = [job.claim for job in claimed.jobs]
        ends = [Complete(claim) if state is JobState.DONE else DeadLetterJob(claim, Reason.FAILED) for claim in claims]
        await self.jobs.settle(ends, request=f"settle-{request}")

    async def ids(self, state: JobState) -> list[str]:
        return [info.id for info in await self.jobs.page(state, JobFilter(), None, 1_000)]


@pytest.fixture
def scene() -> JobsScene:
    return JobsScene()


def _state(state: JobState, finished_at: datetime | None) -> JobInfo:
    return JobInfo("j", "", "low", "low", 0, state, 3, "n", 1, 0, 0, 0, T0, finished_at=finished_at)


@given(state=st.sampled_from(JobState), kept=SPANS, age=SPANS)
def test_only_what_is_finished_and_old_enough_is_deleted(state: JobState, kept: timedelta, age: timedelta) -> None:
    sweep = FinishedJobs(Memory().jobs, done_kept=kept, dead_kept=kept)
    finished = state in (JobState.DONE, JobState.DEAD)
    found = sweep.decide(_state(state, T0 if finished else None), T0 + age)
    assert isinstance(found, Action) is (finished and age >= kept)


@given(state=st.sampled_from([JobState.DONE, JobState.DEAD]), age=SPANS, later=SPANS)
def test_a_job_once_old_enough_stays_so_as_time_passes(state: JobState, age: timedelta, later: timedelta) -> None:
    sweep = FinishedJobs(Memory().jobs)
    if isinstance(sweep.decide(_state(state, T0), T0 + age), Action):
        assert isinstance(sweep.decide(_state(state, T0), T0 + age + later), Action)


def test_a_job_without_the_time_it_finished_is_kept() -> None:
    assert FinishedJobs(Memory().jobs).decide(_state(JobState.DONE, None), T0) == Keep("not finished")


async def test_done_jobs_are_forgotten_after_a_day_and_dead_ones_after_three_months(scene: JobsScene) -> None:
    await scene.finished(JobState.DONE, Job("well"))
    await scene.finished(JobState.DEAD, Job("badly"))
    scene.clock.advance(DAY)
    assert (await run_once(scene.sweep, scene.frame)).done == 1
    assert (await scene.ids(JobState.DONE), await scene.ids(JobState.DEAD)) == ([], ["badly"])
    scene.clock.advance(89 * DAY)
    assert (await run_once(scene.sweep, scene.frame)).done == 1
    assert await scene.ids(JobState.DEAD) == []


async def test_what_is_ready_or_held_is_not_even_looked_at(scene: JobsScene) -> None:
    await scene.jobs.enqueue([Job("held"), Job("ready")], request="p")
    await scene.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t")
    scene.clock.advance(365 * DAY)
    assert (await run_once(scene.sweep, scene.frame)).seen == 0


async def test_a_dead_job_made_ready_between_look_and_change_stays(scene: JobsScene) -> None:
    await scene.finished(JobState.DEAD, Job("a"))
    scene.clock.advance(100 * DAY)
    page = await scene.sweep.find(None, 10)
    actions = [found for item in page if isinstance(found := scene.sweep.decide(item, page.at), Action)]
    await scene.jobs.move([RequeueDead(page.items[0].claim)])
    assert list(await scene.sweep.apply(actions)) == [Outcome.CONFLICT]
    assert await scene.ids(JobState.READY) == ["a"]


async def test_a_lasting_id_outlives_its_job(scene: JobsScene) -> None:
    await scene.finished(JobState.DONE, Job("once", lasting=True), Job("again"))
    scene.clock.advance(DAY)
    await run_once(scene.sweep, scene.frame)
    puts = await scene.jobs.enqueue([Job("once", lasting=True), Job("again")], request="p2")
    assert [put.new for put in puts] == [False, True]


async def test_a_large_backlog_is_worked_off_run_by_run_from_the_oldest(scene: JobsScene) -> None:
    for start in range(0, 1_500, 500):
        await scene.finished(JobState.DONE, *(Job(f"j{n:04}") for n in range(start, start + 500)))
        scene.clock.advance(timedelta(seconds=1))
    scene.clock.advance(DAY)
    cursor, done = None, []
    for _ in range(3):
        report = await run_once(scene.sweep, scene.frame, cursor=cursor, budget=RunBudget(actions_max=700))
        cursor = report.cursor
        done.append(report.done)
    assert done == [700, 700, 100]


async def test_a_run_reads_what_is_due_and_not_what_is_stored(scene: JobsScene) -> None:
    for state in (JobState.DONE, JobState.DEAD):
        await scene.finished(state, *(Job(f"old-{state}-{n}") for n in range(3)))
    scene.clock.advance(DAY)
    for state in (JobState.DONE, JobState.DEAD):
        await scene.finished(state, *(Job(f"new-{state}-{n}") for n in range(900)))
    script = Script({})
    watched = FinishedJobs(FaultyJobs(scene.jobs, Network(script)), dead_kept=DAY, batch_max=100)
    report = await run_once(watched, scene.frame)
    assert (report.seen, report.done) == (6, 6)
    assert script.calls == ["page", "delete", "page", "page", "delete"]


async def test_a_batch_of_deletes_has_one_line_in_the_journal(scene: JobsScene) -> None:
    await scene.finished(JobState.DONE, *(Job(f"j{n}") for n in range(40)))
    scene.clock.advance(DAY)
    await run_once(scene.sweep, scene.frame)
    lines = await scene.memory.journal.page(LineFilter(), None, 10)
    assert [(x.intent.verb, x.intent.count, x.intent.reason) for x in lines] == [
        ("delete", 40, "done for longer than 1d")
    ]


async def test_a_dry_run_plans_exactly_what_the_run_then_deletes(scene: JobsScene) -> None:
    await scene.finished(JobState.DONE, *(Job(f"a{n}") for n in range(7)))
    await scene.finished(JobState.DEAD, *(Job(f"b{n}") for n in range(7)))
    scene.clock.advance(100 * DAY)
    plan = await run_once(scene.sweep, scene.frame, dry_run=True)
    assert len(await scene.ids(JobState.DONE)) == 7
    done = await run_once(scene.sweep, scene.frame)
    assert (plan.planned, plan.cursor) == (done.done, done.cursor)
    assert {line.suspect for line in plan.plan} == {f"{c}{n}" for c in "ab" for n in range(7)}


def test_nothing_is_deleted_before_its_time_by_an_odd_setting() -> None:
    sweep = replace(FinishedJobs(Memory().jobs), done_kept=timedelta(days=36_500))
    assert isinstance(sweep.decide(_state(JobState.DONE, T0), T0 + 1_000 * DAY), Keep)
