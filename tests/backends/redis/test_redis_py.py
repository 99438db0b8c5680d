"""redis-py as the client of the Redis backend: its credential providers, and clients that a program makes itself.

That it serves jobs, records, streams and limits as ours does is tested by the conformance suites (`--full`).
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

from backends.redis.test_hostile import attacking, words
from servers.hostile import How, Script as Peer, client_meets, hostile
from servers.sentinel import watched
from servers.tls import CERTIFICATE, encrypted
from servers.valkey import Valkey, valkey
from wrasse.backends.redis import options as redis_options
from wrasse.backends.redis.client.redis_py import RedisPyClient
from wrasse.backends.redis.client.transport import RedisRefusal
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.failure import ReplyTooLarge
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import Script
from wrasse.backends.tcp import Tls
from wrasse.errors import ConfigError, Refused, StoreUnavailable, WrasseError

ECHO = Script.of("echo", "return {ARGV[2], 7, false, {KEYS[1]}}")
PORT: list[int] = []  # of the server that `own_client` is made for


class Secrets(CredentialProvider):
    """As one of IAM would: a user and a token that is asked for with every connection."""

    def get_credentials(self) -> tuple[str, str]:
        return "worker", "token"


class NoSecrets(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise PermissionError("the token is geheim")


def own_client() -> redis.asyncio.Redis:
    return redis.asyncio.Redis(port=PORT[-1], protocol=2, decode_responses=True)


def modern_client() -> redis.asyncio.Redis:
    return redis.asyncio.Redis(port=PORT[-1], protocol=3)


def no_client() -> object:
    return object()


def options(port: int, **more: Any) -> RedisOptions:
    return RedisOptions((("127.0.0.1", port),), client="redis-py", max_retries=0, **more)


async def test_replies_and_refusals_are_those_of_our_client(redis_server: Valkey) -> None:
    found = []
    for client in ("own", "redis-py"):
        store = await Redis.open(replace(options(redis_server.port), client=client))
        link = store.client
        told = await link.run(ECHO, ["k"], [b"\xff"]), await link.ask("HGETALL", "nothing-there")
        together = await link.together([("SET", "t:a", 1), ("LPUSH", "t:a", 1), ("DEL", "t:a")])
        found.append((*told, [str(each) for each in together], type(together[1])))
        with pytest.raises(WrasseError, match="refused a command: ERR"):
            await link.run(Script.of("bad", "return redis.error_reply('ERR no')"), ["k"])
        await store.close()
    assert found[0] == found[1]
    assert found[0][-1] is RedisRefusal


async def test_a_wait_ends_with_its_time_and_leaves_the_connection_usable(redis_server: Valkey) -> None:
    link = await RedisPyClient.open(options(redis_server.port, pool_size=2))
    assert (await link.block("BLPOP", "nothing-there", 0.05, timeout=1), await link.ask("PING")) == (None, b"PONG")
    waiting = asyncio.ensure_future(link.block("BLPOP", "nothing-there", 5, timeout=5))
    await asyncio.sleep(0.05)
    assert not link.has_free_connection
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (link.has_free_connection, await link.ask("PING")) == (True, b"PONG")
    await link.close()


async def test_a_credential_provider_logs_in(tmp_path: Any) -> None:
    rules = tmp_path / "users.acl"
    rules.write_text("user default off\nuser worker on >token ~* &* +@all\n")
    with valkey("--aclfile", rules) as server:
        given = options(server.port, credential_provider="backends.redis.test_redis_py:Secrets")
        link = await RedisPyClient.open(RedisOptions.of(given.url()))
        assert await link.ask("ACL", "WHOAMI") == b"worker"
        await link.close()
        with pytest.raises(Refused, match="user and password"):
            await RedisPyClient.open(options(server.port, username="worker", password="wrong"))


async def test_a_provider_that_fails_is_named_without_its_words(redis_server: Valkey) -> None:
    with pytest.raises(StoreUnavailable) as met:
        await RedisPyClient.open(
            options(redis_server.port, credential_provider="backends.redis.test_redis_py:NoSecrets")
        )
    assert "geheim" not in str(met.value)


async def test_a_program_brings_its_own_client(redis_server: Valkey) -> None:
    PORT.append(redis_server.port)
    store = await Redis.open(
        f"redis://ignored:1/0?client=backends.redis.test_redis_py:own_client&root=t{redis_server.port}"
    )
    assert await store.client.ask("PING") == b"PONG"
    await store.close()


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ("backends.redis.test_redis_py:modern_client", "RESP3"),
        ("backends.redis.test_redis_py:no_client", "not a redis.asyncio.Redis"),
        ("backends.redis.test_redis_py:nothing", "there is none"), ("nowhere_at_all:x", "there is none"),
    ],
)  # fmt: skip
async def test_a_client_that_will_not_do_is_refused(redis_server: Valkey, client: str, why: str) -> None:
    PORT.append(redis_server.port)
    with pytest.raises(ConfigError, match=why):
        await RedisPyClient.open(replace(options(redis_server.port), client=client))


@pytest.mark.parametrize(
    "more", [{"client": "other"}, {"client": "own", "credential_provider": "a:b"}, {"cluster": True},
             {"credential_provider": "x"}]
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(options(1), **more)


async def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def absent(name: str, *args: Any, **named: Any) -> ModuleType:
        if name == "redis.asyncio":
            raise ModuleNotFoundError(name)
        found: ModuleType = imported(name, *args, **named)
        return found

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ConfigError) as met:
        await RedisPyClient.open(options(1))
    assert "wrasse[redis-py]" in met.value.do


async def test_the_master_that_sentinels_name_is_found() -> None:
    with watched() as scene:
        given = RedisOptions.of(scene.url)
        link = await RedisPyClient.open(replace(given, client="redis-py"))
        assert (await link.ask("ROLE"))[0] == b"master"
        await link.close()


async def test_a_server_with_tls_is_trusted_by_its_certificate(redis_server: Valkey) -> None:
    async with encrypted(redis_server.port) as port:
        link = await RedisPyClient.open(options(port, tls=Tls(ca=str(CERTIFICATE))))
        assert await link.ask("PING") == b"PONG"
        await link.close()
        with pytest.raises(WrasseError, match="certificate"):
            await RedisPyClient.open(options(port, tls=Tls()))


@pytest.mark.parametrize("data", [b"", b"hello\r\n", b"$5\r\nab", b"-LOADING wait\r\n", b"*-7\r\n"])
@pytest.mark.parametrize("how", [How.WHOLE, How.CLOSED])
async def test_a_server_that_means_harm_is_an_error_of_ours(data: bytes, how: How) -> None:
    short = timedelta(seconds=0.2)
    async with hostile(attacking("connected", data, how)) as port:
        with pytest.raises(WrasseError):
            await RedisPyClient.open(options(port, dial_timeout=short, read_timeout=short))


def answering(data: bytes, cut: int) -> Peer:
    """A server that answers GET with these bytes, in two pieces."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := (await words(reader))[0].upper():
            if said.startswith(b"GET"):
                writer.write(data[:cut])
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.write(data[cut:])
            else:
                writer.write(b"+PONG\r\n" if said.startswith(b"PING") else b"+OK\r\n")

    return script


