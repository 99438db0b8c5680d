"""The connection to Redis: sends once, reconnects by itself, and raises our errors."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
import redis

from servers.proxy import proxy
from servers.tls import CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY, encrypted
from servers.valkey import Valkey, valkey
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import Script
from wrasse.backends.tcp import Tls
from wrasse.errors import ConfigError, Refused, StoreBroken, StoreFull, StoreUnavailable
from wrasse.ports.guard import HealthSample

PUSH = Script.of("push", "return redis.call('RPUSH', KEYS[1], ARGV[2])")
ENDLESS = Script.of("endless", "while true do end")


@asynccontextmanager
async def linked(options: RedisOptions | str) -> AsyncIterator[OwnRedisClient]:
    link = await OwnRedisClient.open(RedisOptions.of(options) if isinstance(options, str) else options)
    try:
        yield link
    finally:
        await link.close()


def at(port: int, **changes: object) -> RedisOptions:
    short = RedisOptions(
        nodes=(("127.0.0.1", port),), read_timeout=timedelta(seconds=5), dial_timeout=timedelta(seconds=5)
    )
    return dataclasses.replace(short, **changes)  # type: ignore[arg-type]


@pytest.fixture
def key() -> str:
    return f"t{uuid4().hex}"


async def eventually(link: OwnRedisClient, key: str) -> int:
    """Pushes until the server takes it; each refusal must be ours."""
    async with asyncio.timeout(30):
        while True:
            try:
                return int(await link.run(PUSH, (key,), ("x",)))
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def until_refused(link: OwnRedisClient, key: str) -> str:
    """Pushes until the server does not take it, and gives what it said."""
    while True:
        try:
            await link.run(PUSH, (key,), ("x",))
        except StoreUnavailable as error:
            return str(error)


async def other_pulse(store: Redis, than: HealthSample) -> HealthSample:
    """The first pulse that is another's."""
    async with asyncio.timeout(30):
        while True:
            pulse = await store.health_sample()
            if pulse.identity != than.identity:
                return pulse
            await asyncio.sleep(0.02)


# Sending


async def test_a_script_gets_its_keys_and_arguments_byte_for_byte(redis_server: Valkey) -> None:
    echo = Script.of("echo", "return {KEYS[1], ARGV[2], ARGV[3]}")
    async with linked(redis_server.url) as link:
        sent = bytes(range(256))
        assert await link.run(echo, (sent,), ("é", 7)) == [sent, "é".encode(), b"7"]


async def test_answers_find_who_asked_when_many_ask_at_once(redis_server: Valkey) -> None:
    echo = Script.of("echo", "return ARGV[2]")
    async with linked(redis_server.url) as link:
        answers = await asyncio.gather(*(link.run(echo, (), (n,)) for n in range(500)))
        assert answers == [b"%d" % n for n in range(500)]


async def test_a_cancelled_question_does_not_give_its_answer_to_another(redis_server: Valkey) -> None:
    async with linked(redis_server.url) as link:
        first = asyncio.ensure_future(link.ask("ECHO", "first"))
        await asyncio.sleep(0)
        first.cancel()
        assert await link.ask("ECHO", "second") == b"second"


async def test_reads_of_one_round_trip_come_back_in_order(redis_server: Valkey) -> None:
    async with linked(redis_server.url) as link:
        assert await link.ask_many([("ECHO", n) for n in range(100)]) == [b"%d" % n for n in range(100)]


async def test_a_script_is_known_again_after_the_server_forgot_all_scripts(key: str) -> None:
    with valkey() as server:
        async with linked(server.url) as link:
            await link.run(PUSH, (key,), ("x",))
            await link.ask("SCRIPT", "FLUSH")
            assert await link.run(PUSH, (key,), ("x",)) == 2


async def test_a_blocking_wait_does_not_hold_up_other_commands(redis_server: Valkey, key: str) -> None:
    async with linked(redis_server.url) as link:
        waiting = asyncio.ensure_future(link.block("BLPOP", key, 30, timeout=30))
        await link.run(PUSH, (key,), ("x",))
        async with asyncio.timeout(10):
            assert await waiting == [key.encode(), b"x"]


