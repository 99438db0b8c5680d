"""The NATS client and a malicious server: an error of ours within the deadline, bounded memory, no hang."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from hypothesis import given, settings, strategies as st

from servers.hostile import How, Script, attack, client_meets, complaints, hostile
from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.client.transport import CONTROL_LINE_MAX, PAYLOAD_MAX, NatsTransport, ServerInfo
from wrasse.backends.nats.durables import Pulls
from wrasse.backends.nats.message_codec import fields_of, stored
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.tcp import Tls
from wrasse.errors import StoreUnavailable, WrasseError

INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"jetstream":true}\r\n'
SHORT = timedelta(seconds=0.15)
DEADLINE_S = 8  # of a question that meets one attack, on a machine that is busy
MEMORY_MAX = 200 << 20


def info(fields: bytes) -> bytes:
    return b'INFO {"headers":true,' + fields + b"}\r\n"


ATTACKS = {
    "a negative size": b"MSG a 1 -5\r\n",
    "a size that reaches back to its own line": b"MSG a 1 -15\r\n",
    "a size that reaches back": b"PONG\r\nMSG a 1 -14\r\n",
    "a huge size": b"MSG a 1 99999999999999999999999\r\n",
    "a large size": b"MSG a 1 999999999\r\n",
    "a signed size": b"MSG a 1 +5\r\nabcde\r\n",
    "a size with an underscore": b"MSG a 1 1_0\r\n0123456789\r\n",
    "a size in other digits": "MSG a 1 ٣\r\nabc\r\n".encode(),
    "a size without an end": b"MSG a 1 " + b"9" * (CONTROL_LINE_MAX + 10),
    "a size that is too small": b"MSG a 1 3\r\nabcdef\r\n",
    "a header beyond its message": b"HMSG a 1 50 10\r\n0123456789\r\n",
    "a negative header": b"HMSG a 1 -5 10\r\n0123456789\r\n",
    "no size": b"MSG\r\n",
    "two words": b"MSG a\r\n",
    "seven words": b"MSG a 1 b c d 3\r\nabc\r\n",
    "no line": b"x" * (CONTROL_LINE_MAX + 10),
    "zeros": bytes(100),
    "half JSON": b"INFO {\r\n",
    "deep JSON": info(b'"nonce":' + b"[" * 30_000 + b"]" * 30_000),
    "deep JSON nobody asked for": info(b'"x":' + b"[" * 30_000 + b"]" * 30_000),
    "a list for INFO": b"INFO []\r\n",
    "a negative max_payload": info(b'"max_payload":-1'),
    "a huge max_payload": info(b'"max_payload":%d' % (1 << 62)),
    "a float max_payload": info(b'"max_payload":1e300'),
    "a text max_payload": info(b'"max_payload":"1"'),
    "a number for a nonce": info(b'"nonce":7'),
    "half a surrogate": info(b'"nonce":"\\ud800"'),
    "a number for TLS": info(b'"tls_required":1'),
    "text for headers": b'INFO {"headers":"yes"}\r\n',
    "urls that are none": info(b'"connect_urls":[1,{}]'),
    "no urls": info(b'"connect_urls":"x"'),
    "not UTF-8": b'INFO {"server_name":"\xff"}\r\n',
    "an error": b"-ERR 'Unknown Protocol Operation'\r\n",
    "an error in bytes": b"-ERR '\xff\x1b[2J\x00'\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "Redis": b"-ERR unknown command 'CONNECT'\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x28",
    "an array": b"*1\r\n$1000000000\r\n",
    "replies to nothing": b"PONG\r\n+OK\r\n" * 50,
    "messages for nobody": b"MSG a 99 3\r\nabc\r\nHMSG a 98 12 15\r\nNATS/1.0\r\n\r\nabc\r\n" * 20,
}


async def read_login(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"PING\r\n")


def attacking(state: str, data: bytes, how: How) -> Script:
    """A server that is well-behaved until the state is reached."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if state == "connected":
            return await attack(writer, data, how)
        if state == "before TLS":
            return await attack(writer, INFO.replace(b"{", b'{"tls_required":true,') + data, how)
        writer.write(INFO)
        await read_login(reader)
        if state == "login":
            return await attack(writer, data, how)
        writer.write(b"PONG\r\n")
        if state == "asked":
            await reader.readuntil(b"PUB ")
        return await attack(writer, data, how)

    return script


STATES = ("connected", "before TLS", "login", "idle", "asked")


async def ask(options: NatsOptions) -> None:
    link = await NatsConnection.open(options)
    try:
        await JetStream(link).call("INFO")
    finally:
        await link.close()


