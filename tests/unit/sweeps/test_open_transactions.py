"""Open transactions: finished when nobody is about, each in one action, and a living one is kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.guard import Activity, Traffic
from wrasse.engine.report import Report
from wrasse.engine.run import Member, RunBudget, RunContext, run_group
from wrasse.engine.sweep import Action, Keep
from wrasse.ids import Ids
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import TRANSACTIONS, Decision, Participant, Transaction
from wrasse.ports.journal import Intent, Line
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.open_transactions import OpenTransaction, OpenTransactions
from wrasse.sweeps.spent_decisions import SpentDecisions

NS = "default"
TTL = timedelta(seconds=30)


class Scene:
    """A store and what a dead process left there."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.leases = Leases(self.memory.records, self.memory.objects, self.clock)

    async def left(self, number: int, state: Decision, *, ttl: timedelta = TTL) -> str:
        id = f"{number:019d}0"
        held = await self.leases.acquire(f"k/{number}", "me", ttl=ttl, transaction=id)
        await self.leases.update(held.granted, b"1")
        who = (Participant(NS, f"k/{number}", held.granted.token),)
        if state is not Decision.PENDING:
            await self.leases.transactions.transaction_log.decide(
                id, state, who, held.granted.expires_at, self.clock.now()
            )
        return id

    async def open(self) -> list[str]:
        return [record.key for record in await self.memory.records(TRANSACTIONS).page("", None, 1_000)]

    async def run(self, *guards: Traffic, actions_max: int = 1_000) -> list[Report]:
        """The idle group, once."""
        leases = Leases(self.memory.records, self.memory.objects, self.clock)
        members = [
            Member(ExpiredLeases(leases, self.memory.namespaces), "expired_leases", None),
            Member(OpenTransactions(leases), "open_transactions", None),
            Member(SpentDecisions(leases), "spent_decisions", None),
        ]
        frame = RunContext(self.memory.journal, self.clock, Ids(self.clock))
        return await run_group(members, frame, budget=RunBudget(actions_max=actions_max), guards=guards)


def suspect(state: Decision, *, ends_in: timedelta) -> OpenTransaction:
    at = ManualClock().now()
    return OpenTransaction(Transaction("0" * 20, state, (), at), at + ends_in)


@pytest.mark.parametrize("state", [Decision.COMMIT, Decision.ROLLBACK])
def test_what_is_decided_is_carried_out_at_once(state: Decision) -> None:
    verdict = OpenTransactions(Scene().leases).decide(suspect(state, ends_in=TTL), ManualClock().now())
    assert isinstance(verdict, Action)
    assert (verdict.verb, state.value in verdict.reason) == ("apply", True)


def test_what_is_pending_is_kept_to_the_end_of_its_last_lease_and_rolled_back_then() -> None:
    sweep, pending = OpenTransactions(Scene().leases), suspect(Decision.PENDING, ends_in=TTL)
    now = ManualClock().now()
    early, late = sweep.decide(pending, now + TTL - timedelta.resolution), sweep.decide(pending, now + TTL)
    assert isinstance(early, Keep)
    assert isinstance(late, Action)
    assert late.verb == "roll back"


async def test_each_transaction_is_finished_in_one_action_with_a_line_in_the_journal() -> None:
    scene = Scene()
    ids = [await scene.left(n, state) for n, state in enumerate((Decision.COMMIT, Decision.ROLLBACK, Decision.PENDING))]
    living = await scene.left(9, Decision.PENDING, ttl=timedelta(hours=1))
    scene.clock.advance(TTL)
    await scene.run()
    outcomes = [await scene.leases.transactions.transaction_log.outcome(id) for id in ids]
    assert (outcomes, await scene.open()) == (["commit", "rollback", "rollback"], [living])


async def test_the_idle_group_shares_its_budget_a_batch_each_in_turn() -> None:
    scene = Scene()
    for n in range(10):
        await scene.left(n, Decision.COMMIT)
        await scene.leases.acquire(f"bare/{n}", "me", ttl=TTL)
    scene.clock.advance(TTL)
    leases, transactions, _ = await scene.run(actions_max=8)
    assert (leases.done, transactions.done) == (4, 4)


async def test_traffic_keeps_the_sweep_away() -> None:
    scene = Scene()
    await scene.left(1, Decision.COMMIT)
    activity = Activity(scene.clock)
    activity.note()
    reports = await scene.run(Traffic(activity, timedelta(minutes=5), scene.clock))
    assert ({each.stopped_by for each in reports}, len(await scene.open())) == ({"traffic"}, 1)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [(Decision.COMMIT, Outcome.DONE), (Decision.PENDING, Outcome.CONFLICT), (None, Outcome.UNKNOWN)],
)
async def test_what_a_crash_left_open_in_the_journal_is_told_by_the_record(
    state: Decision | None, outcome: Outcome
) -> None:
    scene = Scene()
    id = "0" * 20 if state is None else await scene.left(1, state)
    at = scene.clock.now()
    line = Line(Intent("1", "run", "open_transactions", "apply", id, "decided"), at)
    assert list(await OpenTransactions(scene.leases).resolve([line])) == [outcome]
