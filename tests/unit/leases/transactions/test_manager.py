"""Replay amid traffic: throttled, bounded, beside the operations, and never past what it has not processed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from faults import LOST_REQUEST, FaultyRecords, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable
from wrasse.leases.leases import LeasePolicy, Leases
from wrasse.leases.transactions.manager import TransactionReplay
from wrasse.leases.transactions.states import DECISIONS, TRANSACTIONS, Decision, Participant

NS = "default"
TTL = timedelta(seconds=30)


class Scene:
    """A store with open transactions, decided and not carried out."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.leases = self.process()

    def process(self, replay: timedelta = timedelta(0)) -> Leases:
        return Leases(self.memory.records, self.memory.objects, self.clock, LeasePolicy(replay=replay))

    async def leaves(self, number: int, state: Decision = Decision.COMMIT, first: int = 0) -> None:
        """So many transactions that a process decided and died."""
        for n in range(first, first + number):
            id = f"{n:019d}0"
            held = await self.leases.acquire(f"k/{n}", "me", ttl=TTL, transaction=id)
            await self.leases.update(held.granted, b"1")
            who = Participant(NS, f"k/{n}", held.granted.token)
            if state is not Decision.PENDING:
                await self.leases.transactions.transaction_log.decide(
                    id, state, (who,), self.clock.now(), self.clock.now()
                )

    async def open(self) -> int:
        return len(await self.memory.records(TRANSACTIONS).page("", None, 1_000))

    def replay(self, operations: int = 128) -> TransactionReplay:
        return TransactionReplay(self.process().transactions, self.clock, TTL, operations_max=operations)


async def test_an_operation_starts_a_replay_beside_it_and_not_again_before_the_interval() -> None:
    scene = Scene()
    await scene.leaves(2)
    leases = scene.process(timedelta(seconds=5))
    await leases.read_public(NS, "other")
    await leases.close()
    first = (leases.tally.replays, leases.tally.replayed, await scene.open())
    await scene.leaves(1, first=7)
    for _ in range(3):
        scene.clock.advance(timedelta(seconds=1))
        await leases.read_public(NS, "other")
        await leases.close()  # whatever it started has ended
    early = leases.tally.replays
    scene.clock.advance(timedelta(seconds=2))
    await leases.read_public(NS, "other")
    await leases.close()
    assert (first, early, leases.tally.replays) == ((1, 2, 0), 1, 2)


async def test_an_operation_does_not_wait_for_a_replay() -> None:
    scene = Scene()
    await scene.leaves(1)
    leases = scene.process(timedelta(seconds=5))
    await leases.read_public(NS, "other")
    assert await scene.open() == 1  # it has hardly begun
    await leases.close()
    assert await scene.open() == 0


async def test_without_an_interval_there_is_no_replay() -> None:
    scene = Scene()
    await scene.leaves(1)
    await scene.leases.read_public(NS, "other")
    await scene.leases.close()
    assert (scene.leases.tally.replays, await scene.open()) == (0, 1)


async def test_a_run_takes_so_many_operations_and_the_next_goes_on_from_there() -> None:
    scene = Scene()
    await scene.leaves(10)
    replay = scene.replay(operations=8)
    left = []
    for _ in range(3):
        await replay.run()
        left.append(await scene.open())
    assert left == [6, 2, 0]  # two operations each: the record and its key


async def test_what_is_pending_is_passed_by_and_seen_again_the_next_time_round() -> None:
    scene = Scene()
    await scene.leaves(3, Decision.PENDING)
    replay = scene.replay()
    seen = [await replay.run(), await replay.run()]
    scene.clock.advance(TTL)
    await replay.run()
    decisions = await scene.memory.records(DECISIONS).page("", None, 10)
    assert (seen, await scene.open(), len(decisions)) == ([3, 3], 0, 3)


async def test_a_run_that_fails_begins_again_with_the_one_it_could_not_finish() -> None:
    scene = Scene()
    await scene.leaves(4)
    network = Network(Script(dict.fromkeys(range(2, 5), LOST_REQUEST), "put"))
    leases = Leases(
        lambda collection: FaultyRecords(scene.memory.records(collection), network), scene.memory.objects, scene.clock
    )
    replay = TransactionReplay(leases.transactions, scene.clock, TTL)
    await replay.run()
    left = await scene.open()
    await replay.run()
    assert (left > 0, await scene.open()) == (True, 0)


async def test_a_run_ends_in_time_and_goes_on_where_it_was() -> None:
    scene = Scene()
    await scene.leaves(3)
    slow = Scene.process(scene).transactions
    replay = TransactionReplay(slow, scene.clock, TTL, seconds_max=0.0)
    assert await asyncio.wait_for(replay.run(), 10) == 0
    assert await scene.open() == 3


async def test_a_store_that_does_not_answer_is_no_news() -> None:
    scene = Scene()
    network = Network(Script(dict.fromkeys(range(100), LOST_REQUEST), "page"))
    leases = Leases(
        lambda collection: FaultyRecords(scene.memory.records(collection), network),
        scene.memory.objects, scene.clock, LeasePolicy(replay=timedelta(seconds=5)),
    )  # fmt: skip
    await leases.read_public(NS, "other")
    await leases.close()
    with pytest.raises(StoreUnavailable):
        await TransactionReplay(leases.transactions, scene.clock, TTL).run()