async def test_a_wait_longer_than_the_read_timeout_is_no_failure(redis_server: Valkey, key: str) -> None:
    async with linked(at(redis_server.port, read_timeout=timedelta(seconds=0.2))) as link:
        assert await link.block("BLPOP", key, 0.5, timeout=0.5) is None


async def test_waits_beyond_the_pool_are_told_so_in_time(redis_server: Valkey, key: str) -> None:
    async with linked(at(redis_server.port, pool_size=2)) as link:
        waiting = asyncio.ensure_future(link.block("BLPOP", key, 30, timeout=30))
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="are in use"):
            await link.block("BLPOP", key, 0.1, timeout=0.1)
        await link.run(PUSH, (key,), ("x",))
        assert await waiting == [key.encode(), b"x"]


async def test_a_wait_that_was_given_up_does_not_answer_the_next(redis_server: Valkey, key: str) -> None:
    async with linked(redis_server.url) as link:
        await link.block("BLPOP", key, 0.01, timeout=0.01)  # its connection is kept for the next
        waiting = asyncio.ensure_future(link.block("BLPOP", key, 30, timeout=30))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await link.block("BLPOP", f"{key}-other", 0.01, timeout=0.01) is None


# Lost replies, restarts, silence


async def test_a_script_whose_reply_is_lost_is_not_sent_again(redis_server: Valkey, key: str) -> None:
    async with proxy(redis_server.port) as between, linked(at(between.port)) as link:
        await link.run(PUSH, (key,), ("warm",))
        between.deaf = True
        with pytest.raises(StoreUnavailable):
            await link.run(PUSH, (key,), ("once",))
        between.deaf = False
        assert await link.ask("LRANGE", key, 0, -1) == [b"warm", b"once"]


async def test_a_read_whose_reply_is_lost_is_asked_again(redis_server: Valkey) -> None:
    async with proxy(redis_server.port) as between, linked(at(between.port)) as link:
        between.cut()
        assert await link.ask("ECHO", "x") == b"x"


async def test_everybody_who_waits_is_told_when_the_connection_breaks(redis_server: Valkey, key: str) -> None:
    async with proxy(redis_server.port) as between, linked(at(between.port)) as link:
        between.delay = 30.0
        waiting = [asyncio.ensure_future(link.run(PUSH, (key,), (n,))) for n in range(20)]
        await asyncio.sleep(0.05)
        between.cut()
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}


async def test_a_server_that_does_not_answer_is_given_up_after_the_read_timeout(key: str) -> None:
    with valkey() as server:
        async with linked(at(server.port, read_timeout=timedelta(seconds=0.3))) as link:
            server.pause()
            try:
                async with asyncio.timeout(20):
                    with pytest.raises(StoreUnavailable, match="no answer within"):
                        await link.run(PUSH, (key,), ("x",))
            finally:
                server.resume()


async def test_a_server_that_does_not_read_is_given_up_after_the_write_timeout(key: str) -> None:
    with valkey() as server:
        slow = at(server.port, read_timeout=timedelta(seconds=60), write_timeout=timedelta(seconds=0.2))
        async with linked(slow) as link:
            server.pause()
            try:
                big = "x" * (1 << 20)
                pushing = [asyncio.ensure_future(link.run(PUSH, (key,), (big,))) for _ in range(50)]
                async with asyncio.timeout(30):
                    answers = await asyncio.gather(*pushing, return_exceptions=True)
                assert {type(answer) for answer in answers} == {StoreUnavailable}
            finally:
                server.resume()


async def test_the_link_comes_back_after_the_server_was_killed(key: str) -> None:
    with valkey(durable=True) as server:
        async with linked(server.url) as link:
            await link.run(PUSH, (key,), ("x",))
            server.kill()
            with pytest.raises(StoreUnavailable):
                await link.run(PUSH, (key,), ("x",))
            server.start()
            assert await eventually(link, key) == 2


