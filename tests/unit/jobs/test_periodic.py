"""Which slots are due, and that each is put once: by decision, and on a backend with several at it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from faults import CRASH, LOST_REPLY, LOST_REQUEST, Crashed, Fault, FaultyJobs, FaultyRecords, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import ConfigError, StoreUnavailable
from wrasse.jobs.periodic import SLOTS_MAX, Every, Missed, Periodic, due_slots, newest_slots, parse_cron, read_when
from wrasse.jobs.producer import Producer, ProducerOptions
from wrasse.jobs.scheduler import PERIODIC, PeriodicScheduler
from wrasse.ports.jobs import JobFilter, JobState
from wrasse.ports.records import Records

START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EVERY = Every(5 * MINUTE)

moments = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
intervals = st.integers(1, 100_000).map(lambda seconds: Every(timedelta(seconds=seconds)))


@given(intervals, moments)
def test_the_slots_of_an_interval_are_its_multiples(every: Every, at: datetime) -> None:
    following = every.next_after(at)
    assert at < following <= at + every.interval
    assert (following - datetime(1970, 1, 1, tzinfo=UTC)) % every.interval == timedelta(0)


@given(intervals, moments, st.timedeltas(timedelta(0), timedelta(days=3)), st.integers(1, 50))
def test_the_newest_slots_are_the_end_of_all_slots(every: Every, last: datetime, by: timedelta, limit: int) -> None:
    now = last + by
    first = every.next_after(last)
    count = (now - first) // every.interval + 1 if first <= now else 0
    newest = newest_slots(last, now, every, limit)
    assert len(newest) == min(limit, count)
    assert all(last < slot <= now for slot in newest)
    assert not newest or every.next_after(newest[-1]) > now


@pytest.mark.parametrize(
    ("missed", "late", "count"),
    [
        (Missed.SKIP, timedelta(0), 1),
        (Missed.SKIP, timedelta(seconds=50), 1),
        (Missed.SKIP, timedelta(minutes=3), 0),
        (Missed.ONCE, timedelta(minutes=3), 1),
        (Missed.ALL, timedelta(minutes=3), 4),
    ],
)
def test_missed_slots_follow_the_policy(missed: Missed, late: timedelta, count: int) -> None:
    last = START.replace(minute=0, second=0)
    assert len(due_slots(last, last + 20 * MINUTE + late, EVERY, missed)) == count


def test_a_year_of_missed_slots_is_bounded_and_found_at_once() -> None:
    cron = parse_cron("* * * * *")
    slots = due_slots(START - timedelta(days=365), START, cron, Missed.ALL)
    assert len(slots) == SLOTS_MAX
    assert slots[-1] == START.replace(second=0)
    yearly = parse_cron("0 3 1 1 *", "Europe/Berlin")
    assert due_slots(START - timedelta(days=800), START, yearly, Missed.ONCE) == [datetime(2026, 1, 1, 2, tzinfo=UTC)]


@pytest.mark.parametrize(
    "schedule", [Every(90 * MINUTE), parse_cron("*/5 3 * * *", "Europe/Berlin"), parse_cron("@daily")]
)
def test_a_schedule_that_was_written_down_is_read_again(schedule: Every) -> None:
    again = read_when(Periodic("x", schedule).when)
    assert again.next_after(START) == schedule.next_after(START)


def test_an_interval_below_a_second_and_a_name_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="an interval of"):
        Every(timedelta(milliseconds=10))
    with pytest.raises(ConfigError, match="is called ''"):
        Periodic("", EVERY)


class Scene:
    """Several repeaters on one backend and one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.store = Memory(self.clock)
        self.records: Records = self.store.records(PERIODIC)

    def repeater(self, *periodic: Periodic) -> PeriodicScheduler:
        return PeriodicScheduler(periodic, Producer(self.store.jobs, self.clock), self.records, self.clock)

    async def ids(self) -> list[str]:
        return [info.id for info in await self.store.jobs.page(JobState.READY, JobFilter(), None, 500)]


async def enqueue_due(repeaters: Iterable[PeriodicScheduler]) -> None:
    async with asyncio.TaskGroup() as group:
        for repeater in repeaters:
            group.create_task(repeater.enqueue_due())


async def test_the_first_start_ever_runs_no_past_slot() -> None:
    scene = Scene()
    await scene.repeater(Periodic("a", EVERY, missed=Missed.ALL)).enqueue_due()
    assert await scene.ids() == []


async def test_a_slot_is_put_once_however_many_run() -> None:
    scene = Scene()
    repeaters = [scene.repeater(Periodic("a", EVERY, "report", b"1", "high")) for _ in range(5)]
    await enqueue_due(repeaters)
    for _ in range(3):
        scene.clock.advance(5 * MINUTE)
        await enqueue_due(repeaters)
        await enqueue_due(repeaters)
    assert await scene.ids() == [f"periodic/a/2026-03-01T12:{minute:02}:00Z" for minute in (5, 10, 15)]
    record = await scene.store.jobs.get("periodic/a/2026-03-01T12:05:00Z")
    assert record is not None
    assert (record.job.kind, record.job.payload, record.job.queue, record.job.lasting) == ("report", b"1", "high", True)


@pytest.mark.parametrize("fault", [CRASH, LOST_REPLY, LOST_REQUEST], ids=["crash", "lost reply", "lost request"])
@pytest.mark.parametrize("step", range(4))
async def test_who_dies_at_any_step_loses_and_doubles_nothing(step: int, fault: Fault) -> None:
    scene = Scene()
    periodic = Periodic("a", EVERY, missed=Missed.ALL)
    await scene.repeater(periodic).enqueue_due()
    scene.clock.advance(5 * MINUTE)
    network = Network(Script({step: fault}))
    producer = Producer(FaultyJobs(scene.store.jobs, network), scene.clock, ProducerOptions(patience=timedelta(0)))
    with suppress(Crashed, StoreUnavailable):
        await PeriodicScheduler([periodic], producer, FaultyRecords(scene.records, network), scene.clock).enqueue_due()
    scene.clock.advance(5 * MINUTE)
    await scene.repeater(periodic).enqueue_due()
    assert await scene.ids() == [f"periodic/a/2026-03-01T12:{minute:02}:00Z" for minute in (5, 10)]


async def test_it_is_told_when_to_look_again() -> None:
    scene = Scene()
    assert await scene.repeater(Periodic("a", EVERY)).enqueue_due() == MINUTE
    assert await scene.repeater(Periodic("a", Every(timedelta(seconds=10)))).enqueue_due() == timedelta(seconds=10)


async def test_between_slots_the_backend_is_left_alone() -> None:
    scene = Scene()
    script = Script({})
    records = FaultyRecords(scene.records, Network(script))
    many = [Periodic(f"p{number}", EVERY) for number in range(9)]
    repeater = PeriodicScheduler([*many, Periodic("fast", Every(timedelta(seconds=1)))],
        Producer(scene.store.jobs, scene.clock),
                        records, scene.clock)  # fmt: skip
    await repeater.enqueue_due()
    script.calls.clear()
    scene.clock.advance(timedelta(seconds=1))
    await repeater.enqueue_due()
    assert script.calls == ["get", "put"]


async def test_a_changed_definition_is_noted() -> None:
    scene = Scene()
    await scene.repeater(Periodic("a", EVERY)).enqueue_due()
    await scene.repeater(Periodic("a", Every(7 * MINUTE))).enqueue_due()
    record = await scene.records.get("a")
    assert record is not None
    assert b"every 7m" in record.value
