"""The connection to NATS: no request is sent twice, and a lost server is connected to again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import pytest

from backends.nats.scene import flush
from servers.nats import Nats, nats
from servers.proxy import proxy
from wrasse.backends.nats.client.connection import NatsAnswer, NatsConnection, NoResponders, packed, packed_header
from wrasse.backends.nats.client.jetstream import STREAM_NOT_FOUND, JetStream, JsError
from wrasse.backends.nats.client.transport import NatsTransport, ServerInfo
from wrasse.backends.nats.options import NatsOptions
from wrasse.errors import ConfigError, StoreUnavailable


async def linked(server: Nats, **options: object) -> NatsConnection:
    return await NatsConnection.open(NatsOptions(nodes=(("127.0.0.1", server.port),), **options))


class Heard(NamedTuple):
    subject: bytes
    message: NatsAnswer
    reply: bytes


async def subscribe(link: NatsConnection, subject: str, callback: Callable[[Heard], None]) -> None:
    def heard(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        callback(Heard(subject, NatsAnswer(payload, header), reply))

    await link.listen(subject.encode(), heard)


async def test_a_question_that_nobody_serves_says_so(nats_server: Nats) -> None:
    link = await linked(nats_server)
    with pytest.raises(NoResponders, match="nobody"):
        await link.request("nobody.serves.this")
    await link.close()


async def test_what_is_published_is_heard_with_its_headers(nats_server: Nats) -> None:
    link, heard = await linked(nats_server), []
    await subscribe(link, "things.>", heard.append)
    await link.send(packed(b"things.new", bytes(range(256)), header=packed_header({"Kind": "é"})))
    await flush(link)
    assert [(each.subject, each.message.payload, each.message.field("Kind")) for each in heard] == [
        (b"things.new", bytes(range(256)), "é")
    ]
    await link.close()


async def test_an_answer_finds_who_asked(nats_server: Nats) -> None:
    link = await linked(nats_server)

    def answer(heard: Heard) -> None:
        answers.append(asyncio.ensure_future(link.send(packed(heard.reply, heard.message.payload * 2))))

    answers: list[asyncio.Future[None]] = []
    await subscribe(link, "double", answer)
    asked = [b"%d" % n for n in range(100)]
    found = await asyncio.gather(*(link.request("double", each) for each in asked))
    assert [message.payload for message in found] == [each * 2 for each in asked]
    await asyncio.gather(*answers)
    await link.close()


async def test_a_link_comes_back_after_a_restart_and_goes_on_listening() -> None:
    with nats() as server:
        link, heard = await linked(server), []
        await subscribe(link, "things", heard.append)
        server.stop()
        with pytest.raises(StoreUnavailable):
            await link.request("$JS.API.INFO")
        server.start()
        await link.send(packed(b"things", b"again"))
        await flush(link)
        assert [each.message.payload for each in heard] == [b"again"]
        await link.close()


async def test_a_lost_answer_is_unavailable_and_not_asked_for_again(nats_server: Nats) -> None:
    async with proxy(nats_server.port) as between:
        link = await NatsConnection.open(
            NatsOptions(nodes=(("127.0.0.1", between.port),), read_timeout=timedelta(seconds=20))
        )
        heard: list[Heard] = []
        other = await linked(nats_server)
        await subscribe(other, "once", heard.append)
        await flush(other)
        asking = asyncio.ensure_future(link.request("once"))
        async with asyncio.timeout(10):
            while not heard:  # noqa: ASYNC110  # what is waited for comes from the server
                await asyncio.sleep(0.005)
        between.cut()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await asking
        await flush(link)
        assert len(heard) == 1
        await link.close()
        await other.close()


async def test_a_server_that_takes_a_connection_and_says_nothing_is_told_as_such() -> None:
    held: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    async with mute:
        where = ("127.0.0.1", mute.sockets[0].getsockname()[1])
        with pytest.raises(StoreUnavailable, match="cannot be reached: no answer in time"):
            await NatsConnection.open(NatsOptions(nodes=(where,), dial_timeout=timedelta(seconds=0.1)))
        for writer in held:
            writer.close()


async def test_a_server_that_does_not_answer_in_time_is_unavailable(nats_server: Nats) -> None:
    link = await linked(nats_server, read_timeout=timedelta(milliseconds=50))
    await subscribe(link, "deaf", lambda _: None)
    with pytest.raises(StoreUnavailable, match=r"did not answer in 0\.05s"):
        await link.request("deaf")
    await link.close()


async def test_a_server_that_is_not_there_is_named_without_secrets() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1\b") as failure:
        await NatsConnection.open(NatsOptions(nodes=(("127.0.0.1", 1),), username="u", password="geheim"))
    assert "geheim" not in str(failure.value)


async def test_a_wrong_password_is_said_at_once() -> None:
    with nats('authorization { user: "u", password: "right" }\n') as server:
        with pytest.raises(ConfigError, match="refuses our login"):
            await linked(server, username="u", password="wrong")
        link = await linked(server, username="u", password="right")
        await flush(link)
        await link.close()


async def test_what_a_user_may_not_ask_is_said_at_once() -> None:
    rights = 'authorization { users: [ {user: u, password: p, permissions: {publish: "allowed.>"}} ] }\n'
    with nats(rights) as server:
        link = await linked(server, username="u", password="p", read_timeout=timedelta(seconds=20))
        with pytest.raises(ConfigError, match="forbidden"):
            await link.request("forbidden")
        await link.close()


async def test_another_server_of_the_list_is_found(nats_server: Nats) -> None:
    link = await NatsConnection.open(NatsOptions(nodes=(("127.0.0.1", 1), ("127.0.0.1", nats_server.port))))
    assert link.server.headers
    await link.close()


async def test_a_closed_link_says_so(nats_server: Nats) -> None:
    link = await linked(nats_server)
    await link.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await link.request("$JS.API.INFO")


async def test_a_refusal_of_jetstream_has_its_code(nats_server: Nats) -> None:
    link = await linked(nats_server)
    with pytest.raises(JsError) as refused:
        await JetStream(link).call("STREAM.INFO.nothing-of-that-name")
    assert refused.value.code == STREAM_NOT_FOUND
    await link.close()


async def test_a_server_that_has_gone_deaf_is_left() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.15.1","headers":true,"max_payload":1000}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        with suppress(ConnectionError):
            await reader.read()  # and never a word again
        writer.transport.abort()
        gone.set()

    gone = asyncio.Event()
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    times = {"ping_interval": timedelta(milliseconds=50), "read_timeout": timedelta(seconds=20)}
    link = await NatsConnection.open(NatsOptions(nodes=(("127.0.0.1", port),), **times))
    with pytest.raises(StoreUnavailable, match="no answer to a PING"):
        await link.request("anything")
    await link.close()
    async with asyncio.timeout(20):
        await gone.wait()
    server.close()
    await server.wait_closed()


# The bytes of the protocol

HEARD = (b"MSG a.b 1 3\r\nabc\r\n", b"MSG a.b 1 re.ply 0\r\n\r\n", b"HMSG a 1 13 16\r\nNATS/1.0\r\nX\r\nxyz\r\n")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
async def test_messages_are_read_however_they_are_cut(size: int) -> None:
    heard: list[tuple[bytes, ...]] = []
    wire = NatsTransport(lambda _: None)
    wire.data_received(b"INFO {}\r\n")
    wire.handlers = {b"1": lambda *message: heard.append(message)}
    stream = b"".join(HEARD) * 3
    for start in range(0, len(stream), size):
        wire.data_received(stream[start : start + size])
    one = [(b"a.b", b"", b"", b"abc"), (b"a.b", b"re.ply", b"", b""), (b"a", b"", b"NATS/1.0\r\nX\r\n", b"xyz")]
    assert heard == one * 3


@pytest.mark.parametrize("line", [b"HTTP/1.1 400 Bad Request\r\n", b"MSG a 1 x\r\n", b"INFO {\r\n"])
async def test_what_is_not_the_protocol_ends_the_connection(line: bytes) -> None:
    ended: list[str] = []
    wire = NatsTransport(lambda _: None)
    wire.lost = ended.append
    wire.data_received(line)
    assert [why for why in ended if "protocol" in why] == ended != []


@pytest.mark.parametrize(("version", "numbers"), [("2.9.10", (2, 9, 10)), ("2.12.0-beta.1", (2, 12, 0)), ("", ())])
def test_a_version_is_compared_by_its_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert ServerInfo(version).numbers == numbers
