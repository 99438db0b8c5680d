"""Everything that was accepted can be read although a page of it exceeds one reply (redis.reply_bytes_max)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from conformance.queue_client import QueueClient
from servers.valkey import Valkey, valkey
from wrasse.backends.redis import options
from wrasse.backends.redis.client.client import sections
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.failure import ReplyTooLarge
from wrasse.backends.redis.jobs import changes
from wrasse.backends.redis.jobs.pages import ServedList
from wrasse.backends.redis.replies import in_pieces
from wrasse.errors import StoreBroken
from wrasse.ports.groups import Delivery, StartAt
from wrasse.ports.jobs import (
    PAYLOAD_BYTES_MAX,
    Cancel,
    Claim,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobState,
    Reason,
    RequeueDead,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Draft, EntryId
from wrasse.streams.delivery import dead_letter, envelope_in

S, KEY = "gbe.events.audit.change", "gbe:events:audit:change"
LIMIT = 6 << 20  # beyond the bytes whose elements are not counted
LARGE = b"x" * (1 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as made:
        yield made


@pytest.fixture
async def redis(server: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Redis]:
    monkeypatch.setattr(options, "REPLY_BYTES_LEAST", 1)
    store = await Redis.open(f"{server.url}?reply_bytes_max={LIMIT}")
    await store.client.ask("FLUSHALL")
    yield store
    await store.close()


async def test_a_page_of_large_entries_shrinks_until_it_fits(redis: Redis) -> None:
    ids = [id for _ in range(20) for id in await redis.streams.append([Draft(S, LARGE)])]
    for read in (redis.streams.read, redis.streams.chunk):
        found, after = list[EntryId](), START
        while True:
            page = await read(S, after, 1_000)
            some = [each.id for each in page.items] if hasattr(page, "items") else [*map(page.id, range(len(page)))]
            found += some
            if not page.more:
                break
            after = found[-1]
        assert found == ids


async def test_large_entries_behind_small_ones_are_read(redis: Redis) -> None:
    await redis.streams.append([Draft(S, b"x")] * 100)
    assert len(await redis.streams.read(S, START, 100)) == 100  # so small ones are expected
    for _ in range(10):
        await redis.streams.append([Draft(S, LARGE)])
    page = await redis.streams.read(S, START, 1_000)
    found = list(page)
    while page.more:
        page = await redis.streams.read(S, found[-1].id, 1_000)
        found += page
    assert sum(len(each.body) for each in found) == 100 + 10 * len(LARGE)


async def test_an_entry_that_no_reply_can_hold_is_named(redis: Redis) -> None:
    (before,) = await redis.streams.append([Draft(S, b"x")])
    await redis.client.ask("XADD", KEY, "*", "envelope", b"x" * (2 * LIMIT))
    page = await redis.streams.read(S, START, 10)
    assert [each.id for each in page] == [before]
    assert page.more
    with pytest.raises(StoreBroken, match=f"the entry of '{S}' that follows {before} is larger than"):
        await redis.streams.read(S, before, 10)


async def test_deliveries_of_large_entries_come_a_few_at_a_time(server: Valkey) -> None:
    store = await Redis.open(server.url)
    try:
        await store.client.ask("FLUSHALL")
        await store.groups.join(S, "readers", StartAt(first=True))
        for _ in range(5):
            await store.streams.append([Draft(S, b"x" * (16 << 20))])
        given = [
            len(await store.groups.deliver([S], "readers", "c", 100, ack_timeout=timedelta(minutes=5)))
            for _ in range(3)
        ]
        assert (given[0], sum(given)) == (2, 5)  # 32 MiB each, and one more where their size is expected
    finally:
        await store.close()


async def _delivered(redis: Redis, subjects: list[str], count: int) -> list[Delivery]:
    found: list[Delivery] = []
    for _ in range(3 * count):
        found += await redis.groups.deliver(subjects, "g", "c", 1_000, ack_timeout=timedelta(minutes=5))
        if len(found) >= count:
            break
    return found


@pytest.mark.parametrize("subjects", [[S], [S, "gbe.events.audit.other"]], ids=["one stream", "two streams"])
async def test_large_fields_of_other_programs_are_delivered_a_few_at_a_time(redis: Redis, subjects: list[str]) -> None:
    for subject in subjects:
        await redis.groups.join(subject, "g", StartAt(first=True))
    for _ in range(20):
        for subject in subjects:
            await redis.client.ask("XADD", subject.replace(".", ":"), "*", "small", "x", "large", LARGE[: 1 << 19])
    connections = redis.client.connections
    found = await _delivered(redis, subjects, 20 * len(subjects))
    assert [each.number for each in found] == [1] * 20 * len(subjects)
    assert redis.client.connections == connections


async def test_many_small_fields_are_delivered(redis: Redis) -> None:
    await redis.groups.join(S, "g", StartAt(first=True))
    words = [word for n in range(500) for word in (f"n{n}", "")]
    for _ in range(100):
        await redis.client.ask("XADD", KEY, "*", *words)
    connections = redis.client.connections
    assert len(await _delivered(redis, [S], 100)) == 100
    assert redis.client.connections == connections


async def test_an_entry_that_no_reply_can_hold_is_delivered_as_its_size(redis: Redis) -> None:
    await redis.groups.join(S, "g", StartAt(first=True))
    await redis.streams.append([Draft(S, b"before")])
    await redis.client.ask("XADD", KEY, "*", "large", b"x" * (2 * LIMIT))
    await redis.streams.append([Draft(S, b"after")])
    before, large, after = await _delivered(redis, [S], 3)
    assert (before.entry.body, after.entry.body) == (b"before", b"after")
    with pytest.raises(StoreBroken, match=f"an entry of {2 * LIMIT + 5 + 256} bytes, larger than a reply may be"):
        envelope_in(large.entry)
    assert await redis.groups.answer([dead_letter(large, "too long", deliveries=1)]) == (Outcome.DONE,)


@pytest.mark.parametrize("newest", [False, True])
async def test_a_list_of_large_entries_is_read_whole_and_in_order(redis: Redis, newest: bool) -> None:
    entries = [b"%03d" % n + LARGE for n in range(20)]
    for entry in entries:
        await redis.client.ask("RPUSH", "list", entry)
    read = ServedList(redis.client, "list", newest=newest)
    found = [entry async for entry in read.entries(None, 2_000)]
    assert [each.raw for each in found] == (entries if newest else entries[::-1])
    again = [entry.raw async for entry in read.entries(found[9].mark, 2_000)]
    assert again == [each.raw for each in found[10:]]


async def test_values_of_a_hash_are_read_in_pieces(redis: Redis) -> None:
    for n in range(20):
        await redis.client.ask("HSET", "hash", n, b"%03d" % n + LARGE)
    with pytest.raises(ReplyTooLarge, match="a reply beyond"):
        await redis.client.ask("HMGET", "hash", *range(20))
    found = await in_pieces(range(20), lambda names: redis.client.ask("HMGET", "hash", *names))
    assert [value[:3] for value in found] == [b"%03d" % n for n in range(20)]


async def test_a_peek_at_large_entries_gives_as_many_as_were_asked_for(redis: Redis) -> None:
    assert redis.lists is not None
    for n in range(20):
        await redis.client.ask("RPUSH", "list", b"%03d" % n + LARGE)
    assert [raw[:3] for raw in await redis.lists.peek("list", 12)] == [b"%03d" % n for n in range(19, 7, -1)]
    assert len(await redis.lists.peek("list", 100)) == 20


async def test_many_large_jobs_are_moved_and_deleted_in_scripts_of_bounded_size(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SCRIPT_BYTES_MAX", 1 << 20)
    jobs_client, ids = QueueClient(redis.jobs), [f"{n:02}" for n in range(60)]

    async def scripts() -> int:
        told = sections(await redis.client.ask("INFO", "commandstats"))["cmdstat_evalsha"]
        return int(told.partition("calls=")[2].partition(",")[0])

    async def holds(state: JobState) -> list[Claim]:
        found: list[Claim] = []
        page = await redis.jobs.page(state, JobFilter(), None, 100)
        while True:
            found += [info.claim for info in page]
            if page.cursor is None:
                return found
            page = await redis.jobs.page(state, JobFilter(), page.cursor, 100)

    for id in ids:
        await jobs_client.enqueue(Job(id, payload=bytes(100_000)))
    done, steps = [Outcome.DONE] * len(ids), []
    for act in ("cancel", "revive", "delete"):
        dead, ready, before = await holds(JobState.DEAD), await holds(JobState.READY), await scripts()
        if act == "delete":
            outcomes = await redis.jobs.delete([Delete(claim, JobState.READY) for claim in ready])
        else:
            asked = [Cancel(id) for id in ids] if act == "cancel" else [RequeueDead(claim) for claim in dead]
            outcomes = await redis.jobs.move(asked)  # 60 jobs of 133 kB are 8 MB: 8 scripts
        assert [*outcomes] == done
        steps.append(await scripts() - before)
    assert min(steps) >= 7
    for id in ids:
        await jobs_client.enqueue(Job(id, payload=bytes(100_000)))
    await jobs_client.move(*[Cancel(id) for id in ids])
    dead, before = await holds(JobState.DEAD), await scripts()
    assert [*await redis.jobs.delete([Delete(claim, JobState.DEAD) for claim in dead])] == done
    assert await scripts() - before >= 7
    assert await jobs_client.ids(JobState.DEAD) == []


async def test_large_waiting_jobs_are_found_wherever_they_stand(redis: Redis) -> None:
    jobs_client = QueueClient(redis.jobs)
    for n in range(60):
        await jobs_client.enqueue(Job(f"{n:02}", payload=bytes(300_000)), Job(f"d{n:02}", delay=timedelta(hours=1)))
    for id in ("00", "31", "59", "d00", "d59"):
        assert (await jobs_client.record(id)).job.id == id
    assert await redis.jobs.get("nobody") is None


@pytest.mark.full
async def test_many_of_the_largest_jobs_are_claimed_and_listed(server: Valkey) -> None:
    """14 jobs of 16 MiB take 298 MiB in Redis: more than a reply."""
    store = await Redis.open(server.url)
    try:
        await store.client.ask("FLUSHALL")
        jobs_client = QueueClient(store.jobs)
        ids = [f"{n:02}" for n in range(14)]
        for id in ids:
            await jobs_client.enqueue(Job(id, payload=bytes(PAYLOAD_BYTES_MAX)))
        assert await jobs_client.ids(JobState.READY) == ids
        claimed = []
        while len(claimed) < len(ids):
            some = await jobs_client.claim(100)
            assert 1 <= len(some) <= 3  # 32 MiB, and the job that goes beyond
            claimed += some
        assert sorted(await jobs_client.ids(JobState.RUNNING)) == ids
        for each in claimed:
            await store.jobs.move([DeadLetterJob(each.claim, Reason.FAILED, "x")])
        assert sorted(await jobs_client.ids(JobState.DEAD)) == ids
    finally:
        await store.close()
