"""The Redis client and a malicious server: an error of ours within the deadline, bounded memory, no hang."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import hiredis
import pytest
from hypothesis import given, settings, strategies as st

from servers.hostile import How, Script, attack, client_meets, complaints, hostile
from servers.nats import Nats
from servers.tls import encrypted
from servers.valkey import Valkey
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.client.transport import ARRAY_MAX, REPLIES_MAX, RedisTransport
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import Script as Lua
from wrasse.backends.tcp import Tls
from wrasse.errors import ConfigError, StoreUnavailable, WrasseError

SHORT = timedelta(seconds=0.15)
DEADLINE_S = 8  # of a question that meets one attack, on a machine that is busy
MEMORY_MAX = 200 << 20
SMALL = 96 << 20  # bytes of a reply, where the tests fill it
OK = b"+OK\r\n"
PONG = b"+PONG\r\n"

ATTACKS = {
    "a negative bulk": b"$-2\r\n",
    "a negative array": b"*-7\r\n",
    "a huge bulk": b"$99999999999999999999999\r\n",
    "a large bulk": b"$400000000000\r\nabc",
    "an array beyond all": b"*9223372036854775807\r\n",
    "a huge array": b"*1000000000\r\n",
    "a huge push": b">1000000000\r\n",
    "a huge set": b"~1000000000\r\n",
    "a huge map": b"%1000000000\r\n",
    "a huge attribute": b"|1000000000\r\n",
    "a huge array within": b"*2\r\n+a\r\n*100000000\r\n",
    "many large arrays": b"*999999\r\n" * 50,
    "arrays in arrays": b"*1\r\n" * 5_000,
    "a signed size": b"*+5\r\n",
    "a size with an underscore": b"$1_0\r\n",
    "no type": b"hello\r\n",
    "zeros": bytes(64),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "NATS": b"INFO {}\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x28",
    "an error": b"-ERR \xff\x1b[2J\r\n",
    "an error without words": b"-\r\n",
    "a bare redirection": b"-MOVED\r\n",
    "a redirection to nowhere": b"-MOVED 1 :\r\n",
    "a redirection to a name that is none": b"-MOVED 1 " + b"x" * 300 + b":70\r\n",
    "a redirection to a port that is none": b"-ASK 1 127.0.0.1:99999\r\n",
    "an ask": b"-ASK 1 [\r\n",
    "numbers of another kind": b",nan\r\n",
    "nothing": b"_\r\n",
    "replies to nothing": OK * 50,
    "half an answer": b"$10\r\nabc",
    "an answer that is too long": b"$3\r\nabcdef\r\n",
}


async def words(reader: asyncio.StreamReader) -> list[bytes]:
    """One command."""
    count = int((await reader.readuntil(b"\r\n"))[1:])
    return [await reader.readexactly(int((await reader.readuntil(b"\r\n"))[1:]) + 2) for _ in range(count)]


STATES = ("connected", "login", "idle", "asked", "pipelined", "cluster", "sentinel", "subscribed", "in TLS")


def attacking(state: str, data: bytes, how: How) -> Script:
    """A server that is well-behaved until the state is reached."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if state in ("connected", "in TLS"):
            return await attack(writer, data, how)
        if state == "login":
            await words(reader)
            return await attack(writer, data, how)
        await words(reader)
        await words(reader)
        writer.write(PONG + OK)
        if state in ("asked", "cluster", "sentinel", "pipelined"):
            await words(reader)
        if state == "pipelined":
            writer.write(OK)
        if state == "subscribed" and (await words(reader))[0].upper().startswith(b"SUBSCRIBE"):
            writer.write(b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
        return await attack(writer, data, how)

    return script


async def ask(state: str, port: int) -> None:
    options = RedisOptions(
        (("127.0.0.1", port),), dial_timeout=SHORT, read_timeout=SHORT, max_retries=0, cluster=state == "cluster",
        sentinel="m" if state in ("sentinel", "subscribed") else "", tls=Tls() if state == "in TLS" else None,
    )  # fmt: skip
    link = await OwnRedisClient.open(options)
    try:
        if state == "pipelined":
            answers = await link.together([("GET", "a"), ("GET", "b")])
            raise StoreUnavailable(f"answered {len(answers)} questions", do="")
        await link.run(Lua.of("a", "return 1"), ["a"])
        await link.ask("GET", "a")
        raise StoreUnavailable("its answers are answers, as far as RESP goes", do="")
    finally:
        await link.close()


async def meet(state: str, data: bytes, how: How) -> WrasseError:
    """What the client says of it; it says something of ours, in time, and nothing else escapes."""
    escaped = complaints(asyncio.get_running_loop())
    async with hostile(attacking(state, data, how)) as port:
        began = time.monotonic()
        with pytest.raises(WrasseError) as met:
            await ask(state, port)
        assert time.monotonic() - began < DEADLINE_S
    assert escaped == []
    return met.value


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("data", [*ATTACKS.values()], ids=[*ATTACKS])
async def test_an_attack_is_an_error_of_ours(state: str, data: bytes) -> None:
    await meet(state, data, How.WHOLE)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", [How.CLOSED, How.TRICKLED])
@pytest.mark.parametrize("data", [b"", b"$100\r\nabc", b"*1000000000\r\n", b"+OK"])
async def test_an_end_or_a_trickle_is_an_error_of_ours(state: str, data: bytes, how: How) -> None:
    await meet(state, data, how)


parts = st.sampled_from([
    b"*", b"$", b"+", b"-", b":", b">", b"~", b"%", b"|", b"_", b"#t", b",1.5", b"(12", b"=", b"!", b"\r\n", b"\r",
    b"1",
    b"2", b"-1", b"0", b"1000000000", b"OK", b"MOVED 1 127.0.0.1:1", b"ASK 1 :1", b"TRYAGAIN", b"NOSCRIPT", b"LOADING",
])  # fmt: skip
streams = st.lists(st.one_of(parts, st.binary(max_size=6)), max_size=16).map(b"".join)


@given(data=streams, state=st.sampled_from(STATES), how=st.sampled_from([How.WHOLE, How.CLOSED]))
@settings(max_examples=60, derandomize=True)
def test_any_bytes_are_an_error_of_ours(data: bytes, state: str, how: How) -> None:
    asyncio.run(meet(state, data, how))


@pytest.mark.full
@given(data=streams, state=st.sampled_from(STATES), how=st.sampled_from([How.WHOLE, How.CLOSED, How.TRICKLED]))
@settings(max_examples=2_000)
def test_any_bytes_at_all_are_an_error_of_ours(data: bytes, state: str, how: How) -> None:
    asyncio.run(meet(state, data, how))


ENDLESS = {
    "a bulk": b"$900000000000\r\n" + b"x" * 60_000,
    "an array": b"*999999\r\n" + b":1\r\n" * 10_000,
    "empty arrays": b"*900000\r\n" + b"*0\r\n" * 10_000,
    "arrays in arrays": b"*2\r\n",
    "huge arrays": b"*1000000000\r\n",
    "pushes": b">1000000000\r\n",
    "a line": b"+x",
    "digits": b"1",
    "the digits of an array": b"*" + b"1" * 60_000,
}


@pytest.mark.parametrize("state", ["connected", "login", "asked"])
@pytest.mark.parametrize("data", [*ENDLESS.values()], ids=[*ENDLESS])
async def test_an_endless_answer_takes_no_memory(state: str, data: bytes) -> None:
    told = await client_meets("redis", attacking(state, data, How.ENDLESS), reply_bytes_max=str(SMALL))
    assert told.ours, told
    assert told.grown < MEMORY_MAX, told
    assert told.seconds < DEADLINE_S + 10, told


class Nowhere(asyncio.Transport):
    """Takes what is sent, and has no other end."""

    closed = False

    def write(self, data: object) -> None:
        """Goes nowhere."""

    def abort(self) -> None:
        """Is closed."""
        self.closed = True

    def is_closing(self) -> bool:
        """Whether it was."""
        return self.closed


@pytest.mark.parametrize("each", [1_000, 300_000, 3_000_000])
def test_the_replies_to_one_question_are_bounded_together(each: int) -> None:
    largest, piece = 4 << 20, 1 << 18
    reply = b"$%d\r\n%b\r\n" % (each, b"x" * each)

    async def read(count: int) -> int:
        wire = RedisTransport(60.0, largest)
        wire.connection_made(Nowhere())
        answers = wire.ask_many(b"", count)
        got = 0
        while not wire.closed.done() and got < count:
            for at in range(0, len(reply), piece):
                wire.data_received(reply[at : at + piece])
            got += 1
        if wire.closed.done():
            assert "redis.reply_bytes_max" in str(answers.exception())
        else:
            assert len(await answers) == count
        return got * each

    async def read_all() -> None:
        most = REPLIES_MAX * largest
        few = most // 2 // each
        assert await read(few) == few * each
        assert await read(4 * most // each) <= most + each

    asyncio.run(read_all())


@pytest.mark.parametrize("code", [b"ASK", b"MOVED"])
async def test_a_server_sends_nobody_elsewhere_who_did_not_ask_for_a_cluster(code: bytes) -> None:
    """Else it could have the process connect, and log in, to any address that the process can reach."""
    reached: list[bytes] = []

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(1))

    async with (
        hostile(other) as elsewhere,
        hostile(attacking("asked", b"-%b 1 127.0.0.1:%d\r\n" % (code, elsewhere), How.WHOLE)) as port,
    ):
        link = await OwnRedisClient.open(RedisOptions((("127.0.0.1", port),), dial_timeout=SHORT, read_timeout=SHORT))
        with pytest.raises(ConfigError, match="is a node of a cluster"):
            await link.run(Lua.of("a", "return 1"), ["a"])
        await link.close()
    assert reached == []


# What looks like a huge array and is none


def replies(data: bytes, piece: int) -> tuple[list[object], str]:
    """What a connection reads that gets these bytes in pieces, and why it ended."""
    got: list[object] = []

    async def read() -> str:
        wire = RedisTransport(1.0, 64 << 20)
        wire.heard = lambda message: got.append(message) if message is not None else None
        for at in range(0, len(data), piece):
            wire.data_received(data[at : at + piece])
            if wire.closed.done():
                break
        return wire._why if wire.closed.done() else ""

    return got, asyncio.run(read())


values = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"*1000000000\r\n", b"\r\n*1000000000\r\n", b"x\r\n>12345678", b"\r", b"*", b"*1234567"]),
)
trees = st.recursive(values, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def resp(value: object) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(resp, value))
    assert isinstance(value, bytes)
    return b"$%d\r\n%b\r\n" % (len(value), value)


