"""Spent decisions: kept for their whole day, then deleted by their index, whoever comes first."""

from __future__ import annotations

from datetime import timedelta

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action, Keep
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import DECISION_KEPT, DECISIONS
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Record
from wrasse.sweeps.spent_decisions import SpentDecisions

ID = "d5arif5qkajneqfrmsb0"


async def decided() -> tuple[ManualClock, Memory, SpentDecisions, Record]:
    clock = ManualClock()
    memory = Memory(clock)
    leases = Leases(memory.records, memory.objects, clock)
    await leases.decide(ID, commit=True)
    await leases.close()
    record = await memory.records(DECISIONS).get(ID)
    assert record is not None
    return clock, memory, SpentDecisions(leases), record


async def test_a_decision_is_kept_to_the_last_moment_of_its_day() -> None:
    clock, _, sweep, record = await decided()
    ends = clock.now() + DECISION_KEPT
    early, late = sweep.decide(record, ends - timedelta.resolution), sweep.decide(record, ends)
    assert (isinstance(early, Keep), isinstance(late, Action)) == (True, True)


async def test_nothing_is_found_before_its_time() -> None:
    clock, _, sweep, _ = await decided()
    clock.advance(DECISION_KEPT - timedelta(seconds=1))
    young = len(await sweep.find(None, 10))
    clock.advance(timedelta(seconds=1))
    assert (young, len(await sweep.find(None, 10))) == (0, 1)


async def test_of_two_that_delete_one_is_told_that_it_came_second() -> None:
    clock, memory, sweep, _ = await decided()
    clock.advance(DECISION_KEPT)
    page = await sweep.find(None, 10)
    (verdict,) = [sweep.decide(record, page.at) for record in page]
    assert isinstance(verdict, Action)
    first, second = [list(await sweep.apply([verdict])) for _ in range(2)]
    assert (first, second, await memory.records(DECISIONS).get(ID)) == ([Outcome.DONE], [Outcome.CONFLICT], None)
    assert (sweep.leases.tally.decisions_deleted, sweep.leases.tally.entries_deleted) == (1, 1)