@pytest.mark.parametrize("size", [10, 300, 3_000])
async def test_what_looks_like_a_huge_array_inside_a_value_is_a_value(size: int) -> None:
    value = b"a\r\n*1000000000\r\n" * size
    reply = b"*2\r\n:1\r\n$%d\r\n%b\r\n" % (len(value), value)
    for cut in (9, 20, 21, 22, 23, 30, len(reply) - 8):
        async with hostile(answering(reply, cut)) as port:
            link = await RedisPyClient.open(options(port))
            for _ in range(2):
                assert await link.ask("GET", "a") == [1, value]
            await link.close()


@pytest.mark.parametrize("line", [b"*1000000000\r\n", b"*2\r\n:1\r\n*1000000\r\n", b"+a\r\n*9999999999\r\n"])
@pytest.mark.parametrize("cut", [0, 1, 3, -3])
async def test_an_array_that_announces_too_much_ends_the_connection(line: bytes, cut: int) -> None:
    async with hostile(answering(line, cut % len(line))) as port:
        link = await RedisPyClient.open(options(port))
        with pytest.raises(StoreUnavailable, match="an array of more than 999999 elements"):
            await link.ask_many([("GET", "a"), ("GET", "b")])
        await link.close()


async def test_a_reply_takes_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_options, "REPLY_BYTES_LEAST", 1)
    reply = b"$100000\r\n" + b"x" * 100_000 + b"\r\n"
    async with hostile(answering(reply, 5)) as port:
        for limit, fits in ((200_000, True), (90_000, False)):
            link = await RedisPyClient.open(options(port, reply_bytes_max=limit))
            for _ in range(3):
                if fits:
                    assert await link.ask("GET", "a") == b"x" * 100_000
                else:
                    with pytest.raises(ReplyTooLarge, match=r"redis\.reply_bytes_max \(90000 bytes\)"):
                        await link.ask("GET", "a")
            await link.close()


@pytest.mark.parametrize("data", [b"$2000000000\r\n" + b"x" * 1_000, b"*1000000000\r\n", b":1\r\n"])
async def test_an_endless_answer_takes_bounded_memory(data: bytes) -> None:
    told = await client_meets("redis", attacking("asked", data, How.ENDLESS), client="redis-py")
    assert told.ours
    assert told.grown < 600 << 20, told


def test_the_choice_travels_in_the_url() -> None:
    given: Sequence[RedisOptions] = (options(1), options(1, credential_provider="a.b:c"))
    assert [RedisOptions.of(each.url()) for each in given] == list(given)