@given(st.lists(trees, min_size=1, max_size=4), st.integers(1, 40))
@settings(derandomize=True)
def test_values_that_look_like_arrays_are_read_however_they_are_cut(found: list[object], piece: int) -> None:
    assert replies(b"".join(map(resp, found)), piece) == (found, "")


@given(st.lists(trees, max_size=3), st.sampled_from(list(b"*>~|")), st.integers(1, 40))
@settings(derandomize=True)
def test_a_huge_array_is_found_wherever_it_stands(before: list[object], kind: int, piece: int) -> None:
    data = b"".join(map(resp, before)) + b"*2\r\n$3\r\na\r\n\r\n" + bytes([kind]) + b"1000000000\r\n"
    got, why = replies(data, piece)
    assert got == before
    assert why == f"an array of more than {ARRAY_MAX} elements"


def test_an_array_as_long_as_may_be_is_read() -> None:
    got, why = replies(b"*%d\r\n" % ARRAY_MAX + b":1\r\n" * ARRAY_MAX, 1 << 18)
    assert why == "a reply beyond redis.reply_bytes_max (67108864 bytes)" or len(got) == 1


def test_hiredis_bounds_nesting_itself() -> None:
    reader = hiredis.Reader()
    reader.feed(b"*1\r\n" * 100_000)
    with pytest.raises(hiredis.ProtocolError):
        reader.gets()


