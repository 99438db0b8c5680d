"""Pages of groups on Redis: many acks in one call, each with its outcome; large pages, sent one after the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta

import pytest

from servers.proxy import Proxy, proxy
from servers.valkey import Valkey, valkey
from wrasse.backends.redis import groups
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.keys import StreamKeys
from wrasse.backends.redis.streams import id_of, ids_of
from wrasse.ports.groups import Ack, Delivery, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import Draft, EntryId

S, KEY, G = "gbe.events.audit.change", "gbe:events:audit:change", "readers"
TIMEOUT = timedelta(minutes=5)
MANY = 1_200  # more than are acked in one command


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as made:
        yield made


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Redis]:
    store = await Redis.open(server.url)
    await store.client.ask("FLUSHALL")
    await store.groups.join(S, G, StartAt(first=True))
    yield store
    await store.close()


async def append(store: Redis, count: int, body: bytes = b"x") -> list[EntryId]:
    pieces = [await store.streams.append([Draft(S, body)] * 100) for _ in range(count // 100)]  # not in one millisecond
    return [id for piece in pieces for id in piece]


async def deliver(store: Redis, limit: int) -> Sequence[Delivery]:
    return await store.groups.deliver([S], G, "c", limit, ack_timeout=TIMEOUT)


async def ack(store: Redis, ids: Sequence[EntryId]) -> list[Outcome]:
    return list(await store.groups.answer([Ack(S, G, id) for id in ids]))


async def calls(store: Redis, command: str) -> int:
    """How often the server has carried it out, when it comes to this question."""
    lines = (await store.client.ask("INFO", "commandstats")).decode().splitlines()
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if f"_{command}:" in line)


async def expected(store: Redis, ids: Sequence[EntryId]) -> list[Outcome]:
    """What the server's own list says that acks of these will come to, one after the other."""
    pending = {id_of(row[0]) for row in await store.client.ask("XPENDING", KEY, G, "-", "+", 10_000)}
    told = []
    for id in ids:
        told.append(Outcome.DONE if id in pending else Outcome.CONFLICT)
        pending.discard(id)
    return told


# Many acks


async def in_order(store: Redis) -> list[EntryId]:
    ids = await append(store, MANY)
    await deliver(store, MANY - 100)
    await ack(store, ids[:70])
    return ids


async def with_gaps(store: Redis) -> list[EntryId]:
    ids = await append(store, MANY)
    await deliver(store, MANY - 100)
    await ack(store, random.Random(1).sample(ids, 300))
    return ids


async def acked_by_others(store: Redis) -> list[EntryId]:
    ids = await append(store, MANY)
    await deliver(store, MANY - 100)
    await store.client.ask("XACK", KEY, G, *(str(id) for id in ids[50:900:7]))
    return ids


async def given_back(store: Redis) -> list[EntryId]:
    ids = await append(store, MANY)
    await deliver(store, MANY)
    await store.groups.answer([Nak(S, G, id) for id in ids[10:20]])
    return ids


async def deleted_by_others(store: Redis) -> list[EntryId]:
    ids = await in_order(store)
    await store.client.ask("XDEL", KEY, *(str(id) for id in ids[100:120]))
    return ids


async def trimmed(store: Redis) -> list[EntryId]:
    ids = await append(store, MANY)
    await deliver(store, MANY - 100)
    await store.streams.trim(S, age=None, below=ids[400], protect=(), limit=10_000)
    return ids


