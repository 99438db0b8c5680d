"""What only groups on NATS are: durable pull consumers that other programs see, make and share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from nats import connect

from backends.nats.scene import TIMEOUT, G, S, Scene, drafts, flush, scene
from conformance.stores import Store
from conformance.upkeep import Upkeep
from nats_noticed import NOTICED, deliver_noticed
from servers.nats import Nats
from servers.proxy import proxy
from wrasse.backends.nats.client.jetstream import CONSUMER_NOT_FOUND, JetStream, JsError
from wrasse.backends.nats.connect import Flows, Nats as NatsBackend
from wrasse.backends.nats.durables import Reads, durable_names, group_named, reads_of
from wrasse.backends.nats.groups import floor_of
from wrasse.clock import SystemClock
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, UsageError
from wrasse.ports.groups import Ack, DeadLetter, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Draft, EntryId
from wrasse.streams.retention import Bound, RetentionRule, Stand, judge

FIRST = StartAt(first=True)
DONE, LOST = Outcome.DONE, Outcome.CONFLICT
LETTERS = "gbe._deadletter.x"
SECOND = timedelta(seconds=1)


@pytest.fixture
async def stage(nats_server: Nats) -> AsyncIterator[Scene]:
    async with scene(nats_server.port) as made:
        yield made


async def deliver(flows: Flows, limit: int = 100, subject: str = S, wait: timedelta = NOTICED, group: str = G):
    return await deliver_noticed(flows.groups, [subject], group, "c", limit, ack_timeout=TIMEOUT, wait=wait)


async def consumer_info(flows: Flows, name: str, subject: str = S) -> dict:
    lane = await flows.stream_map.find(subject)
    return await flows.stream_map.js.call(f"CONSUMER.INFO.{lane.stream}.{name}")


async def foreign(flows: Flows, name: str, subject: str = S, **config: object) -> None:
    """A durable that another program makes."""
    lane = await flows.stream_map.make(subject)
    told = {"durable_name": name, "ack_policy": "explicit", "filter_subject": lane.subject, **config}
    verb = f"CONSUMER.DURABLE.CREATE.{lane.stream}.{name}"
    await flows.stream_map.js.call(verb, {"stream_name": lane.stream, "config": told})


# The durable


async def test_a_group_is_a_durable_of_its_name_without_limits_on_deliveries(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, "email-workers", FIRST, ack_timeout=7 * SECOND)
    config = (await consumer_info(flows, "email-workers"))["config"]
    wanted = ("explicit", 7_000_000_000, -1, -1, f"{stage.root}.s.{S}", "wrasse group email-workers")
    names = ("ack_policy", "ack_wait", "max_deliver", "max_ack_pending", "filter_subject", "description")
    assert tuple(config[name] for name in names) == wanted


async def test_further_subjects_of_one_stream_are_durables_with_the_subject_in_their_name(stage: Scene) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    for subject in ("gbe.events.a", "gbe.events.b"):
        assert await flows.groups.join(subject, G, FIRST)
        assert not await flows.groups.join(subject, G, FIRST)
        await flows.streams.append(drafts(2, subject))
    stored = f"{stage.root}.s.gbe.events.b"
    assert (await consumer_info(flows, G, "gbe.events.a"))["config"]["filter_subject"].endswith(".a")
    assert (await consumer_info(flows, f"{G}__{stored.replace('.', '_')}", "gbe.events.b"))["num_pending"] == 2
    states = [await flows.streams.info(subject) for subject in ("gbe.events.a", "gbe.events.b")]
    assert [[group.name for group in state.groups] for state in states] == [[G], [G]]
    found = await deliver_noticed(flows.groups, ["gbe.events.a", "gbe.events.b"], G, "c", 10, ack_timeout=TIMEOUT)
    assert len(found) == 4


async def test_two_who_join_at_once_make_one_durable(stage: Scene) -> None:
    members = [await stage.flows() for _ in range(4)]
    await asyncio.gather(*(flows.groups.join(S, G, FIRST) for flows in members))
    lane = await members[0].stream_map.find(S)
    state = (await members[0].stream_map.js.call(f"STREAM.INFO.{lane.stream}"))["state"]
    assert state["consumer_count"] == 1


async def test_processes_share_a_group_without_overlap_and_without_rest(stage: Scene) -> None:
    members = [await stage.flows() for _ in range(4)]
    await members[0].groups.join(S, G, FIRST)
    await members[0].streams.append(drafts(600))
    got: list[bytes] = []

    async def consume(flows: Flows) -> None:
        while len(got) < 600:
            found = await deliver(flows, 7)
            got.extend(delivery.entry.body for delivery in found)
            assert set(await flows.groups.answer([Ack(S, G, d.entry.id) for d in found])) <= {DONE}

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume(flows) for flows in members))
    assert sorted(map(int, got)) == list(range(600))
    (group,) = (await members[1].streams.info(S)).groups
    assert (group.pending, group.lag, group.floor) == (0, 0, group.delivered)


async def test_an_ack_is_stored_at_the_server_when_it_returns(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST)
    await flows.streams.append(drafts(100))
    found = await deliver(flows)
    for count in range(0, 100, 10):
        await flows.groups.answer([Ack(S, G, d.entry.id) for d in found[count : count + 10]])
        assert (await consumer_info(flows, G))["ack_floor"]["stream_seq"] == count + 10


async def test_another_time_out_is_refused_and_changes_nothing(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST, ack_timeout=30 * SECOND)
    with pytest.raises(Refused, match="AckWait 30s, and ack_timeout is 60s") as refused:
        await flows.groups.join(S, G, FIRST, ack_timeout=60 * SECOND)
    assert "nats consumer edit" in refused.value.do
    assert (await consumer_info(flows, G))["config"]["ack_wait"] == 30_000_000_000
    assert not await flows.groups.join(S, G, FIRST)


async def test_a_group_cannot_begin_later_than_now(stage: Scene) -> None:
    flows = await stage.flows()
    with pytest.raises(UsageError, match="cannot begin at a future moment"):
        await flows.groups.join(S, G, StartAt(at=SystemClock().now() + timedelta(hours=1)))


# What other programs made


async def test_a_durable_that_is_there_is_joined_listed_and_protects(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(4))
    await foreign(flows, "billing")
    assert not await flows.groups.join(S, "billing", FIRST, ack_timeout=30 * SECOND)
    found = await deliver(flows, 2, group="billing")
    await flows.groups.answer([Ack(S, "billing", delivery.entry.id) for delivery in found])
    (group,) = (await flows.streams.info(S)).groups
    assert (group.name, group.pending, group.lag, group.protects) == ("billing", 0, 2, True)
    trimmed = await flows.streams.trim(S, age=None, below=None, protect=("billing",), limit=100)
    assert (trimmed.count, trimmed.held_by) == (2, "billing")


async def test_a_nats_py_consumer_of_the_same_durable_shares_the_work(nats_server: Nats, stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST)
    await flows.streams.append(drafts(5))
    ours = await deliver(flows, 2)
    lane = await flows.stream_map.find(S)
    client = await connect(nats_server.url)
    theirs = await client.jetstream().pull_subscribe_bind(durable=G, stream=lane.stream)
    got = await theirs.fetch(2, timeout=10)
    for message in got:
        await message.ack_sync()
    await flows.groups.answer([Ack(S, G, delivery.entry.id) for delivery in ours])
    rest = await deliver(flows)
    await client.close()
    assert [d.entry.body for d in ours] + [m.data for m in got] == [b"0", b"1", b"2", b"3"]
    assert ([d.entry.body for d in rest], (await flows.streams.info(S)).groups[0].pending) == ([b"4"], 1)


@pytest.mark.guarantee("G5")
async def test_a_durable_with_a_limit_of_deliveries_is_joined_and_protects_nothing(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(5))
    await foreign(flows, G, max_deliver=1, ack_wait=100_000_000)
    assert not await flows.groups.join(S, G, FIRST)
    first, *rest = await deliver(flows, 5)
    await flows.groups.answer([Ack(S, G, delivery.entry.id) for delivery in rest])
    async with asyncio.timeout(20):  # the server gives up the message that nobody acked
        while (await consumer_info(flows, G))["num_ack_pending"]:
            await deliver(flows, 5)
    (group,) = (await flows.streams.info(S)).groups
    trimmed = await flows.streams.trim(S, age=None, below=None, protect=(G,), limit=100)
    assert (group.protects, trimmed.count, trimmed.held_by) == (False, 0, G)
    state = await flows.streams.info(S)
    kept = Bound(RetentionRule(S, timedelta(0), exact=True, protect=(G,)), (G,))
    assert (state.first, judge(state, kept, state.at + SECOND).stand) == (first.entry.id, Stand.UNPROVEN)


@pytest.mark.guarantee("G5")
async def test_a_durable_without_acks_protects_nothing(nats_server: Nats, stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(3))
    await foreign(flows, G, ack_policy="none")
    client = await connect(nats_server.url)
    lane = await flows.stream_map.find(S)
    theirs = await client.jetstream().pull_subscribe_bind(durable=G, stream=lane.stream)
    await theirs.fetch(3, timeout=20)
    await client.close()
    trimmed = await flows.streams.trim(S, age=None, below=None, protect=(G,), limit=100)
    assert (trimmed.count, trimmed.held_by, (await flows.streams.info(S)).groups) == (0, G, ())


async def test_a_group_on_a_work_queue_is_refused_with_the_reason_where_the_server_takes_none(stage: Scene) -> None:
    flows, js = await stage.flows(), await stage.js()
    queue = {"name": f"{stage.root}-work", "subjects": [flows.stream_map.layout.stored(S)], "retention": "workqueue"}
    await js.call(f"STREAM.CREATE.{queue['name']}", queue)
    await js.store(flows.stream_map.layout.stored(S), b"1")
    with pytest.raises(Refused, match="begin at the first message") as refused:
        await flows.groups.join(S, G, StartAt())
    assert "start='first'" in refused.value.do
    assert await flows.groups.join(S, G, FIRST)
    with pytest.raises(Refused, match="is a work queue, and there is a consumer"):
        await flows.groups.join(S, "others", FIRST)
    assert [delivery.entry.body for delivery in await deliver(flows)] == [b"1"]


async def test_doctor_tells_of_durables_whose_floor_proves_nothing(nats_server: Nats, stage: Scene) -> None:
    flows = await stage.flows()
    await foreign(flows, "patient")
    await foreign(flows, "hasty", max_deliver=3)
    backend = await NatsBackend.open(stage.options())
    stage.links.append(backend.connection)
    found = [each for each in await backend.examine() if each.check == "groups" and stage.root in each.what]
    js = JetStream(backend.connection)
    await js.call(f"STREAM.DELETE.KV_{stage.root}")
    assert [("'hasty'" in each.what, "gives up after 3 deliveries" in each.what) for each in found] == [(True, True)]
    assert "--max-deliver=-1; handle what it gave up first" in found[0].do


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"ack_policy": "none"}, "ack_policy none"),
        ({"deliver_subject": "pushed"}, "pushes"),
        ({"headers_only": True}, "without their payload"),
        ({"max_batch": 5}, "larger pull requests are refused"),
        ({"max_expires": 10_000_000_000}, "longer pull requests are refused"),
        ({"max_bytes": 1_000}, "larger pull requests are refused"),
        ({"inactive_threshold": 60_000_000_000}, "would lose its place"),
        ({"priority_groups": ["a"], "priority_policy": "overflow"}, "only members of these"),
    ],
)
async def test_a_durable_that_cannot_be_shared_is_refused(stage: Scene, config: dict, why: str) -> None:
    flows = await stage.flows()
    await foreign(flows, G, **config)
    with pytest.raises(Refused, match=why):
        await flows.groups.join(S, G, FIRST)


async def test_a_pull_request_that_the_server_refuses_is_an_error_and_not_an_empty_page(stage: Scene) -> None:
    flows = await stage.flows()
    await foreign(flows, G, max_waiting=1)
    await flows.groups.join(S, G, FIRST)
    waiting = asyncio.ensure_future(deliver(flows, 1, wait=60 * SECOND))
    async with asyncio.timeout(20):
        while not (await consumer_info(flows, G))["num_waiting"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises(StoreUnavailable, match="Exceeded MaxWaiting"):
            await deliver(flows, 1, wait=60 * SECOND)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_consumers_of_a_durable_that_gives_out_no_more_now_wait_their_turn(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(3))
    await foreign(flows, G, max_ack_pending=1)
    await flows.groups.join(S, G, FIRST)
    wait = 60 * SECOND
    async with asyncio.timeout(40):
        (held,) = await flows.groups.deliver([S], G, "c", 100, ack_timeout=TIMEOUT, wait=wait)  # no page is waited for
        asking = {
            asyncio.ensure_future(flows.groups.deliver([S], G, "c", 100, ack_timeout=TIMEOUT, wait=wait))
            for _ in range(4)
        }
        while (await consumer_info(flows, G))["num_waiting"] < 4:
            assert not any(each.done() for each in asking), "told at once that there is nothing, and would ask again"
            await asyncio.sleep(0.02)
        got = [held]
        while len(got) < 3:
            assert await flows.groups.answer([Ack(S, G, got[-1].entry.id)]) == (DONE,)
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            got += [each for one in done for each in one.result()]
    assert [(each.entry.body, each.number) for each in got] == [(b"0", 1), (b"1", 1), (b"2", 1)]
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)


async def test_a_durable_that_reads_more_than_the_subject_is_refused_and_not_made_again(stage: Scene) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    await foreign(flows, G, filter_subject=f"{stage.root}.s.gbe.events.>")
    with pytest.raises(Refused, match="delivers more than"):
        await flows.groups.join(S, G, FIRST)
    (group,) = (await flows.streams.info(S)).groups
    assert group.name == G


async def test_a_name_that_is_another_group_s_is_refused(stage: Scene) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    for subject, group in (("gbe.events.a", "g"), ("gbe.events.b", "g")):
        await flows.groups.join(subject, group, FIRST)
    _, longer = durable_names("g", f"{stage.root}.s.gbe.events.b")
    with pytest.raises(Refused, match="belongs to the group 'g'"):
        await flows.groups.join("gbe.events.b", longer, FIRST)


async def test_subjects_whose_durables_would_have_one_name_are_not_mixed_up(stage: Scene) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    await flows.groups.join("gbe.events.first", G, FIRST)
    await flows.groups.join("gbe.events.a.b_c", G, FIRST)
    with pytest.raises(Refused, match="used in the stream"):
        await flows.groups.join("gbe.events.a_b.c", G, FIRST)
    await flows.groups.join("gbe.events.a_b.c", "others", FIRST)


async def test_a_durable_that_was_deleted_is_said_to_be_missing(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST)
    lane = await flows.stream_map.find(S)
    await flows.stream_map.js.call(f"CONSUMER.DELETE.{lane.stream}.{G}")
    with pytest.raises(UsageError, match="there is no group"):
        await deliver(flows)


async def test_a_group_that_is_moved_by_marks_is_no_durable_and_the_other_way_round(stage: Scene) -> None:
    flows = await stage.flows()
    (id,) = await flows.streams.append(drafts(1))
    await flows.groups.join(S, "archiver", FIRST, cursor=True)
    with pytest.raises(Refused, match="moved by a cursor"):
        await flows.groups.join(S, "archiver", FIRST)
    await flows.groups.join(S, G, FIRST)
    with pytest.raises(Refused, match="is a durable consumer"):
        await flows.groups.mark(S, G, id)


def test_a_durable_has_the_name_of_its_group_where_nats_takes_it() -> None:
    names = [durable_names(group, "a.b")[0] for group in ("email-workers", "a.b", "größe", "x y")]
    assert names == ["email-workers", "a=2Eb", "gr=C3=B6=C3=9Fe", "x=20y"]
    assert durable_names("g", "gbe.tasks.mail")[1] == "g__gbe_tasks_mail"
    assert all(len(name) <= 200 for name in durable_names("ö" * 120, "a." * 100 + "b"))


def test_the_group_of_a_durable_is_told_by_itself_or_by_its_name() -> None:
    told = {"description": "wrasse group a__b", "filter_subject": "b"}
    assert (group_named(told, "a__b"), group_named({"filter_subject": "b"}, "a__b"), group_named({}, "a__b")) == (
        "a__b", "a", "a__b",
    )  # fmt: skip


def test_what_a_consumer_reads_is_told_by_its_filters() -> None:
    asked = [
        ({"filter_subject": "a.b"}, False), ({}, True), ({}, False), ({"filter_subjects": ["a.b", "a.c"]}, False),
        ({"filter_subject": "a.>"}, True), ({"filter_subject": "a.c"}, False),
    ]  # fmt: skip
    found = [reads_of(config, "a.b", alone=alone) for config, alone in asked]
    assert found == [Reads.SAME, Reads.SAME, Reads.MORE, Reads.MORE, Reads.SAME, Reads.OTHER]


# Answers


async def test_a_dead_letter_that_is_sent_again_after_a_crash_is_one(stage: Scene) -> None:
    first, second = await stage.flows(), await stage.flows()
    await first.groups.join(S, G, FIRST, ack_timeout=SECOND)
    (id,) = await first.streams.append(drafts(1))
    letter = DeadLetter(S, G, id, Draft(LETTERS, b"letter"))
    await deliver(first)
    await first.groups._appender.append([Draft(LETTERS, b"letter", _key(letter))])  # and it died before the ack
    async with asyncio.timeout(20):
        (delivery,) = await deliver(second, wait=10 * SECOND)
    assert (delivery.number, await second.groups.answer([letter])) == (2, (DONE,))
    assert (await first.streams.info(LETTERS)).length == 1


def _key(letter: DeadLetter) -> str:
    from wrasse.backends.nats.groups import _letter_key

    return _letter_key(letter)


@pytest.mark.parametrize("settles", [True, False])
async def test_an_answer_settles_what_was_delivered_again_before_the_server_had_it(
    stage: Scene, monkeypatch: pytest.MonkeyPatch, settles: bool
) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST, ack_timeout=SECOND / 5)
    (id,) = await flows.streams.append(drafts(1))
    await deliver(flows)
    answer = DeadLetter(S, G, id, Draft(LETTERS, b"letter")) if settles else Nak(S, G, id)
    confirmed = flows.groups._confirmed

    async def late(sent: list[tuple[bytes, bytes]]) -> None:
        (again,) = await deliver(flows, wait=10 * SECOND)
        assert again.number == 2
        monkeypatch.undo()
        await confirmed(sent)

    monkeypatch.setattr(flows.groups, "_confirmed", late)
    async with asyncio.timeout(20):
        assert await flows.groups.answer([answer]) == (DONE,)
    assert await flows.groups.answer([Ack(S, G, id)]) == (LOST if settles else DONE,)


@pytest.mark.guarantee("at least once")
async def test_an_ack_whose_reply_was_lost_is_sent_again_and_counts_once(stage: Scene) -> None:
    async with proxy(stage.port) as between:
        flows = await stage.flows(between.port)
        await flows.groups.join(S, G, FIRST)
        await flows.streams.append(drafts(3))
        found = await deliver(flows)
        acks = [Ack(S, G, delivery.entry.id) for delivery in found]
        between.deaf = True
        answering = asyncio.ensure_future(flows.groups.answer(acks))
        async with asyncio.timeout(20):
            while not between.replies_dropped:  # noqa: ASYNC110  # the proxy rings no bell
                await asyncio.sleep(0.005)
        between.cut()
        between.deaf = False
        with pytest.raises(StoreUnavailable):
            await answering
        assert await flows.groups.answer(acks) == (DONE, DONE, DONE)
        assert await flows.groups.answer(acks) == (LOST, LOST, LOST)
    other = await stage.flows()
    (group,) = (await other.streams.info(S)).groups
    assert (group.pending, await deliver(other)) == (0, [])


async def test_a_question_that_is_given_up_takes_nothing_and_is_forgotten_by_the_server(stage: Scene) -> None:
    flows, other = await stage.flows(), await stage.flows()
    await flows.groups.join(S, G, FIRST)
    waiting = asyncio.ensure_future(deliver(flows, wait=60 * SECOND))
    async with asyncio.timeout(20):
        while not (await consumer_info(flows, G))["num_waiting"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    await flush(flows.stream_map.js.connection)
    await other.streams.append(drafts(1))
    (delivery,) = await deliver(other, wait=10 * SECOND)
    assert (delivery.number, delivery.entry.body) == (1, b"0")


async def test_what_ends_one_question_does_not_end_the_next(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.groups.join(S, G, FIRST)
    await flows.streams.append(drafts(2))
    assert len(await deliver(flows, 2)) == 2
    (inbox,) = flows.groups._pulls._free
    late = inbox.reply
    waiting = asyncio.ensure_future(deliver(flows, 2, wait=20 * SECOND))
    async with asyncio.timeout(20):
        while not (await consumer_info(flows, G))["num_waiting"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        inbox.heard(late, b"", b"NATS/1.0 409 Batch Completed\r\n\r\n", b"")  # of the page that was filled
        await flows.streams.append(drafts(1))
        assert [delivery.number for delivery in await waiting] == [1]


async def test_a_group_is_not_lost_with_the_link(stage: Scene) -> None:
    async with proxy(stage.port) as between:
        flows = await stage.flows(between.port)
        await flows.groups.join(S, G, FIRST)
        waiting = asyncio.ensure_future(deliver(flows, wait=20 * SECOND))
        await asyncio.sleep(0.1)
        between.cut()
        other = await stage.flows()
        await other.streams.append(drafts(1))
        async with asyncio.timeout(20):
            try:
                found = await waiting
            except StoreUnavailable:  # the question that was under way when the connection ended
                found = await deliver(flows, wait=20 * SECOND)
    assert [delivery.entry.body for delivery in found] == [b"0"]


async def test_one_message_wakes_one_of_forty_who_wait(nats_server: Nats, stage: Scene) -> None:
    members = [await stage.flows() for _ in range(4)]
    await members[0].groups.join(S, G, FIRST)
    await members[0].streams.append(drafts(1))
    await deliver(members[0])
    waiting = [asyncio.ensure_future(deliver(members[n % 4], 1, wait=60 * SECOND)) for n in range(40)]
    async with asyncio.timeout(20):
        while (await consumer_info(members[0], G))["num_waiting"] < 40:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    before = [flows.stream_map.js.connection._wire for flows in members]
    heard = await _counted(members, members[0].streams.append(drafts(1, first=1)))
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.2)
    assert [flows.stream_map.js.connection._wire for flows in members] == before
    assert (sum(task.done() for task in waiting), sum(heard) <= 10) == (1, True)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def _counted(members: list[Flows], work) -> list[int]:
    """How many messages each link hears from now on, as a list that goes on counting."""
    heard = [0]
    for flows in members:
        link = flows.stream_map.js.connection
        for number, hear in list(link._heard.items()):

            def counting(*told, hear=hear):
                heard[0] += 1
                hear(*told)

            link._heard[number] = counting
    await work
    return heard


# Groups that earlier versions kept in a ledger


def ledger(*commands: list) -> list[bytes]:
    return [json.dumps(command).encode() for command in commands]


async def keep_ledger(stage: Scene, flows: Flows, group: str, *commands: list) -> None:
    for body in ledger(*commands):
        await flows.stream_map.js.store(flows.stream_map.layout.ledger(S, group), body)


JOIN, GONE = ["j", 1, "n", [0, 0, 0]], ["g", 1, "", [[[3, 1]]]]


@pytest.mark.guarantee("at least once")
async def test_a_group_with_a_ledger_goes_on_where_that_stood_once(stage: Scene) -> None:
    flows = await stage.flows()
    ids = await flows.streams.append(drafts(6))
    acked = ["a", 1, "n", [0, [[0, 1, 2, ids[0].ms, 0]]]]
    await keep_ledger(stage, flows, G, JOIN, ["d", 1, "n", [0, "c", 3, 9, [[1, 3, ids[0].ms]]]], acked)
    assert not await flows.groups.join(S, G, StartAt(), ack_timeout=30 * SECOND)
    assert [d.entry.body for d in await deliver(flows)] == [b"2", b"3", b"4", b"5"]
    assert await flows.groups._ledgers.floor(S, G) is None
    assert not await flows.groups.join(S, G, FIRST)


async def test_an_archiver_with_a_ledger_keeps_its_place(stage: Scene) -> None:
    flows = await stage.flows()
    ids = await flows.streams.append(drafts(6))
    await keep_ledger(stage, flows, "archiver", JOIN, ["m", 1, "n", [ids[3].ms, ids[3].seq]])
    assert not await flows.groups.join(S, "archiver", FIRST, cursor=True)
    (group,) = (await flows.streams.info(S)).groups
    assert (group.name, group.floor, group.lag) == ("archiver", ids[3], 2)


async def test_a_crash_between_the_durable_and_the_end_of_the_ledger_makes_no_second_copy(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(3))
    await flows.groups.join(S, G, FIRST)
    await keep_ledger(stage, flows, G, JOIN)
    (first, *_) = await deliver(flows)
    assert not await flows.groups.join(S, G, FIRST)
    assert (await flows.groups._ledgers.floor(S, G), first.number) == (None, 1)
    assert await deliver(flows) == []


@pytest.mark.guarantee("at least once")
async def test_a_ledger_beside_a_durable_of_another_program_is_refused_and_kept(stage: Scene) -> None:
    flows = await stage.flows()
    ids = await flows.streams.append(drafts(6))
    await keep_ledger(stage, flows, G, ["j", 1, "n", [ids[3].ms, ids[3].seq, 0]])
    await foreign(flows, G)
    with pytest.raises(Refused, match="another program made") as refused:
        await flows.groups.join(S, G, FIRST)
    assert "nats stream purge" in refused.value.do
    lane = await flows.stream_map.find(S)
    await flows.stream_map.js.call(f"CONSUMER.DELETE.{lane.stream}.{G}")
    assert not await flows.groups.join(S, G, FIRST)
    assert [d.entry.body for d in await deliver(flows)] == [b"4", b"5"]


@pytest.mark.parametrize(
    ("commands", "floor"),
    [
        ([JOIN], 0),
        ([["j", 1, "n", [7, 4, 0]]], 4),
        ([JOIN, ["a", 1, "n", [0, [[0, 1, 3, 7, 0]]]]], 3),
        ([JOIN, ["n", 1, "n", [0, [[0, 1, 3, 7, 0], [1, 4, 1, 7, 0], [0, 5, 1, 7, 0]]]]], 3),
        ([JOIN, ["a", 1, "n", [0, [[0, 4, 2, 7, 0]]]], ["a", 1, "n", [0, [[0, 1, 3, 7, 0]]]]], 5),
        ([["S", 1, "", {"delivered": [7, 9], "runs": []}]], 9),
        ([["S", 1, "", {"delivered": [7, 9], "runs": [[3, 2, 7, 0, 1, 5]]}]], 2),
        ([["S", 1, "", {"delivered": [7, 9], "runs": [[3, 2, 7, 0, 1, 5]]}], ["a", 1, "n", [0, [[0, 3, 2, 7, 0]]]]], 9),
        ([["S", 1, "", {"delivered": [7, 9], "runs": [[3, 1, 7, 0, 1, 5], [6, 1, 7, 0, 1, 5]]}], GONE], 5),
        ([JOIN, ["m", 1, "n", [7, 6]], ["m", 1, "n", [7, 5]]], 6),
    ],
)  # fmt: skip
def test_a_ledger_tells_up_to_where_everything_is_settled(commands: list, floor: int) -> None:
    assert floor_of(ledger(*commands)).seq == floor


@pytest.mark.parametrize("body", [b"", b"[]", b'["a",2,"x",[]]', b"\xff"])
def test_a_ledger_that_is_not_ours_is_said_to_be_broken(body: bytes) -> None:
    with pytest.raises(StoreBroken):
        floor_of([body])


# The sweep


async def test_the_sweep_says_that_ack_wait_does_its_work_and_tells_of_a_group_that_nobody_reads(tmp_path) -> None:
    store = Store("nats", tmp_path, clock=SystemClock())
    await store.open()
    try:
        upkeep = Upkeep(store)
        await upkeep.groups.join(S, G, FIRST, ack_timeout=SECOND)
        sweep = upkeep.dead_consumers(stale_after=timedelta(milliseconds=300))
        page = await sweep.find(None, 10)
        reasons = [sweep.decide(each, page.at).reason for each in page]
        assert reasons == ["AckWait of its durable frees what a dead consumer held"]
        await upkeep.append(S, b"1")
        await upkeep.groups.deliver([S], G, "dead", 1, ack_timeout=SECOND, wait=30 * SECOND)
        await asyncio.sleep(0.5)
        await upkeep.run(sweep)
        assert [(alarm.group, alarm.count) for alarm in await upkeep.alarms()] == [(G, 1)]
    finally:
        await store.close()


async def test_an_unknown_durable_is_not_found(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(1))
    with pytest.raises(JsError) as refused:
        await consumer_info(flows, "nobody")
    assert refused.value.code == CONSUMER_NOT_FOUND
    assert await flows.groups.mark(S, "nobody", EntryId(1, 1)) is LOST
    assert await flows.groups.answer([Nak(S, "nobody", START)]) == (LOST,)