# Addresses of another kind


async def test_a_plain_port_that_is_asked_for_tls_says_so_at_once(redis_server: Valkey) -> None:
    began = time.monotonic()
    options = RedisOptions((("127.0.0.1", redis_server.port),), tls=Tls(), dial_timeout=timedelta(seconds=1))
    with pytest.raises(StoreUnavailable, match="does not speak TLS") as met:
        await OwnRedisClient.open(options)
    assert "rediss://" in met.value.do
    assert time.monotonic() - began < DEADLINE_S


async def test_a_mute_port_that_is_asked_for_tls_says_so_after_one_timeout() -> None:
    async with hostile(attacking("connected", b"", How.WHOLE)) as port:
        began = time.monotonic()
        options = RedisOptions((("127.0.0.1", port),), dial_timeout=timedelta(seconds=0.5))
        with pytest.raises(StoreUnavailable, match=r"did not finish a TLS handshake within 0\.5s"):
            await OwnRedisClient.open(replace(options, tls=Tls()))
        assert time.monotonic() - began < 1.9  # and not four times over


async def test_a_port_that_speaks_tls_is_told_as_such_to_who_does_not(redis_server: Valkey) -> None:
    async with encrypted(redis_server.port) as port:
        with pytest.raises(StoreUnavailable, match="TLS") as met:
            await OwnRedisClient.open(RedisOptions((("127.0.0.1", port),), max_retries=0))
    assert "rediss://" in met.value.do


async def test_a_nats_server_is_named(nats_server: Nats) -> None:
    with pytest.raises(StoreUnavailable, match="a NATS server answers there"):
        await OwnRedisClient.open(RedisOptions((("127.0.0.1", nats_server.port),), max_retries=0))
