"""The journal on records keeps the lines that the one in memory keeps, whatever the batches and the pauses between."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.record_journal import BATCH_MAX, JOURNAL, RecordJournal
from wrasse.ids import Ids, first_at, made_at
from wrasse.ports.journal import Intent, Journal, Line, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
GAPS = st.sampled_from((timedelta(0), timedelta(milliseconds=1), SECOND, timedelta(minutes=7), 3 * DAY, 40 * DAY))
BATCHES = st.lists(st.tuples(GAPS, st.integers(1, 4), st.sampled_from(["", *Outcome])), min_size=1, max_size=12)


def intents(ids: Ids, count: int, sweep: str = "stuck_jobs") -> list[Intent]:
    return [Intent(ids.new(), "run", sweep, "requeue", "job", "silent") for _ in range(count)]


async def lines(journal: Journal, where: LineFilter, *, newest: bool = False, limit: int = 3) -> list[Line]:
    shown: list[Line] = []
    after: str | None = None
    while True:
        page = await journal.page(where, after, limit, newest=newest)
        shown += page.items
        after = page.cursor
        if after is None:
            return shown


class Twins:
    """A journal on records, written by one process and read by another, and the one in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.records = self.memory.records(JOURNAL)
        self.writer, self.reader = (RecordJournal(self.records, self.clock) for _ in range(2))
        self.ids = Ids(self.clock)

    async def write(self, count: int, outcome: str) -> None:
        batch = intents(self.ids, count)
        for journal in (self.writer, self.memory.journal):
            await journal.intend(batch)
            if outcome:
                await journal.settle([SettledIntent(batch[0].id, Outcome(outcome), "why")])


@given(BATCHES, st.booleans(), st.sampled_from([None, True, False]), st.none() | GAPS)
async def test_every_listing_is_the_one_of_the_journal_in_memory(
    batches: list[tuple[timedelta, int, str]], newest: bool, only_open: bool | None, since: timedelta | None
) -> None:
    twins = Twins()
    for gap, count, outcome in batches:
        twins.clock.advance(gap)
        await twins.write(count, outcome)
    where = LineFilter(open=only_open, since=None if since is None else twins.clock.now() - since)
    assert await lines(twins.reader, where, newest=newest) == await lines(twins.memory.journal, where, newest=newest)


@given(BATCHES, GAPS, st.integers(1, 9))
async def test_what_is_forgotten_is_what_the_journal_in_memory_forgets(
    batches: list[tuple[timedelta, int, str]], kept: timedelta, limit: int
) -> None:
    twins = Twins()
    for gap, count, outcome in batches:
        twins.clock.advance(gap)
        await twins.write(count, outcome)
    before = twins.clock.now() - kept
    assert await twins.reader.delete(before, limit) == await twins.memory.journal.delete(before, limit)
    assert await lines(twins.reader, LineFilter()) == await lines(twins.memory.journal, LineFilter())


async def test_another_process_settles_what_a_crash_left_open() -> None:
    twins = Twins()
    await twins.writer.intend(batch := intents(twins.ids, 3))
    twins.clock.advance(DAY)
    await twins.reader.settle([SettledIntent(each.id, Outcome.CONFLICT) for each in batch])
    assert await lines(twins.reader, LineFilter(open=True)) == []
    assert [line.outcome for line in await lines(twins.writer, LineFilter())] == [Outcome.CONFLICT] * 3


async def test_two_processes_settle_the_lines_of_one_batch() -> None:
    twins = Twins()
    await twins.writer.intend(batch := intents(twins.ids, 2))
    await twins.reader.settle([SettledIntent(batch[0].id, Outcome.CONFLICT)])
    await twins.writer.settle([SettledIntent(each.id, Outcome.DONE) for each in batch])
    outcomes = [line.outcome for line in await lines(twins.reader, LineFilter())]
    assert outcomes == [Outcome.CONFLICT, Outcome.DONE]