async def with_ids_of_others(store: Redis) -> list[EntryId]:
    """Every number stands for two entries of which one is pending: it looks as if nothing were missing."""
    ids = [EntryId(ms, ms // 2) for ms in range(2, 402)]
    for id in ids:
        await store.client.ask("XADD", KEY, str(id), "envelope", "x")
    await deliver(store, 1_000)
    await store.client.ask("XACK", KEY, G, *(str(id) for id in ids[1::2]))
    return ids


async def half_of_others(store: Redis) -> list[EntryId]:
    ids = await append(store, 200)
    for ms in range(200):
        await store.client.ask("XADD", KEY, f"{ids[-1].ms + 1 + ms}-{ms % 50}", "envelope", "x")
    ids += [EntryId(ids[-1].ms + 1 + ms, ms % 50) for ms in range(200)]
    await deliver(store, 1_000)
    return ids


SCENES = (
    in_order, with_gaps, acked_by_others, deleted_by_others, given_back, trimmed, with_ids_of_others, half_of_others,
)  # fmt: skip


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_each_of_many_acks_is_told_what_became_of_it(
    redis: Redis, scene: Callable[[Redis], Awaitable[list[EntryId]]]
) -> None:
    ids = await scene(redis)
    made_up = [EntryId(ids[100].ms, id.seq) for id in ids[-200:-190]]
    asked = [*ids[60:], *made_up, *ids[300:340], EntryId(1, 1)]
    foretold = await expected(redis, asked)
    assert await ack(redis, asked) == foretold


async def test_many_acks_in_any_order_are_all_done(redis: Redis) -> None:
    ids = await append(redis, MANY)
    await deliver(redis, MANY)
    random.Random(2).shuffle(ids)
    outcomes = await ack(redis, ids)
    assert (outcomes, await redis.client.ask("XPENDING", KEY, G)) == ([Outcome.DONE] * MANY, [0, None, None, None])


async def test_many_acks_leave_no_deadline_behind(redis: Redis) -> None:
    ids = await given_back(redis)
    await ack(redis, ids)
    assert await redis.client.ask("EXISTS", StreamKeys(redis.client.options).group(S, G).due) == 0


async def test_acks_in_order_cost_the_server_a_few_commands(redis: Redis) -> None:
    await append(redis, MANY)
    found = await deliver(redis, 800)
    await deliver(redis, 400)  # held by somebody else of the group
    before = await calls(redis, "xack")
    await ack(redis, [each.entry.id for each in found])
    assert await calls(redis, "xack") - before <= 2


# Large pages


@pytest.fixture
async def slow(server: Valkey, redis: Redis) -> AsyncIterator[tuple[Redis, Proxy]]:
    """Through a proxy, after a first large page; now bytes take their time."""
    async with proxy(server.port) as between:
        store = await Redis.open(f"redis://127.0.0.1:{between.port}/0")
        await append(redis, 1_000, b"x" * 1_000)
        await deliver(store, 100)
        await deliver(store, 100)
        await redis.client.ask("CONFIG", "RESETSTAT")
        between.delay = 0.2
        yield store, between
        between.delay = 0.0
        await store.close()


async def test_the_next_large_page_is_asked_for_when_the_one_before_has_come(
    slow: tuple[Redis, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_TURN_SECONDS_MAX", 60.0)
    store, between = slow
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        pages = [tasks.create_task(deliver(store, 100)) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)  # both ask, and neither can have been answered
        meanwhile = tasks.create_task(calls(store, "xreadgroup"))
        await asyncio.sleep(0)
        between.delay = 0.0
    handed = {each.entry.id for page in pages for each in page.result()}
    assert (meanwhile.result(), len(handed)) == (1, 200)


async def test_a_large_page_that_does_not_come_holds_up_nobody(slow: tuple[Redis, Proxy], redis: Redis) -> None:
    store, between = slow
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        pages = [tasks.create_task(deliver(store, 100)) for _ in range(2)]
        while await calls(redis, "xreadgroup") < 2:  # noqa: ASYNC110  # they ask in other tasks
            await asyncio.sleep(0.01)
        waiting = [page for page in pages if not page.done()]
        between.delay = 0.0
    assert len(waiting) == 2


# Ids


@pytest.mark.parametrize("id", ["0-1", "1731792000000-0", "1731792000000-42", f"{2**64 - 1}-{2**64 - 1}"])
def test_ids_are_read_alike_one_by_one_and_many_at_once(id: str) -> None:
    text = id.encode()
    assert [*ids_of([text, b"7-7"])] == [id_of(text), EntryId(7, 7)]
