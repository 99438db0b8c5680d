"""A Redis whose pages never end: cursors that repeat or never end, scripts that always have more to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import count

import pytest

from backends.redis.test_replies_shapes import HOLD, _words, resp
from servers.hostile import hostile
from wrasse.backends import page_loop
from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis import replies
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.jobs import lists
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import StoreBroken
from wrasse.ports.jobs import Delete, JobFilter, JobState

SECOND = timedelta(seconds=1)
_HELD = [b"7-0a0b0c0d", b"5", b"1 2 0 1 3 2\nwlowj1{}"]


class Endless:
    """Answers every page with one more; `circle`: with the same few cursors again and again."""

    def __init__(self) -> None:
        self.circle = True
        self._numbers = count(1)

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            words = await _words(reader)
            writer.write(self._answer(words[0].upper(), words))

    def _answer(self, command: bytes, words: list[bytes]) -> bytes:
        number = next(self._numbers)
        cursor = number % 3 + 1 if self.circle else number
        match command:
            case b"TIME":
                return resp([b"1", b"1"])
            case b"PING":
                return b"+PONG\r\n"
            case b"TYPE":
                return b"+zset\r\n"
            case b"SCAN" | b"HSCAN" | b"ZSCAN":
                return resp([b"%d" % cursor, []])
            case b"LLEN" | b"ZCARD":
                return resp(number)
            case b"LRANGE":
                return resp([b"{}"] * min(int(words[3]) - int(words[2]) + 1, 5_000))
            case b"ZRANGEBYLEX":
                return resp([b"a.%d" % cursor] * 2_000)
            case b"SMEMBERS":
                return resp([])
            case b"EVALSHA" | b"EVAL":
                return self._script(words[2], cursor)
        return b"+OK\r\n"

    def _script(self, keys: bytes, cursor: int) -> bytes:
        return resp(b"more") if keys == b"5" else resp([b"9", 1, *_HELD[:1], b"%d" % cursor, None])


CALLS: dict[str, Callable[[Redis], Awaitable[object]]] = {
    "overdue": lambda redis: redis.jobs.overdue(None, 5),
    "held": lambda redis: redis.jobs.page(JobState.RUNNING, JobFilter(), None, 5),
    "dead": lambda redis: redis.jobs.page(JobState.DEAD, JobFilter(), None, 5),
    "subjects": lambda redis: redis.streams.subjects("a.*.b", None, 5),
    "survey": lambda redis: redis.surveys.survey("a.*.b", None, 5),
    "retire": lambda redis: redis.groups.retire("a.b", "g", "c"),
    "damage": lambda redis: redis.fsck.check(repair=False, heartbeat_timeout=SECOND),
}


@pytest.fixture
async def met(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Endless, Redis]]:
    monkeypatch.setattr(page_loop, "ROUNDS_MAX", 50)
    server = Endless()
    async with hostile(server.play) as port:
        redis = await Redis.open(RedisOptions((("127.0.0.1", port),), max_retries=0))
        try:
            yield server, redis
        finally:
            await redis.close()


@pytest.mark.parametrize("circle", [True, False])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_pages_without_end_are_an_error_that_names_the_server(
    met: tuple[Endless, Redis], call: Callable[[Redis], Awaitable[object]], circle: bool
) -> None:
    server, redis = met
    server.circle = circle
    with pytest.raises(StoreBroken, match=r"127\.0\.0\.1:\d+ answers .+ without end"):
        async with asyncio.timeout(20):
            await call(redis)


async def test_a_delete_that_gets_nowhere_is_an_error(met: tuple[Endless, Redis]) -> None:
    with pytest.raises(StoreBroken):
        async with asyncio.timeout(20):
            await met[1].jobs.delete([Delete(HOLD, JobState.DEAD)])


class Growing(Endless):
    """Says how many dead jobs there are, and then has more, all different."""

    said = 5

    def _answer(self, command: bytes, words: list[bytes]) -> bytes:
        match command:
            case b"LLEN":
                return resp(self.said + 1_000)
            case b"ZCARD":
                return resp(self.said)
            case b"SMEMBERS":
                return resp([])
            case b"LRANGE":
                asked = int(words[3]) - int(words[2]) + 1
                return resp([b"%d" % next(self._numbers) for _ in range(asked)])
            case b"SCAN":
                number = next(self._numbers)
                return resp([b"%d" % number, [b"jobqueue:worker:%d.%d:processing" % (number, n) for n in range(500)]])
        return super()._answer(command, words)


async def test_what_a_server_goes_on_to_name_is_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_GROWN", 10_000)
    monkeypatch.setattr(replies, "WORKERS_MAX", 10_000)
    server = Growing()
    async with hostile(server.play) as port:
        redis = await Redis.open(RedisOptions((("127.0.0.1", port),), max_retries=0))
        async with asyncio.timeout(20):
            with pytest.raises(StoreBroken, match="jobqueue:dead_letter without end: it counted 1005"):
                await redis.jobs.counts()
            server.said = lists.COMPARED_MAX
            assert not await lists.compare_dead(redis.client, RedisKeys(redis.client.options))
            with pytest.raises(StoreBroken, match="10000 workers were not all"):
                await redis.lists.lengths("jobqueue:limiter")
        await redis.close()


@pytest.mark.parametrize("before", [0, 1, 5, 100])
@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_a_circle_is_found_wherever_it_begins(before: int, length: int) -> None:
    turns = PageLoop("here", "SCAN")

    def turn_all() -> None:
        for n in range(4 * (before + length) + 8):
            turns.turn(n if n < before else before + (n - before) % length)

    with pytest.raises(StoreBroken, match="a cursor was repeated"):
        turn_all()


def test_cursors_that_go_on_are_no_circle() -> None:
    turns = PageLoop("here", "SCAN")
    assert [turns.turn(n) for n in range(10_000)] == [None] * 10_000  # type: ignore[func-returns-value]