async def meet(script: Script, tls: Tls | None = None) -> WrasseError:
    """What the client says of it; it says something of ours, in time, and nothing else escapes."""
    escaped = complaints(asyncio.get_running_loop())
    async with hostile(script) as port:
        began = time.monotonic()
        options = NatsOptions((("127.0.0.1", port),), dial_timeout=SHORT, read_timeout=SHORT, tls=tls)
        with pytest.raises(WrasseError) as met:
            await ask(options)
        assert time.monotonic() - began < DEADLINE_S
    assert escaped == []
    return met.value


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("data", [*ATTACKS.values()], ids=[*ATTACKS])
async def test_an_attack_is_an_error_of_ours(state: str, data: bytes) -> None:
    await meet(attacking(state, data, How.WHOLE))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", [How.CLOSED, How.TRICKLED])
@pytest.mark.parametrize("data", [b"", b"MSG a 1 5\r\n", INFO, b"PONG\r\n"])
async def test_an_end_or_a_trickle_is_an_error_of_ours(state: str, data: bytes, how: How) -> None:
    await meet(attacking(state, data, how))


words = st.sampled_from([
    b"MSG ", b"HMSG ", b"INFO ", b"PING", b"PONG", b"-ERR ", b"+OK", b" ", b"\r\n", b"\r", b"1", b"-1", b"999999999",
    b"0", b"12 15", b"a", b"_INBOX.", b'{"max_payload":', b"}", b"NATS/1.0\r\n\r\n", b"$JS.ACK.s.c.1.2.3.4.5",
])  # fmt: skip
streams = st.lists(st.one_of(words, st.binary(max_size=12)), max_size=14).map(b"".join)


@given(data=streams, state=st.sampled_from(STATES), how=st.sampled_from([How.WHOLE, How.CLOSED]))
@settings(max_examples=60, derandomize=True)
def test_any_bytes_are_an_error_of_ours(data: bytes, state: str, how: How) -> None:
    asyncio.run(meet(attacking(state, data, how)))


@pytest.mark.full
@given(data=streams, state=st.sampled_from(STATES), how=st.sampled_from([*How][:3]))
@settings(max_examples=2_000)
def test_any_bytes_at_all_are_an_error_of_ours(data: bytes, state: str, how: How) -> None:
    asyncio.run(meet(attacking(state, data, how)))


async def test_bytes_between_info_and_the_handshake_are_refused() -> None:
    """Whoever is between us and the server could otherwise put an answer in front of the encrypted ones."""
    error = await meet(attacking("before TLS", b"PONG\r\n", How.WHOLE))
    assert "between INFO and the TLS handshake" in str(error)


async def test_bytes_before_the_handshake_that_we_asked_for_are_refused() -> None:
    error = await meet(attacking("connected", INFO + b"PONG\r\n", How.WHOLE), Tls())
    assert "between INFO and the TLS handshake" in str(error)


async def test_nothing_is_heard_before_the_login() -> None:
    wire, heard = NatsTransport(lambda _: None), []
    wire.data_received(INFO + b"MSG a 1 3\r\nabc\r\n")
    wire.handlers = {b"1": lambda *message: heard.append(message)}
    assert heard == []


