"""What only streams on NATS do: chains, batches, several writers, old servers, other programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from backends.nats.scene import S, Scene, bodies, drafts, entries, flush, scene
from nats_noticed import deliver_noticed
from servers.nats import Nats, nats
from servers.proxy import Proxy, proxy
from wrasse.backends.nats.append import SHARED
from wrasse.backends.nats.client.connection import packed
from wrasse.backends.nats.connect import Flows, Nats as NatsStore
from wrasse.backends.nats.message_codec import NatsNames, stream_name, text_of, token
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import ManualClock
from wrasse.errors import ConfigError, StoreFull, StoreUnavailable, TooLarge
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import START, Draft, EntryId

FIRST = StartAt(first=True)
OLD = {"batches": False, "atomic": False}  # what servers before 2.11 and 2.12 can do


@pytest.fixture
async def stage(nats_server: Nats) -> AsyncIterator[Scene]:
    async with scene(nats_server.port) as made:
        yield made


def become_single_writer(flows: Flows, subject: str = S) -> None:
    """As if two seconds had passed since a process wrote its first long batch."""
    flows.streams._appender._writers._since[subject] -= 10.0


# Ways to write


@pytest.mark.parametrize("how", [{}, {"atomic": True}, OLD], ids=["as it pays", "batches", "old server"])
async def test_a_long_batch_is_stored_in_order_by_whatever_way(stage: Scene, how: dict[str, bool]) -> None:
    flows = await stage.flows(**how)
    ids = await flows.streams.append(drafts(2_500))
    stored = await entries(flows)
    assert [(entry.id, entry.body) for entry in stored] == [(id, b"%d" % n) for n, id in enumerate(ids)]


async def test_a_process_that_writes_alone_sends_chains(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(100))
    become_single_writer(flows)
    await asyncio.gather(*(flows.streams.append(drafts(100, first=100 * n)) for n in range(1, 4)))
    headers = [message.header for message in (await _stored(stage, flows))[100:]]
    assert len(headers) == 300
    assert not [header for header in headers if b"Nats-Batch-Id" in header]


async def _stored(stage: Scene, flows: Flows):
    lane = await flows.stream_map.find(S)
    assert lane is not None
    return (await flows.stream_map.reader.page(lane.stream, lane.subject, 0, 10_000))[0]


async def test_two_processes_write_long_batches_and_each_stays_in_order(stage: Scene) -> None:
    writers = [await stage.flows() for _ in range(3)]

    async def write(number: int) -> None:
        for batch in range(4):
            await writers[number].streams.append([Draft(S, b"%d %d" % (number, batch * 70 + n)) for n in range(70)])

    await asyncio.gather(*(write(number) for number in range(3)))
    stored = await entries(writers[0])
    assert [entry.id for entry in stored] == sorted({entry.id for entry in stored})
    for number in range(3):
        mine = [int(entry.body.split()[1]) for entry in stored if entry.body.startswith(b"%d " % number)]
        assert mine == list(range(280))


async def test_a_second_writer_takes_the_pen_from_the_first(stage: Scene) -> None:
    first, second = await stage.flows(), await stage.flows()
    await first.streams.append(drafts(100))
    await second.streams.append([Draft(S, b"mine")])
    lane = await second.stream_map.find(S)
    assert lane is not None
    assert (await second.stream_map.note(S, lane, leader=True)).writer == SHARED


async def test_single_appends_at_once_share_their_steps(stage: Scene) -> None:
    flows = await stage.flows()
    await asyncio.gather(*(flows.streams.append([Draft(S, b"%d" % n)]) for n in range(300)))
    assert sorted(map(int, await bodies(flows))) == list(range(300))


async def test_an_entry_of_another_program_in_the_middle_of_a_chain_loses_nothing(stage: Scene) -> None:
    flows, js = await stage.flows(), await stage.js()
    await flows.streams.append(drafts(100))
    become_single_writer(flows)

    async def disturb() -> None:
        for n in range(50):
            await js.store(f"{stage.root}.s.{S}", b"other %d" % n)

    async def write() -> None:
        for n in range(1, 11):
            await flows.streams.append(drafts(100, first=100 * n))

    await asyncio.gather(disturb(), write())
    stored = await bodies(flows)
    assert sorted(int(body) for body in stored if not body.startswith(b"other")) == list(range(1_100))
    assert len(stored) == 1_150


async def append_with_a_lost_reply(flows: Flows, between: Proxy) -> Sequence[EntryId]:
    await flows.streams._appender._ready(S, 0)  # what an append reads first is known for a second
    before, between.deaf = between.replies_dropped, True
    appending = asyncio.ensure_future(flows.streams.append(drafts(100, first=100)))
    async with asyncio.timeout(20):
        while between.replies_dropped == before:  # noqa: ASYNC110  # the proxy rings no bell
            await asyncio.sleep(0.005)
    between.deaf = False
    return await appending


@pytest.mark.parametrize("how", [{}, OLD], ids=["as it pays", "old server"])
@pytest.mark.parametrize("alone", [False, True], ids=["shared", "alone"])
async def test_a_lost_reply_stores_nothing_twice(stage: Scene, how: dict[str, bool], alone: bool) -> None:
    async with proxy(stage.port) as between:
        flows = await stage.flows(between.port, **how)
        await flows.streams.append(drafts(100))
        if alone:
            become_single_writer(flows)
        for _ in range(20):
            try:
                ids = await append_with_a_lost_reply(flows, between)
                break
            except StoreUnavailable:  # on a slow machine the lane was read again first, and that reply was the lost one
                assert len(await entries(flows)) == 100
        stored = await entries(flows)
    assert [entry.body for entry in stored] == [b"%d" % n for n in range(200)]
    assert [entry.id for entry in stored[100:]] == list(ids)


async def test_an_append_to_a_server_that_is_gone_says_that_nobody_knows() -> None:
    with nats() as server:
        stage = Scene(server.port)
        flows = await stage.flows()
        await flows.streams.append(drafts(1))
        server.stop()
        with pytest.raises(StoreUnavailable):
            await flows.streams.append(drafts(1))
        server.start()
        await flows.streams.append([Draft(S, b"after")])
        assert (await bodies(flows))[-1] == b"after"
        await stage.close()


async def test_what_the_server_does_not_take_is_refused_before_anything_is_sent() -> None:
    with nats("max_payload: 64KB\n") as server:
        stage = Scene(server.port)
        flows = await stage.flows()
        with pytest.raises(TooLarge, match="the server takes 65536"):
            await flows.streams.append([Draft(S, b"small"), Draft(S, b"x" * 65_500)])
        assert await bodies(flows) == []
        await stage.close()


async def test_a_stream_that_somebody_removed_is_made_again(stage: Scene) -> None:
    flows, js = await stage.flows(), await stage.js()
    await flows.streams.append(drafts(3))
    await js.call(f"STREAM.DELETE.{stream_name(f'{stage.root}.s.{S}')}")
    await flows.streams.append([Draft(S, b"anew")])
    assert await bodies(flows) == [b"anew"]


async def test_a_page_from_a_moment_begins_there(stage: Scene) -> None:
    clock = ManualClock()
    flows = await stage.flows(time=clock)
    for n in range(20):
        await flows.streams.append([Draft(S, b"%d" % n)])
        clock.advance(timedelta(seconds=1))
    moment = EntryId((await entries(flows))[12].id.ms, 0)
    for after in (moment, moment.previous):
        page = await flows.streams.read(S, after, 3)
        assert [entry.body for entry in page.items] == [b"12", b"13", b"14"]
    beyond = EntryId(moment.ms + 3_600_000, 0)
    assert not (await flows.streams.read(S, beyond, 3)).items


async def test_a_restart_is_told_by_the_history_of_a_stream() -> None:
    with nats() as server:
        stage = Scene(server.port)
        flows = await stage.flows()
        await flows.streams.append(drafts(1))
        before = [(await flows.streams.info(S)).history for _ in range(2)]
        server.stop()
        server.start()
        await flows.streams.append(drafts(1))
        after = (await flows.streams.info(S)).history
        await stage.close()
    assert before[0] == before[1] != after


async def test_many_streams_are_looked_at_together(stage: Scene) -> None:
    flows = await stage.flows()
    await asyncio.gather(*(flows.streams.append(drafts(n + 1, f"many.{n:03}")) for n in range(30)))
    survey = flows.streams
    first = await survey.survey("many.*", None, 20)
    rest = await survey.survey("many.*", first.cursor, 20)
    assert [(state.subject, state.length) for state in (*first, *rest)] == [(f"many.{n:03}", n + 1) for n in range(30)]
    assert (first.more, rest.more) == (True, False)


# Streams that others made, and patterns


async def test_subjects_of_one_pattern_share_a_stream_and_keep_their_own_numbers(stage: Scene) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    await flows.streams.append([*drafts(3, "gbe.events.a"), *drafts(2, "gbe.events.b"), *drafts(1, "gbe.events.a", 3)])
    await flows.groups.join("gbe.events.b", "g", FIRST)
    a, b = [await flows.streams.info(f"gbe.events.{each}") for each in "ab"]
    assert (a.length, a.appended, a.bytes, b.length, b.groups[0].lag) == (4, 4, 4, 2, 2)
    assert (await flows.stream_map.find("gbe.events.a")).stream == (await flows.stream_map.find("gbe.events.b")).stream
    assert list((await flows.streams.subjects("gbe.>", None, 10)).items) == ["gbe.events.a", "gbe.events.b"]


async def test_a_trim_of_one_subject_leaves_the_others_of_its_stream(stage: Scene) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    for n in range(3):
        await flows.streams.append([Draft("gbe.events.a", b"%d" % n), Draft("gbe.events.b", b"%d" % n)])
    trimmed = await flows.streams.trim("gbe.events.a", age=None, below=None, protect=(), limit=100)
    last = await flows.streams.append([Draft("gbe.events.a", b"next")])
    assert (trimmed.count, await bodies(flows, "gbe.events.b")) == (3, [b"0", b"1", b"2"])
    assert [entry.id for entry in await entries(flows, "gbe.events.a")] == list(last)


async def test_entries_of_other_programs_are_read_with_the_server_s_time(stage: Scene) -> None:
    flows, js = await stage.flows(), await stage.js()
    before = (await flows.streams.append([Draft(S, b"ours")]))[0]
    await js.store(f"{stage.root}.s.{S}", b"theirs")
    after = (await flows.streams.append([Draft(S, b"ours again")]))[0]
    stored = await entries(flows)
    assert [entry.body for entry in stored] == [b"ours", b"theirs", b"ours again"]
    assert before < stored[1].id < after


@pytest.mark.parametrize("how", [{}, OLD], ids=["new server", "old server"])
async def test_headers_of_other_programs_are_read_delivered_and_drained(stage: Scene, how: dict) -> None:
    flows, js = await stage.flows(**how), await stage.js()
    await flows.groups.join(S, "g", FIRST)
    subject = f"{stage.root}.s.{S}".encode()
    header = b"NATS/1.0\r\nTrace: t1\r\nTag: a\r\nTag:b\r\nNats-Msg-Id: m1\r\n\r\n"
    await js.connection.send(packed(subject, b"theirs", header=header))
    await flush(js.connection)
    await js.store(subject.decode(), b"bare")
    await flows.streams.append([Draft(S, b"ours"), Draft(S, b"more", fields={"x": b"\xff"})])
    wanted = [{"Trace": b"t1", "Tag": b"a\nb", "Nats-Msg-Id": b"m1"}, None, None, {"x": b"\xff"}]
    delivered = await deliver_noticed(flows.groups, [S], "g", "c", 10, ack_timeout=timedelta(seconds=30))
    chunk = await flows.streams.chunk(S, START, 10)
    assert [entry.fields for entry in await entries(flows)] == wanted
    assert [delivery.entry.fields for delivery in delivered] == wanted
    assert [entry.fields for entry in chunk.entries(4)] == wanted


async def test_an_entry_with_an_older_time_than_the_one_before_it_is_protected_by_its_place(stage: Scene) -> None:
    flows, js = await stage.flows(time=ManualClock(datetime(2200, 1, 1, tzinfo=UTC))), await stage.js()
    await flows.groups.join(S, "archiver", FIRST)
    await flows.streams.append([Draft(S, b"acked")])
    await js.store(f"{stage.root}.s.{S}", b"by the server's clock long before")
    await flows.streams.append([Draft(S, b"last")])
    (delivery,) = await deliver_noticed(flows.groups, [S], "archiver", "c", 1, ack_timeout=timedelta(seconds=30))
    await flows.groups.answer([Ack(S, "archiver", delivery.entry.id)])
    trimmed = await flows.streams.trim(S, age=None, below=None, protect=("archiver",), limit=100)
    assert (trimmed.count, len(await bodies(flows))) == (1, 2)


async def test_a_stream_that_was_made_by_hand_is_used_as_it_is(stage: Scene) -> None:
    js = await stage.js()
    made = {"name": f"{stage.root}-hand", "subjects": [f"{stage.root}.s.gbe.>"], "storage": "memory"}
    await js.call(f"STREAM.CREATE.{made['name']}", made)
    flows = await stage.flows()
    await flows.groups.join(S, "g", FIRST)
    await flows.streams.append(drafts(150))
    delivered = await deliver_noticed(flows.groups, [S], "g", "c", 150, ack_timeout=timedelta(seconds=30))
    assert len(await bodies(flows)) == len(delivered) == 150


async def test_no_stream_is_made_with_a_maximal_age(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(2))
    await flows.streams.append([Draft("gbe.tasks.mail.queue", b"")])

    listed = (await (await stage.js()).call("STREAM.LIST", {}))["streams"]

    ours = [each["config"] for each in listed if any(stage.root in taken for taken in each["config"]["subjects"])]
    assert len(ours) >= 2
    assert {each["max_age"] for each in ours} == {0}


# Old servers


async def test_an_old_server_passes_entries_to_groups_and_back(stage: Scene) -> None:
    flows = await stage.flows(**OLD)
    await flows.groups.join(S, "g", FIRST)
    await flows.streams.append(drafts(250))
    read: list[bytes] = []
    while found := await deliver_noticed(flows.groups, [S], "g", "c", 100, ack_timeout=timedelta(seconds=30)):
        read += [delivery.entry.body for delivery in found]
        await flows.groups.answer([Ack(S, "g", delivery.entry.id) for delivery in found])
    assert read == [b"%d" % n for n in range(250)]


async def test_a_page_is_read_on_by_one_consumer(stage: Scene) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(1_000))
    after, read = START, []
    while (page := await flows.streams.read(S, after, 150)).items:
        read += [entry.body for entry in page.items]
        after = page.items[-1].id
    assert read == [b"%d" % n for n in range(1_000)]
    lane = await flows.stream_map.find(S)
    assert (await flows.stream_map.js.call(f"STREAM.INFO.{lane.stream}"))["state"]["consumer_count"] <= 1


# Names


@pytest.mark.parametrize("text", ["a", "gbe.events.audit", "a-b_c", "é*>/ \\", "=2D", "x" * 255, "\ud800"])
def test_a_name_is_read_back_from_its_token(text: str) -> None:
    written = token(text)
    assert text_of(written) == text
    assert not set(written) & set(".*> /\\")


def test_names_of_streams_are_short_and_different() -> None:
    long = [stream_name("é" * 127 + str(n)) for n in range(3)]
    assert len(set(long)) == 3
    assert all(len(name) <= 200 for name in long)


def test_a_subject_of_a_pattern_lives_in_the_pattern_s_stream() -> None:
    layout = NatsNames("r", "p.", ("gbe.events.>",))
    assert layout.home("gbe.events.audit") == ("p-gbe-events-=3E", "p.gbe.events.>")
    assert layout.home("gbe.tasks.x") == ("p-gbe-tasks-x", "p.gbe.tasks.x")


async def test_a_stream_that_its_owner_limited_refuses_what_it_has_no_room_for(stage: Scene) -> None:
    stored = f"{stage.root}.s.{S}"
    made = {"name": f"{stage.root}-full", "subjects": [stored], "storage": "memory", "max_msgs": 2, "discard": "new"}
    await (await stage.js()).call(f"STREAM.CREATE.{made['name']}", made)
    flows = await stage.flows()
    await flows.streams.append(drafts(2))
    with pytest.raises(StoreFull, match="maximum messages exceeded"):
        await flows.streams.append(drafts(1))
    assert await bodies(flows) == [b"0", b"1"]


RIGHTS = """authorization { users: [
  {user: u, password: p, permissions: {publish: {deny: "gbe.events.audit"}}}
] }"""


@pytest.mark.parametrize("asked", [drafts(1), drafts(3), [Draft(S, b"", key="k")]], ids=["one", "several", "by a key"])
async def test_an_append_without_the_permission_is_refused_by_its_name_at_once(asked: list[Draft]) -> None:
    with nats(RIGHTS) as server:
        node = (("127.0.0.1", server.port),)
        store = await NatsStore.open(NatsOptions(nodes=node, username="u", password="p"))

        with pytest.raises(ConfigError, match=f"does not let us use '{S}'"):
            await store.streams.append(asked)

        await store.streams.append([Draft("gbe.events.other", b"")])
        await store.close()