async def test_a_batch_that_no_record_could_hold_is_several() -> None:
    twins = Twins()
    long = [Intent(twins.ids.new(), "run", "sweep", "delete", "k" * 1_024, "r" * 1_024) for _ in range(BATCH_MAX * 3)]
    await twins.writer.intend(long)
    await twins.writer.settle([SettledIntent(each.id, Outcome.DONE) for each in long])
    assert len(await lines(twins.reader, LineFilter(outcome=Outcome.DONE), limit=500)) == len(long)


async def test_a_record_that_is_no_journal_record_hides_no_line() -> None:
    twins = Twins()
    await twins.records.create("0", b"[" * 100_000)
    await twins.writer.intend(intents(twins.ids, 1))
    assert len(await lines(twins.reader, LineFilter())) == 1
    assert await twins.reader.delete(twins.clock.now() + DAY, 10) == 0


async def test_lines_are_stored_under_the_stored_names_and_found_under_those_of_the_program() -> None:
    twins = Twins()
    given = Intent(twins.ids.new(), "run", "orphan_objects@root", "dead_letter", "a", "because")
    before = replace(given, id=twins.ids.new(), sweep="orphan_archives@root", verb="bury")
    await twins.writer.intend([given])
    await twins.writer.intend([before])
    for record in await twins.records.page("", None, 10):
        assert b'"sweep":"orphan_archives@root","verb":"bury"' in record.value
    found = await lines(twins.reader, LineFilter(sweep="orphan_objects@root"))
    assert [line.intent for line in found] == [given, replace(given, id=before.id)]


@pytest.mark.parametrize(("gap", "ago"), [(timedelta(minutes=30), timedelta(0)), (SECOND / 2, timedelta(hours=9))])
async def test_the_newest_lines_are_found_without_reading_the_old_ones(gap: timedelta, ago: timedelta) -> None:
    twins = Twins()
    for _ in range(2_000):
        twins.clock.advance(gap)
        await twins.write(1, "done")
    twins.clock.advance(ago)
    counted = Counted(twins)
    page = await RecordJournal(counted, twins.clock).page(LineFilter(), None, 5, newest=True)  # type: ignore[arg-type]
    assert len(page) == 5
    assert counted.shown <= 1_000


async def test_open_lines_are_found_without_reading_the_settled_ones() -> None:
    twins = Twins()
    await twins.write(1, "")
    for _ in range(300):
        twins.clock.advance(SECOND)
        await twins.write(1, "done")
    counted = Counted(twins)
    page = await RecordJournal(counted, twins.clock).page(LineFilter(open=True), None, 5)  # type: ignore[arg-type]
    assert (len(page), counted.shown) == (1, 1)


class Counted:
    """Records that count how many of them were shown."""

    def __init__(self, twins: Twins) -> None:
        self._records = twins.records
        self.shown = 0

    def __getattr__(self, name: str) -> object:
        method = getattr(self._records, name)

        async def asked(*args: object, **named: object) -> object:
            page = await method(*args, **named)
            self.shown += len(page)
            return page

        return asked


@given(st.integers(0, 10**9))
def test_an_id_tells_when_it_was_made(seconds: int) -> None:
    clock = ManualClock()
    clock.advance(timedelta(seconds=seconds))
    id = Ids(clock).new()
    made = made_at(id)
    assert made is not None
    assert clock.now() - made < timedelta(milliseconds=1)
    assert first_at(clock.now()) <= id < first_at(clock.now() + timedelta(milliseconds=2))


def test_what_is_no_id_has_no_time() -> None:
    assert [made_at(text) for text in ("", "1", "Z" * 26, "é" * 26)] == [None] * 4


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
async def test_lines_have_the_time_of_the_store_also_after_the_clock_of_the_host_was_set(jump: timedelta) -> None:
    clock, host = ManualClock(), ManualClock()
    journal, ids = RecordJournal(Memory(clock).records(JOURNAL), host), Ids(host)
    [first] = intents(ids, 1)
    assert await journal.intend([first]) == clock.now()
    host.step(jump)
    assert await journal.intend(intents(ids, 1)) == clock.now()
    host.step(jump)
    await journal.settle([SettledIntent(first.id, Outcome.DONE)])
    assert {line.settled_at for line in await lines(journal, LineFilter(open=False))} == {clock.now()}
