"""Stuck tasks: one budget for all retries, and a deadline that is the record's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from unit.jobs.stream_tasks.scene import MAIL, STEP, Apart, TaskWorld
from wrasse.backends.memory.connect import Memory
from wrasse.engine.guard import DOCUMENT_LOCK, OWNER, PlainLockGuard
from wrasse.engine.run import RunContext, run_once
from wrasse.engine.sweep import Action, Keep
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ids import Ids
from wrasse.jobs.stream_tasks.events import EVERY
from wrasse.ports.jobs import DeadLetterJob, JobInfo, JobState, Requeue
from wrasse.ports.records import Collection, Records, Written
from wrasse.sweeps.stuck_jobs import RETRIES_MAX, StuckJobs

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SWEEP = StuckJobs(Memory().jobs, heartbeat_timeout=timedelta(0), retries={"mail": 2})

counts = st.integers(0, 8)
infos = st.builds(
    lambda queue, failures, rescues, most: JobInfo(
        "j", "", queue, "", 0, JobState.RUNNING, 3, "n", 1, failures, rescues, 0, T0,
        worker="w", claimed_at=T0, heartbeat_at=T0, deadline=T0 + STEP, retries_max=most,
    ),
    st.sampled_from(["mail", "unheard-of"]),
    counts,
    counts,
    st.none() | counts,
)  # fmt: skip


@given(info=infos, passed=st.integers(0, 90))
def test_a_task_is_stuck_when_its_deadline_has_passed_and_never_before(info: JobInfo, passed: int) -> None:
    verdict = SWEEP.decide(info, T0 + timedelta(seconds=passed))

    assert isinstance(verdict, Keep) == (passed < STEP.total_seconds())


@given(info=infos)
def test_a_task_fails_once_its_retries_are_spent_whatever_they_were_spent_on(info: JobInfo) -> None:
    verdict = SWEEP.decide(info, T0 + STEP)

    most = info.retries_max if info.retries_max is not None else {"mail": 2}.get(info.queue, RETRIES_MAX)
    assert isinstance(verdict, Action)
    assert isinstance(verdict.change, DeadLetterJob if info.failures + info.rescues >= most else Requeue)


async def test_a_report_is_told_when_something_changed_and_every_ten_minutes() -> None:
    world = TaskWorld()
    await world.sweep.prepare()
    await world.sweep.prepare()
    first = len(await world.reports())
    world.clock.advance(EVERY)

    await world.sweep.prepare()

    assert (first, len(await world.reports())) == (1, 2)
    assert (await world.reports())[0] == {
        "retried": 0, "failed": 0, "streams_trimmed": 0, "entries_trimmed": 0, "source": "watcher",
    }  # fmt: skip


class Locks:
    """One plain lock."""

    def __init__(self, holder: str = "") -> None:
        self.holder_name = holder

    async def hold(self, key: str, owner: str, ttl: timedelta) -> str:
        assert (key, ttl) == (DOCUMENT_LOCK, STEP)
        self.holder_name = self.holder_name or owner
        return self.holder_name

    async def holder(self, key: str) -> str:
        return self.holder_name

    async def release(self, key: str, owner: str) -> bool:
        released = self.holder_name == owner
        self.holder_name = "" if released else self.holder_name
        return released


async def test_a_run_is_held_while_another_program_has_the_lock() -> None:
    ours, theirs = PlainLockGuard(Locks(), STEP), PlainLockGuard(Locks("rust-1"), STEP)

    assert (await ours.pause_reason(), await ours.pause_reason(), await theirs.pause_reason()) == (
        None,
        None,
        f"{DOCUMENT_LOCK} is held by rust-1",
    )
    assert OWNER != "rust-1"


class Stolen(Locks):
    """A lock that another program has from the third time on that we ask."""

    asked = 0

    async def hold(self, key: str, owner: str, ttl: timedelta) -> str:
        self.asked += 1
        return owner if self.asked < 3 else "rust-1"


async def test_a_run_that_loses_the_lock_on_the_way_stops() -> None:
    world = TaskWorld()
    for number in range(3):
        await world.client.enqueue(f"task_{number}")
    await world.client.claim(3, heartbeat_timeout=STEP)
    world.clock.advance(2 * STEP)
    sweep = replace(world.sweep, batch_max=1)

    frame = RunContext(world.memory.journal, world.clock, Ids(world.clock))
    report = await run_once(sweep, frame, guards=[PlainLockGuard(Stolen(), STEP)])

    assert (report.done, report.stopped_by) == (1, PlainLockGuard.name)


@pytest.mark.parametrize("holder", ["", "rust-1"])
async def test_a_run_releases_the_lock_at_its_end_unless_another_program_has_it(holder: str) -> None:
    world, locks = TaskWorld(), Locks(holder)
    frame = RunContext(world.memory.journal, world.clock, Ids(world.clock))
    report = await run_once(world.sweep, frame, guards=[PlainLockGuard(locks, STEP)])
    assert (locks.holder_name, report.stopped_by) == (holder, PlainLockGuard.name if holder else None)


class Unreachable(Locks):
    async def release(self, key: str, owner: str) -> bool:
        raise StoreUnavailable("no answer", do="wait")


async def test_a_run_whose_lock_cannot_be_released_is_told_as_it_went() -> None:
    world = TaskWorld()
    frame = RunContext(world.memory.journal, world.clock, Ids(world.clock))
    assert (await run_once(world.sweep, frame, guards=[PlainLockGuard(Unreachable(), STEP)])).stopped_by is None


@pytest.mark.parametrize("holder", ["", "rust-1"])
async def test_a_dry_run_takes_no_lock_and_tells_who_has_it(holder: str) -> None:
    world, locks = TaskWorld(), Locks(holder)
    frame = RunContext(world.memory.journal, world.clock, Ids(world.clock))
    report = await run_once(world.sweep, frame, guards=[PlainLockGuard(locks, STEP)], dry_run=True)
    assert (locks.holder_name, report.stopped_by) == (holder, PlainLockGuard.name if holder else None)


async def test_a_look_at_what_is_stuck_changes_nothing() -> None:
    world = TaskWorld()
    await world.client.enqueue("task_1")
    await world.client.claim(heartbeat_timeout=STEP)
    world.clock.advance(2 * STEP)
    before = await world.fields("task_1")

    await world.sweep.prepare_dry()
    page = await world.sweep.find(None, 10)

    assert ([info.queue for info in page], await world.fields("task_1")) == ([MAIL], before)


class DamagedWorld(TaskWorld):
    """Tasks of which one cannot be written any more."""

    damaged = ""

    def _records(self, collection: Collection) -> Records:
        world, found = self, super()._records(collection)

        class Damaged(Apart):
            emits = True

            async def put(self, key: str, value: bytes, **rest: object) -> Written:
                if key == world.damaged:
                    raise StoreBroken("a record that nobody can write", do="look at it")
                return await found.put(key, value, **rest)  # type: ignore[arg-type]

        return Damaged(found)  # type: ignore[return-value]


async def test_a_task_whose_record_cannot_be_written_does_not_stop_the_others() -> None:
    world = DamagedWorld()
    for id in ("task_1", "task_2", "task_3"):
        await world.client.enqueue(id)
        await world.client.claim(heartbeat_timeout=STEP)
    world.clock.advance(2 * STEP)
    world.damaged = f"{MAIL}:task_2"

    report = await run_once(world.sweep, RunContext(world.memory.journal, world.clock, Ids(world.clock)))

    states = [(await world.fields(id))["state"] for id in ("task_1", "task_2", "task_3")]
    assert (report.done, report.failed, states) == (2, 1, ["pending", "claimed", "pending"])
    assert len(await world.queued()) == 5