async def test_a_dead_server_is_tried_once_for_all_who_ask(redis_server: Valkey) -> None:
    async with proxy(redis_server.port) as between, linked(at(between.port)) as link:
        between.refuse = True
        between.cut()
        before = between.connections
        answers = await asyncio.gather(*(link.run(PUSH, ("x",), ("x",)) for _ in range(50)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        assert between.connections - before <= 2 * (link.options.max_retries + 1)


async def test_a_closed_link_does_not_open_itself_again(redis_server: Valkey) -> None:
    link = await OwnRedisClient.open(RedisOptions.of(redis_server.url))
    await link.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await link.ask("PING")


# What the server refuses


async def test_a_server_that_is_not_there_is_named_without_secrets() -> None:
    options = at(1, password="hush", max_retries=0)
    with pytest.raises(StoreUnavailable) as told:
        await OwnRedisClient.open(options)
    assert "127.0.0.1:1" in str(told.value)
    assert "hush" not in f"{told.value} {options} {options!r}"


@pytest.fixture(scope="module")
def guarded() -> object:
    with valkey("--requirepass", "secret") as server:
        with redis.Redis(port=server.port, password="secret") as client:
            client.execute_command("ACL SETUSER few on >few ~few:* +@connection +ping")
            client.execute_command("ACL SETUSER all on >all ~* &* +@all")
        yield server


@pytest.mark.parametrize(
    ("user", "password", "word"), [("", "", "NOAUTH"), ("", "wrong", "password"), ("nobody", "x", "password")]
)
async def test_a_wrong_login_is_refused_and_not_tried_again(
    guarded: Valkey, user: str, password: str, word: str
) -> None:
    with pytest.raises(Refused, match=word) as told:
        await OwnRedisClient.open(at(guarded.port, username=user, password=password))
    assert "redis.password" in told.value.do


async def test_an_acl_user_logs_in(guarded: Valkey, key: str) -> None:
    async with linked(at(guarded.port, username="all", password="all")) as link:
        assert await link.run(PUSH, (key,), ("x",)) == 1


async def test_a_user_without_rights_is_told_so(guarded: Valkey, key: str) -> None:
    async with linked(at(guarded.port, username="few", password="few")) as link:
        with pytest.raises(Refused, match="NOPERM"):
            await link.run(PUSH, (key,), ("x",))


async def test_a_replica_takes_no_writes_and_is_asked_again(redis_server: Valkey, key: str) -> None:
    with valkey("--replicaof", f"127.0.0.1 {redis_server.port}") as replica:
        async with linked(at(replica.port)) as link:
            with pytest.raises(StoreUnavailable, match=r"READONLY|MASTERDOWN"):
                await link.run(PUSH, (key,), ("x",))
            await link.ask("REPLICAOF", "NO", "ONE")
            assert await eventually(link, key) == 1


async def test_a_server_without_memory_says_that_nothing_was_changed(key: str) -> None:
    with valkey("--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as server:
        async with linked(server.url) as link:
            with pytest.raises(StoreFull):
                await link.run(PUSH, (key,), ("x" * 100,))
            assert await link.ask("EXISTS", key) == 0


async def test_a_server_that_is_busy_with_a_script_is_waited_for(key: str) -> None:
    with valkey("--busy-reply-threshold", "100") as server:
        patient = at(server.port, read_timeout=timedelta(seconds=30))
        async with linked(patient) as link, linked(patient) as other, linked(patient) as third:
            endless = asyncio.ensure_future(other.run(ENDLESS, ()))
            async with asyncio.timeout(20):
                told = await until_refused(link, key)
            await third.ask("SCRIPT", "KILL")
            await asyncio.gather(endless, return_exceptions=True)
            assert ("BUSY" in told, await eventually(link, key) >= 1) == (True, True)


async def test_a_key_that_another_program_uses_is_told_apart_from_an_outage(redis_server: Valkey, key: str) -> None:
    async with linked(redis_server.url) as link:
        await link.ask("SET", key, "mine")
        with pytest.raises(StoreBroken, match="WRONGTYPE"):
            await link.run(PUSH, (key,), ("x",))


async def test_a_database_that_does_not_exist_is_a_mistake_of_the_settings(redis_server: Valkey) -> None:
    with pytest.raises(ConfigError, match="no such database"):
        await OwnRedisClient.open(at(redis_server.port, db=99))


# TLS


async def test_an_encrypted_link_checks_whom_it_talks_to(redis_server: Valkey, key: str) -> None:
    async with encrypted(redis_server.port) as port:
        with pytest.raises(Refused, match="certificate"):
            await OwnRedisClient.open(at(port, tls=Tls()))
        async with linked(at(port, tls=Tls(ca=str(CERTIFICATE)))) as link:
            assert await link.run(PUSH, (key,), ("x" * 100_000,)) == 1


async def test_an_encrypted_link_may_be_told_not_to_check(redis_server: Valkey) -> None:
    async with encrypted(redis_server.port) as port, linked(at(port, tls=Tls(verify=False))) as link:
        assert await link.ask("ECHO", "x") == b"x"


async def test_an_encrypted_link_shows_its_own_certificate(redis_server: Valkey) -> None:
    ours = Tls(ca=str(CERTIFICATE), cert=str(CLIENT_CERTIFICATE), key=str(CLIENT_KEY))
    async with encrypted(redis_server.port, asks_client=True) as port:
        with pytest.raises(StoreUnavailable):
            await OwnRedisClient.open(at(port, tls=Tls(ca=str(CERTIFICATE)), max_retries=0))
        async with linked(at(port, tls=ours)) as link:
            assert await link.ask("ECHO", "x") == b"x"


async def test_a_server_with_too_many_clients_says_so() -> None:
    with valkey("--maxclients", "1") as server:
        async with linked(server.url):
            with pytest.raises(StoreUnavailable, match="too many clients"):
                await OwnRedisClient.open(at(server.port, max_retries=0))


async def test_a_file_that_is_no_certificate_is_a_mistake_of_the_settings(redis_server: Valkey) -> None:
    with pytest.raises(ConfigError, match="has no certificate"):
        await OwnRedisClient.open(at(redis_server.port, tls=Tls(ca=__file__)))


async def test_a_missing_certificate_file_is_a_mistake_of_the_settings(redis_server: Valkey) -> None:
    with pytest.raises(ConfigError, match=r"redis\.tls"):
        await OwnRedisClient.open(at(redis_server.port, tls=Tls(ca="/nowhere/ca.pem")))


async def test_a_server_without_tls_is_not_waited_for_in_silence(redis_server: Valkey) -> None:
    with pytest.raises(StoreUnavailable):
        await OwnRedisClient.open(at(redis_server.port, tls=Tls(), max_retries=0, dial_timeout=timedelta(seconds=1)))


# The pulse


async def test_the_pulse_is_that_of_another_after_a_restart() -> None:
    with valkey() as server:
        store = await Redis.open(server.url)
        try:
            first, again = await store.health_sample(), await store.health_sample()
            server.restart()
            later = await other_pulse(store, first)
        finally:
            await store.close()
    assert (first.identity == again.identity, later.identity == first.identity) == (True, False)
    assert first.at <= again.at <= later.at


async def test_the_pulse_counts_what_was_evicted(key: str) -> None:
    with valkey("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random") as server:
        store = await Redis.open(server.url)
        try:
            before = await store.health_sample()
            for n in range(100):
                await store.client.ask("SET", f"{key}{n}", "x" * 100_000)
            after = await store.health_sample()
        finally:
            await store.close()
    assert before.evicted == 0 < after.evicted


async def test_the_pulse_of_a_dead_server_is_an_outage() -> None:
    with valkey() as server:
        store = await Redis.open(server.url)
        server.kill()
        with pytest.raises(StoreUnavailable):
            await store.health_sample()
        await store.close()
