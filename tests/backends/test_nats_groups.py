"""What only groups on NATS do: ledgers that several processes write, and what becomes of lost replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from hypothesis import given, settings, strategies as st

from backends.nats_scene import TIMEOUT, G, S, Scene, drafts, scene
from servers.nats import Nats
from servers.proxy import proxy
from wrasse.backends.nats.flows import Flows
from wrasse.backends.nats.ledger_entries import (
    ACK,
    NAK,
    Back,
    Command,
    Deliver,
    Extend,
    Gone,
    Join,
    Mark,
    Retire,
    Settle,
    Skip,
    frees,
    packed,
    packed_snapshot,
    unpacked,
)
from wrasse.backends.nats.ledger_state import LedgerState, spans
from wrasse.errors import StoreBroken
from wrasse.ports.groups import Ack, DeadLetter, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import Draft

FIRST = StartAt(first=True)
DONE, LOST = Outcome.DONE, Outcome.LOST


@pytest.fixture
async def stage(nats_server: Nats) -> AsyncIterator[Scene]:
    async with scene(nats_server.port) as made:
        yield made


async def deliver(flows: Flows, limit: int = 100, consumer: str = "c", wait: timedelta = timedelta(0)):
    return await flows.groups.deliver([S], G, consumer, limit, ack_timeout=TIMEOUT, wait=wait)


async def test_processes_share_a_group_without_overlap_and_without_rest(stage: Scene) -> None:
    members = [await stage.flows() for _ in range(4)]
    await members[0].groups.join(S, G, FIRST)
    await members[0].streams.append(drafts(600))
    got: list[bytes] = []

    async def consume(flows: Flows, name: str) -> None:
        while len(got) < 600:
            found = await deliver(flows, 7, name)
            got.extend(delivery.entry.body for delivery in found)
            assert set(await flows.groups.answer([Ack(S, G, d.entry.id) for d in found])) <= {DONE}

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume(flows, f"c{n}") for n, flows in enumerate(members)))
    assert sorted(map(int, got)) == list(range(600))
    (group,) = (await members[1].streams.info(S)).groups
    assert (group.pending, group.lag, group.floor) == (0, 0, group.delivered)


async def test_a_ledger_stays_short_and_says_the_same_to_who_comes_late(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST)
    await flows.streams.append(drafts(300))
    for _ in range(150):
        first, second = await deliver(flows, 2)
        await flows.groups.answer([Ack(S, G, first.entry.id), Nak(S, G, second.entry.id, timedelta(hours=1))])
    books = await flows.lanes.js.call(f"STREAM.INFO.{stage.root}_books")
    assert books["state"]["messages"] < 300
    late = await stage.flows()
    assert (await late.streams.info(S)).groups == (await flows.streams.info(S)).groups
    assert (await late.streams.info(S)).groups[0].pending == 150


@pytest.mark.parametrize("what", ["deliver", "answer"])
async def test_a_lost_reply_counts_once(stage: Scene, what: str) -> None:
    async with proxy(stage.port) as between:
        flows = await stage.flows(between.port)
        await flows.groups.join(S, G, FIRST)
        await flows.streams.append(drafts(3))
        found = [] if what == "deliver" else await deliver(flows)
        ledger = flows.groups._ledgers.of(S, G)
        await ledger.catch_up()
        act = ledger.submit(
            Deliver(0, "c", 3, 1 << 60, ((1, 3, _ms(await flows.streams.info(S))),))
            if what == "deliver"
            else Settle(0, ((ACK, 1, 3, found[0].entry.id.ms, 0),))
        )
        between.deaf = True
        asking = asyncio.ensure_future(act)
        async with asyncio.timeout(20):
            while not between.replies_dropped:  # noqa: ASYNC110  # the proxy rings no bell
                await asyncio.sleep(0.005)
        between.deaf = False
        answer = await asking
        other = await stage.flows()
        (group,) = (await other.streams.info(S)).groups
    if what == "deliver":
        assert ([tuple(span)[:2] for span in answer], group.pending) == ([(1, 3)], 3)
    else:
        assert (answer, group.pending) == ([3], 0)


async def test_a_command_that_was_written_before_is_answered_as_it_stands_in_the_ledger(stage: Scene) -> None:
    first, second = await stage.flows(), await stage.flows()
    await first.groups.join(S, G, FIRST)
    ledgers = [flows.groups._ledgers.of(S, G) for flows in (first, second)]
    for ledger in ledgers:
        await ledger.catch_up()
    await ledgers[1]._submit("theirs", Deliver(0, "b", 2, 1 << 60, ((1, 2, 7),)))
    told = await ledgers[1]._submit("mine", Deliver(0, "a", 2, 1 << 60, ((1, 3, 7),)))
    again = await ledgers[0]._submit("mine", Deliver(0, "a", 2, 1 << 60, ((1, 3, 7),)))
    assert [tuple(span) for span in again] == [tuple(span) for span in told] == [(3, 1, 7, 1)]
    assert ledgers[0].state.held("b") == 2


def _ms(state) -> int:
    return state.first.ms


async def test_a_dead_letter_that_two_write_is_one(stage: Scene) -> None:
    first, second = await stage.flows(), await stage.flows()
    await first.groups.join(S, G, FIRST)
    await first.streams.append(drafts(1))
    (delivery,) = await deliver(first)
    letter = DeadLetter(S, G, delivery.entry.id, Draft("gbe._deadletter.x", b"letter"))
    outcomes = await asyncio.gather(first.groups.answer([letter]), second.groups.answer([letter]))
    assert sorted(outcome for (outcome,) in outcomes) == [DONE, LOST]
    assert (await first.streams.info("gbe._deadletter.x")).length == 1


async def test_a_cancelled_question_gives_back_what_it_was_given(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST)
    await flows.streams.append(drafts(5))
    asking = asyncio.ensure_future(deliver(flows, 5))
    ledger = flows.groups._ledgers.of(S, G)
    async with asyncio.timeout(20):
        while not ledger.state.runs:  # noqa: ASYNC110  # what it waits for rings no bell
            await asyncio.sleep(0)
    asking.cancel()
    taken = 0
    try:
        taken = len(await asking)
    except asyncio.CancelledError:
        again = await deliver(flows, 5, "other")
        assert [delivery.number for delivery in again] == [1] * 5
    assert taken in (0, 5)


async def test_a_group_is_not_lost_with_the_link(stage: Scene) -> None:
    async with proxy(stage.port) as between:
        flows = await stage.flows(between.port)
        await flows.groups.join(S, G, FIRST)
        waiting = asyncio.ensure_future(deliver(flows, wait=timedelta(seconds=20)))
        await asyncio.sleep(0.1)
        between.cut()
        other = await stage.flows()
        await other.streams.append(drafts(1))
        async with asyncio.timeout(20):
            found = await _tried(waiting, flows)
    assert [delivery.entry.body for delivery in found] == [b"0"]


async def _tried(waiting, flows: Flows):
    from wrasse.errors import StoreUnavailable

    try:
        return await waiting
    except StoreUnavailable:  # the question that was under way when the connection ended
        return await deliver(flows, wait=timedelta(seconds=20))


# The ledger's rules, without a server

numbers, whos = st.integers(1, 12), st.sampled_from(["a", "b", "c"])
moments = st.integers(0, 60)
pairs = st.tuples(numbers, st.integers(1, 5), st.just(7))
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        Deliver, at=moments, consumer=whos, limit=st.integers(0, 6), until=st.integers(30, 90),
        new=st.lists(pairs, max_size=2).map(lambda found: tuple(sorted(found))),
    ),
    st.builds(
        Settle,
        at=moments,
        answers=st.lists(
            st.tuples(st.sampled_from([ACK, NAK]), numbers, st.integers(1, 4), st.sampled_from([7, 8]), moments),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        Extend, at=moments, consumer=whos, until=st.integers(30, 90),
        held=st.lists(st.tuples(numbers, st.integers(1, 3), st.just(7), st.integers(1, 3)), max_size=2).map(tuple),
    ),
    st.builds(Mark, ms=st.just(7), seq=numbers),
    st.builds(Retire, at=moments, consumer=whos),
    st.builds(
        Back, at=moments, consumer=whos,
        handed=st.lists(st.tuples(numbers, st.integers(1, 3), st.just(7), st.integers(1, 3)), max_size=2).map(tuple),
    ),
    st.builds(Skip, ms=st.just(7), seq=numbers, done=st.booleans()),
    st.builds(Gone, spans=st.lists(st.tuples(numbers, st.integers(1, 3)), max_size=2).map(tuple)),
)  # fmt: skip


def told(story: list[Command]) -> tuple[LedgerState, list[object]]:
    state = LedgerState()
    state.apply("join", Join(0, 0))
    return state, [state.apply(str(n), command) for n, command in enumerate(story)]


def seen(state: LedgerState) -> object:
    return {key: value for key, value in state.snapshot().items() if key != "answers"}


@settings(max_examples=150)
@given(st.lists(commands, max_size=25))
def test_what_is_pending_is_in_order_and_counted_once(story: list[Command]) -> None:
    state, _ = told(story)
    held = [seq for run in state.runs for seq in range(run.seq, run.end)]
    assert held == sorted(set(held))
    assert all(seq <= state.delivered.seq for seq in held)
    assert state.floor_seq == (held[0] - 1 if held else state.delivered.seq)


@settings(max_examples=100)
@given(st.lists(commands, max_size=20), st.integers(0, 20))
def test_whoever_begins_with_a_snapshot_comes_to_the_same_state(story: list[Command], cut: int) -> None:
    whole, answers = told(story)
    early, _ = told(story[:cut])
    _, _, kept = unpacked(packed_snapshot(early.snapshot()))
    state = LedgerState.restored(kept)
    rest = [
        state.apply(str(n), unpacked(packed(str(n), command))[2])
        for n, command in enumerate(story[cut:], start=len(story[:cut]))
    ]
    assert seen(state) == seen(whole)
    assert [_plain(each) for each in rest] == [_plain(each) for each in answers[cut:]]


def _plain(answer: object) -> object:
    return [list(each) if isinstance(each, tuple) else each for each in answer] if isinstance(answer, list) else answer


@settings(max_examples=100)
@given(st.lists(commands, max_size=20))
def test_a_command_that_comes_twice_counts_once(story: list[Command]) -> None:
    once, answers = told(story)
    state = LedgerState()
    state.apply("join", Join(0, 0))
    twice = [(state.apply(str(n), command), state.apply(str(n), command)) for n, command in enumerate(story)]
    assert seen(state) == seen(once)
    assert twice == [(answer, answer) for answer in answers]


@given(st.lists(commands, max_size=15))
def test_what_was_acked_is_not_handed_out_again(story: list[Command]) -> None:
    state, acked = LedgerState(), set[int]()
    state.apply("join", Join(0, 0))
    for n, command in enumerate(story):
        before = {seq for run in state.runs for seq in range(run.seq, run.end) if run.ms == 7}
        answer = state.apply(str(n), command)
        if isinstance(command, Deliver):
            assert not acked & {seq for first, count, *_ in answer for seq in range(first, first + count)}
        if isinstance(command, Settle):
            left = {seq for run in state.runs for seq in range(run.seq, run.end)}
            acked |= before - left
        if isinstance(command, Mark) and answer:
            acked |= set(range(command.seq + 1))


def test_a_delivery_that_makes_something_due_is_told_by_its_first_letter() -> None:
    nak, ack = Settle(0, ((NAK, 1, 1, 7, 0),)), Settle(0, ((ACK, 1, 1, 7, 0),))
    assert [frees(packed("x", each)) for each in (nak, ack, Retire(0, "a"), Mark(1, 1))] == [True, False, True, False]


@pytest.mark.parametrize("body", [b"", b"[]", b'["d",2,"x",[]]', b'["?",1,"x",[]]', b"\xff"])
def test_a_ledger_that_is_not_ours_is_said_to_be_broken(body: bytes) -> None:
    with pytest.raises(StoreBroken):
        unpacked(body)


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([7, 8])), max_size=20, unique=True).map(sorted))
def test_spans_hold_what_they_were_made_of(places: list[tuple[int, int]]) -> None:
    assert [(seq + step, ms) for seq, count, ms in spans(places) for step in range(count)] == places
