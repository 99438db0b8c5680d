"""Journal: intents before actions, outcomes after. What every backend promises about its lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from conformance.stores import Store
from faults import LOST_REPLY, FaultyJournal, Network, Script
from wrasse.errors import StoreUnavailable
from wrasse.ports.journal import Intent, Journal, Line, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome

STEP = timedelta(milliseconds=20)


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.journal


def intent(id: str, *, run: str = "run-1", sweep: str = "stuck_jobs", suspect: str = "job") -> Intent:
    return Intent(id, run, sweep, "requeue", suspect, "worker w1 silent for 31 s", count=1)


async def lines(
    journal: Journal, where: LineFilter | None = None, *, newest: bool = False, limit: int = 2
) -> list[Line]:
    """Every line, by small pages, so that every listing also tests its cursors."""
    shown: list[Line] = []
    after: str | None = None
    while True:
        page = await journal.page(where or LineFilter(), after, limit, newest=newest)
        shown += page.items
        after = page.cursor
        if after is None:
            return shown


def ids(lines: Sequence[Line]) -> list[str]:
    return [line.intent.id for line in lines]


async def test_an_intent_is_kept_with_the_time_it_was_written(journal: Journal) -> None:
    wanted = Intent("1", "run", "sweep", "dead_letter", 'it\'s "é"', "because", count=7)
    at = await journal.intend([wanted])
    assert await lines(journal) == [Line(wanted, at)]


async def test_a_sweep_and_a_verb_with_stored_names_are_found_under_their_own(journal: Journal) -> None:
    wanted = Intent("1", "run", "orphan_objects@root", "dead_letter", "a", "because")
    await journal.intend([wanted])
    assert [line.intent for line in await lines(journal, LineFilter(sweep="orphan_objects@root"))] == [wanted]


async def test_long_lines_are_kept_and_settled(journal: Journal) -> None:
    wanted = [Intent(f"{n:03}", "run", "sweep", "dead_letter", "\x01" * 1_000, "é" * 2_000) for n in range(200)]
    await journal.intend(wanted)
    await journal.settle([SettledIntent(each.id, Outcome.FAILED, "é" * 5_000) for each in wanted])
    found = (await journal.page(LineFilter(), None, 1_000)).items
    assert [line.intent for line in found] == wanted
    assert {(line.outcome, line.detail[:300]) for line in found} == {(Outcome.FAILED, "é" * 300)}


async def test_names_as_long_as_any_object_or_key_are_kept_and_found(journal: Journal) -> None:
    wanted = [intent(str(n), suspect=letter * 1_024) for n, letter in enumerate(("k", "é", "\x00", "\u2028"))]
    await journal.intend(wanted)
    assert [line.intent for line in await lines(journal)] == wanted
    for each in wanted:
        assert ids(await lines(journal, LineFilter(suspect=each.suspect))) == [each.id]


async def test_an_outcome_is_added_to_its_intent(journal: Journal, store: Store) -> None:
    intended_at = await journal.intend([intent("1"), intent("2")])
    await store.pass_time(STEP)
    await journal.settle([SettledIntent("2", Outcome.CONFLICT, "a heartbeat came first")])
    one, two = await lines(journal)
    assert (one.outcome, two.outcome, two.detail) == (None, Outcome.CONFLICT, "a heartbeat came first")
    assert two.settled_at is not None
    assert two.settled_at >= intended_at + STEP


async def test_a_line_keeps_its_first_outcome(journal: Journal) -> None:
    await journal.intend([intent("1")])
    await journal.settle([SettledIntent("1", Outcome.DONE, "first")])
    await journal.settle([SettledIntent("1", Outcome.FAILED, "second")])
    (line,) = await lines(journal)
    assert (line.outcome, line.detail) == (Outcome.DONE, "first")


async def test_an_unknown_outcome_may_be_found_out_later(journal: Journal) -> None:
    await journal.intend([intent("1")])
    await journal.settle([SettledIntent("1", Outcome.UNKNOWN)])
    await journal.settle([SettledIntent("1", Outcome.DONE, "it was made")])
    (line,) = await lines(journal)
    assert (line.outcome, line.detail) == (Outcome.DONE, "it was made")


async def test_settling_what_was_never_intended_changes_nothing(journal: Journal) -> None:
    await journal.settle([SettledIntent("1", Outcome.DONE)])
    assert await lines(journal) == []


async def test_an_intent_retried_after_a_lost_reply_keeps_one_line_each(journal: Journal) -> None:
    faulty = FaultyJournal(journal, Network(Script({0: LOST_REPLY, 2: LOST_REPLY})))
    batch = [intent("1"), intent("2")]
    with pytest.raises(StoreUnavailable):
        await faulty.intend(batch)
    await faulty.intend(batch)
    with pytest.raises(StoreUnavailable):
        await faulty.settle([SettledIntent("1", Outcome.DONE)])
    await faulty.settle([SettledIntent("1", Outcome.DONE)])
    assert [(line.intent.id, line.outcome) for line in await lines(journal)] == [("1", Outcome.DONE), ("2", None)]


async def test_intending_again_does_not_open_a_settled_line(journal: Journal) -> None:
    await journal.intend([intent("1")])
    await journal.settle([SettledIntent("1", Outcome.DONE)])
    await journal.intend([intent("1")])
    assert [line.outcome for line in await lines(journal)] == [Outcome.DONE]


async def test_lines_survive_a_restart(store: Store) -> None:
    await store.journal.intend([intent("1"), intent("2")])
    await store.journal.settle([SettledIntent("1", Outcome.DONE)])
    before = await lines(store.journal)
    await store.reopen()
    assert await lines(store.journal) == before


async def test_a_page_is_in_the_order_of_ids_and_can_be_turned_round(journal: Journal) -> None:
    for id in ("02", "01", "05", "03", "04"):
        await journal.intend([intent(id)])
    assert (ids(await lines(journal)), ids(await lines(journal, newest=True))) == (
        ["01", "02", "03", "04", "05"],
        ["05", "04", "03", "02", "01"],
    )


async def test_every_cursor_of_a_page_goes_on_exactly_there(journal: Journal) -> None:
    await journal.intend([intent(str(n)) for n in range(5)])
    whole = await journal.page(LineFilter(), None, 10)
    rests = [await journal.page(LineFilter(), cursor, 10) for cursor in whole.cursors]
    assert [ids(rest.items) for rest in rests] == [ids(whole.items[n:]) for n in range(1, 6)]


async def test_lines_can_be_filtered(journal: Journal, store: Store) -> None:
    first = await journal.intend([intent("1"), intent("2", sweep="finished_jobs", run="run-2")])
    await store.pass_time(STEP)
    second = await journal.intend([intent("3", suspect="other"), intent("4", run="run-2")])
    await journal.settle([SettledIntent("1", Outcome.DONE), SettledIntent("3", Outcome.CONFLICT)])
    found = [
        ids(await lines(journal, where))
        for where in (
            LineFilter(sweep="finished_jobs"),
            LineFilter(run="run-2"),
            LineFilter(suspect="other"),
            LineFilter(outcome=Outcome.DONE),
            LineFilter(open=True),
            LineFilter(open=False),
            LineFilter(since=second),
            LineFilter(until=second),
            LineFilter(since=first, run="run-2", open=True, sweep="stuck_jobs"),
            LineFilter(suspect="nobody"),
        )
    ]
    assert found == [["2"], ["2", "4"], ["3"], ["1"], ["2", "4"], ["1", "3"], ["3", "4"], ["1", "2"], ["4"], []]


async def test_a_line_that_was_settled_as_unknown_is_not_open(journal: Journal) -> None:
    await journal.intend([intent("1")])
    await journal.settle([SettledIntent("1", Outcome.UNKNOWN)])
    assert await lines(journal, LineFilter(open=True)) == []


async def test_old_lines_are_forgotten_up_to_the_limit(journal: Journal, store: Store) -> None:
    for id in ("1", "2", "3"):
        await journal.intend([intent(id)])
        await journal.settle([SettledIntent(id, Outcome.DONE)])
        await store.pass_time(STEP)
    horizon = await journal.intend([intent("4")])
    await journal.settle([SettledIntent("4", Outcome.DONE)])
    forgotten = [await journal.delete(horizon, 2), await journal.delete(horizon, 2), await journal.delete(horizon, 2)]
    assert (forgotten, ids(await lines(journal))) == ([2, 1, 0], ["4"])


async def test_an_open_line_is_never_forgotten(journal: Journal, store: Store) -> None:
    await journal.intend([intent("1"), intent("2")])
    await journal.settle([SettledIntent("2", Outcome.DONE)])
    await store.pass_time(STEP)
    horizon = await journal.intend([intent("3")])
    assert (await journal.delete(horizon, 10), ids(await lines(journal))) == (1, ["1", "3"])


async def test_intending_and_settling_nothing_is_nothing(journal: Journal) -> None:
    await journal.intend([])
    await journal.settle([])
    assert await lines(journal) == []