@pytest.mark.parametrize(
    "line",
    [
        b"MSG s 2 $JS.ACK.s\r\nt.c.1.5.6.7.0 2",
        b"MSG s\r\nt 2 $JS.ACK.s.c.1.5.6.7.0 2",
        b"MSG s 2 $JS.ACK.s t.c.1.5.6.7.0 2",
        b"MSG s 2 $JS.ACK.s.c.1 1.5.6.7.0 2",
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
async def test_a_line_that_breaks_off_in_a_subject_is_no_message_however_it_comes(line: bytes, parts: int) -> None:
    wire, taken = NatsTransport(lambda _: None), []
    wire.handlers = {b"2": lambda *message: taken.append(message)}
    wire.frame_handlers = {b"2": taken.append}
    data = INFO + line + b"\r\nhi\r\n"
    piece = -(-len(data) // parts)
    for at in range(0, len(data), piece):
        wire.data_received(data[at : at + piece])
    assert taken == []


ENDLESS = {
    "a line": b"x",
    "a message": b"MSG a 1 30000000\r\n" + b"x" * 60_000,
    "a huge message": b"MSG a 1 999999999\r\n" + b"x" * 60_000,
    "PING": b"PING\r\n",
    "messages for nobody": b"MSG a 99 3\r\nabc\r\n",
    "errors": b"-ERR 'no'\r\n",
    "INFO": INFO,
}


@pytest.mark.parametrize("state", ["connected", "login", "asked"])
@pytest.mark.parametrize("data", [*ENDLESS.values()], ids=[*ENDLESS])
async def test_an_endless_answer_takes_no_memory(state: str, data: bytes) -> None:
    told = await client_meets("nats", attacking(state, data, How.ENDLESS))
    assert told.ours, told
    assert told.grown < MEMORY_MAX, told
    assert told.seconds < DEADLINE_S + 10, told


@pytest.mark.parametrize("first", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n"])
async def test_a_server_of_another_kind_is_named(first: bytes) -> None:
    error = await meet(attacking("connected", first, How.WHOLE))
    assert "an HTTP server answers" in str(error) or "an SSH server answers" in str(error)


async def test_a_message_that_trickles_does_not_keep_a_connection_alive() -> None:
    async with hostile(attacking("idle", b"MSG a 1 500000\r\n" + b"x" * 10_000, How.TRICKLED)) as port:
        link = await NatsConnection.open(NatsOptions((("127.0.0.1", port),), ping_interval=timedelta(seconds=0.1)))
        wire = await link.ready()
        async with asyncio.timeout(DEADLINE_S):
            while wire.open:  # noqa: ASYNC110  # what is waited for is the client's own timer
                await asyncio.sleep(0.01)
        await link.close()


async def test_messages_that_were_not_asked_for_do_not_pile_up_as_answers() -> None:
    """Each is given back by a NAK: a server that reads none would have them all kept here."""
    answered, flooded = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await read_login(reader)
        writer.write(b"PONG\r\n")
        await reader.readuntil(b" 1\r\n")  # the link's own subscription
        _, inbox, number = (await reader.readuntil(b"\r\n")).split()
        await reader.readuntil(b"PUB ")
        asked, none = inbox[:-1] + b"1", b"NATS/1.0 404 No Message\r\n\r\n"
        writer.write(b"HMSG %b %b %d %d\r\n%b\r\n" % (asked, number, len(none), len(none), none))
        await answered.wait()
        for _ in range(800):
            writer.write(b"MSG %b %b %b 0\r\n\r\n" % (asked, number, b"x" * 50_000))
            await writer.drain()
        flooded.set()
        await asyncio.sleep(60)

    async with hostile(script) as port:
        link = await NatsConnection.open(NatsOptions((("127.0.0.1", port),)))
        assert await Pulls(JetStream(link)).ask("s", "c", 1, timedelta(0)) == []
        answered.set()
        wire = await link.ready()
        async with asyncio.timeout(DEADLINE_S):
            await flooded.wait()
        assert wire._transport is not None
        assert wire._transport.get_write_buffer_size() < 8 << 20
        await link.close()


# Fields of INFO and of headers


@given(st.binary(max_size=200))
@settings(derandomize=True)
def test_any_header_is_read_without_an_error(data: bytes) -> None:
    for header in (data, b"NATS/1.0\r\nWrasse:" + data, b"NATS/1.0\r\nWrasse-Field:" + data + b"\r\n\r\n"):
        assert stored(1, header, b"").seq == 1
        assert fields_of(header) is None or b"Wrasse-Field" in header


@pytest.mark.parametrize("value", [b"x", b"9999-99-99T00:00:00Z", b"\xff", b"0001-01-01T00:00:00+23:59", b""])
def test_a_time_that_cannot_be_read_is_none(value: bytes) -> None:
    assert stored(1, b"NATS/1.0\r\nNats-Time-Stamp: " + value + b"\r\n\r\n", b"").ms <= 0


def test_a_time_that_a_publisher_wrote_is_not_the_servers() -> None:
    header = b"NATS/1.0\r\nNats-Time-Stamp: x\r\nNats-Time-Stamp: 2026-01-01T00:00:00Z\r\n\r\n"
    assert stored(1, header, b"").ms == 1_767_225_600_000


def test_numbers_of_any_length_are_no_numbers_of_ours() -> None:
    assert stored(1, b"NATS/1.0\r\nWrasse:" + b"9" * 5_000 + b" 1 1 n\r\n\r\n", b"").number == 0


@pytest.mark.parametrize("most", [1, 1 << 20, PAYLOAD_MAX])
def test_a_max_payload_that_nats_allows_is_taken(most: int) -> None:
    assert ServerInfo.parse(b'{"max_payload":%d}' % most).max_payload == most


async def test_an_answer_that_is_no_json_is_an_error_of_ours() -> None:
    for payload in (b"", b"[]", b"7", b'{"error":7}', b'{"error":{"err_code":"x"}}', b"[" * 100_000, b'{"a":1e999}'):
        inbox = b"MSG %b 1 " + b"%d\r\n%b\r\n" % (len(payload), payload)

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: bytes = inbox) -> None:
            writer.write(INFO)
            await read_login(reader)
            writer.write(b"PONG\r\n")
            asked = await reader.readuntil(b"\r\n\r\n")
            writer.write(inbox % asked.split(b"PUB ")[1].split(b" ")[1])
            await asyncio.sleep(60)

        async with hostile(script) as port:
            link = await NatsConnection.open(NatsOptions((("127.0.0.1", port),), read_timeout=timedelta(seconds=2)))
            with pytest.raises(StoreUnavailable):
                await JetStream(link).store("a", b"")
            await link.close()
