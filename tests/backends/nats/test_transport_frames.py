"""Messages that are parsed in bulk are the same as those that are read one by one by their sizes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from backends.nats.scene import Scene, drafts, scene
from wrasse.backends.nats import page_reader
from wrasse.backends.nats.client import transport
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.client.transport import Frame, NatsTransport, ServerInfo, frame_of, frames_in
from wrasse.backends.nats.message_codec import beside, ids_of, stored_of
from wrasse.backends.nats.page_reader import Puller
from wrasse.ports.streams import START, Draft

S = "gbe.events.audit"


@pytest.fixture
async def stage(nats_server):
    async with scene(nats_server.port) as made:
        yield made


OURS = b"NATS/1.0\r\nWrasse:%d 7 70 n.1\r\nNats-Expected-Last-Sequence:6\r\n\r\n"
FIELDS = b"NATS/1.0\r\nWrasse:%d 7 70 n.1\r\nWrasse-Field:why=late%%0D\r\n\r\n"
LIKE_OURS = b"NATS/1.0\r\nWrasse:%d x 70 n.1\r\n\r\n"
FOREIGN = b"NATS/1.0\r\nTrace: %d\r\n\r\n"
ODD = b"NATS/1.0\r\n\r\n"
FAKE = b"x\r\nMSG s 2 $JS.ACK.s.c.1.9.9.9.9 1\r\ny"

headers = st.one_of(
    st.sampled_from([b"", ODD]),
    st.builds(
        lambda made, ms: made % ms, st.sampled_from([OURS, OURS, FIELDS, LIKE_OURS, FOREIGN]), st.integers(0, 10**14)
    ),
)
bodies = st.one_of(st.binary(max_size=60), st.sampled_from([FAKE, FAKE * 3, b"", b"\r", b"\r\n"]), st.just(b"{}"))
domains = st.sampled_from([b"", b"", b"", b"hub.hash."])
numbers = st.sampled_from([b"2", b"2", b"2", b"3", b"4"])
messages = st.lists(st.tuples(numbers, headers, bodies, domains), max_size=12)


def on_the_wire(number: bytes, seq: int, header: bytes, body: bytes, domain: bytes = b"") -> bytes:
    reply = b"$JS.ACK.%bs.c.1.%d.%d.%d.0" % (domain, seq, seq, 1_700_000_000_000_000_000 + seq)
    sizes = b"%d %d" % (len(header), len(header) + len(body)) if header else b"%d" % len(body)
    return b"%bMSG s.t %b %b %b\r\n%b%b\r\n" % (b"H" if header else b"", number, reply, sizes, header, body)


@given(messages, st.integers(1, 400))
def test_frames_are_the_messages_that_their_sizes_say(found, piece) -> None:
    data = b"".join([on_the_wire(number, seq, *each) for seq, (number, *each) in enumerate(found, 1)]) + b"PING\r\n"
    heard, taken = read(data, piece, bulk=False), read(data, piece, bulk=True)
    assert taken == heard == {
        number: [meaning(seq, header, body) for seq, (whose, header, body, _) in enumerate(found, 1) if whose == number]
        for number in {whose for whose, *_ in found}
    }  # fmt: skip


def meaning(seq: int, header: bytes, body: bytes) -> tuple[object, ...]:
    reply = b"$JS.ACK.s.c.1.%d.%d.%d.0" % (seq, seq, 1_700_000_000_000_000_000 + seq)
    frame = frame_of(reply, header, body)
    return stored_of(frame), *ids_of([frame], 0), beside([frame])


def read(data: bytes, piece: int, *, bulk: bool) -> dict[bytes, list[tuple[object, ...]]]:
    """What each of three subscriptions heard; the third is never cut out."""
    got: dict[bytes, list[Frame]] = {b"2": [], b"3": [], b"4": []}

    def hear(number: bytes):
        return lambda _, reply, header, body: got[number].append(frame_of(reply, header, body))

    wire = object.__new__(NatsTransport)
    wire._buffer, wire._need, wire._silent, wire._largest = bytearray(), 0, 0, 1 << 20
    wire._transport, wire._room, wire._pongs = None, None, []
    wire.info = ServerInfo(headers=True)
    wire.handlers = {number: hear(number) for number in got}
    wire.frame_handlers = {number: got[number].extend for number in (b"2", b"3")} if bulk else {}
    for at in range(0, len(data), piece):
        wire.data_received(data[at : at + piece])
    return {
        number: [(stored_of(each), *ids_of([each], 0), beside([each])) for each in found]
        for number, found in got.items()
        if found
    }


def test_a_long_run_of_our_messages_is_cut_at_once() -> None:
    data = b"".join([on_the_wire(b"2", seq, OURS % 1_700_000_000_000, b"{}") for seq in range(1, 101)])
    found, end = frames_in(data, 0, {b"2"})
    assert (len(found), end) == (100, len(data))


def test_ids_never_go_back_with_a_clock() -> None:
    times = (5_000, 4_000, 6_000)
    data = b"".join([on_the_wire(b"2", seq, OURS % ms, b"") for seq, ms in enumerate(times, 1)])
    made, _ = frames_in(data, 0, {b"2"})
    assert ids_of(made, 0) == [b"5000-1", b"5000-2", b"6000-3"]
    assert ids_of(made[2:], 7_000) == [b"7000-3"]


def test_a_reply_from_a_domain_has_its_numbers_further_on() -> None:
    frame = frame_of(b"$JS.ACK.hub.hash.s.c.1.12.3.1700000000000000000.4.token", b"", b"")
    assert (frame[2], transport.place_of(frame)) == (b"12", (3, 4))


# A real server


async def test_a_stream_of_ours_and_others_is_drained_as_it_is_read(stage: Scene) -> None:
    flows, js = await stage.flows(), await stage.js()
    await flows.streams.append(drafts(300))
    for number in range(300):
        headers = {"Trace": str(number)} if number % 2 else None
        await js.store(flows.stream_map.layout.stored(S), b"line\r\n%d" % number, headers)
    await flows.streams.append([Draft(S, b"\r%d" % number, fields={"why": b"\r\n"}) for number in range(300)])
    drained, after = [], START
    while len(chunk := await flows.streams.chunk(S, after, 150)):
        drained += chunk.entries(len(chunk))
        after = chunk.id(len(chunk) - 1)
    whole, after = [], START
    while (page := await flows.streams.read(S, after, 99)).items:  # so few that no consumer is used
        whole += page.items
        after = page.items[-1].id
    assert len(whole) == 900
    assert drained == whole


async def test_a_page_of_large_messages_is_a_short_one(stage: Scene, monkeypatch) -> None:
    monkeypatch.setattr(page_reader, "_PULL_BYTES_MAX", 250_000)
    flows = await stage.flows(batches=False)
    link = stage.links[-1]
    link.server = msgspec.structs.replace(link.server, max_payload=110_000)
    await flows.streams.append([Draft(S, b"%d " % n + b"x" * 100_000) for n in range(25)])
    lane = await flows.stream_map.find(S)
    puller = await Puller.open(JetStream(link), lane.stream, lane.subject, 0)
    pages = []
    while not pages or pages[-1][1]:
        pages.append(await puller.pull(20))
    assert [len(found) for found, _ in pages] == [2] * 12 + [1]
    assert [int(each[7].split()[0]) for found, _ in pages for each in found] == [*range(25)]


async def test_a_page_in_which_a_message_is_missing_is_read_again(stage: Scene, monkeypatch) -> None:
    flows = await stage.flows(batches=False)
    await flows.streams.append(drafts(300))
    first = await flows.streams.read(S, START, 100)
    lane = await flows.stream_map.find(S)
    puller = flows.stream_map.reader._pullers[lane.stream, lane.subject]
    puller._number += 1  # as if one had not come
    second = await flows.streams.read(S, first.items[-1].id, 100)
    assert [entry.body for entry in second.items] == [b"%d" % n for n in range(100, 200)]
    assert flows.stream_map.reader._pullers[lane.stream, lane.subject] is not puller


async def test_a_long_work_queue_is_read_without_a_consumer_of_ours(stage: Scene) -> None:
    flows, js = await stage.flows(), await stage.js()
    made = {"name": f"{stage.root}-work", "subjects": [flows.stream_map.layout.stored(S)], "retention": "workqueue"}
    await js.call(f"STREAM.CREATE.{made['name']}", {**made, "allow_direct": True})
    await flows.streams.append(drafts(450))
    read, after = [], START
    while (page := await flows.streams.read(S, after, 150)).items:
        read += [entry.body for entry in page.items]
        after = page.items[-1].id
    assert read == [b"%d" % n for n in range(450)]
