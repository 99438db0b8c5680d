"""Transactions where records live in a database or on a server: decided, carried out by another process, forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.stores import Store
from faults import CRASH, Crashed, FaultyRecords, Network, Script
from leases.places import HOURS
from leases.transaction_scene import DAY, KEYS, marks, name_of, run, stage
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import DECISIONS, TRANSACTIONS, Decision
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.spent_decisions import SpentDecisions

MARK = name_of(1)


@pytest.mark.parametrize("name", ["sqlite", "redis", "nats"])
async def test_a_process_that_dies_after_the_decision_leaves_it_to_the_next(name: str, tmp_path: Path) -> None:
    store = Store(name, tmp_path)
    await store.open()
    assert isinstance(store.clock, ManualClock)
    objects = Memory(store.clock).objects
    plan = Script({}, "put")
    network = Network(plan)
    dying = Leases(lambda each: FaultyRecords(store.records(each), network), objects, store.clock)
    leases = Leases(store.records, objects, store.clock)
    held = [await dying.acquire(key, "me", transaction=MARK) for key in KEYS]
    for leased in held:
        await stage(dying, leased, MARK)
    plan.faults = {len(plan.calls) + 1: CRASH}  # it decides, and dies before it commits the first key
    with pytest.raises(Crashed):
        await dying.release(held[0].granted)
    told = await leases.transactions.replay(MARK)
    states = [await marks(leases, key) for key in KEYS]
    assert (told, states) == (Decision.COMMIT, [[MARK]] * 3)
    store.clock.advance(DAY + HOURS)
    swept = [await run(OpenTransactions(leases)), await run(SpentDecisions(leases))]
    left = [len(await store.records(each).page("", None, 10)) for each in (TRANSACTIONS, DECISIONS)]
    await leases.close()
    await store.close()
    assert (swept, left) == ([0, 1], [0, 0])
