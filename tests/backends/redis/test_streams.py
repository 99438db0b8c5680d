"""Streams on Redis as others see them: the origin's keys and bytes, programs of others on the same streams and groups,
races on the server itself, and answers that are lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from servers.proxy import Proxy
from servers.valkey import SHARED, Valkey, oldest, valkey
from wrasse.backends.redis import groups, streams
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.keys import StreamKeys
from wrasse.backends.redis.options import RedisOptions, key_slot
from wrasse.cli.demo.tour import MESSAGES, publish_and_archive
from wrasse.clock import ManualClock, SystemClock
from wrasse.config.load import load
from wrasse.errors import ConfigError, StoreBroken, StoreUnavailable, UsageError
from wrasse.ports.groups import Ack, DeadLetter, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection
from wrasse.ports.streams import START, Draft, EntryId
from wrasse.runtime.backends import Stores
from wrasse.streams.consumer import Consumer, ConsumerSettings, StreamSubscription
from wrasse.streams.delivery import Received
from wrasse.streams.envelope import decode
from wrasse.streams.publisher import Publisher

S, KEY, G = "gbe.events.audit.change", "gbe:events:audit:change", "archiver"
FIRST = StartAt(first=True)
TIMEOUT = timedelta(seconds=30)
PROBES = Collection.named(".wrasse/doctor")
# As the origin writes it: compact, in this order, the payload in base64.
ORIGIN = (
    b'{"message_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","subject":"gbe.events.audit.change","timestamp":1700000000000,'
    b'"trace_id":"t-1","payload":"AAEC/w=="}'
)


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as made:
        yield made


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Redis]:
    store = await Redis.open(server.url)
    await store.client.ask("FLUSHALL")
    yield store
    await store.close()


async def append(store: Redis, *bodies: bytes, subject: str = S) -> list[EntryId]:
    return list(await store.streams.append([Draft(subject, body) for body in bodies]))


async def bodies(store: Redis, subject: str = S) -> list[bytes]:
    return [entry.body for entry in (await store.streams.read(subject, START, 10_000)).items]


async def trim(store: Redis, *protect: str, age: timedelta | None = None, limit: int = 10_000) -> int:
    return (await store.streams.trim(S, age=age, below=None, protect=protect, limit=limit)).count


async def foreign(store: Redis, *words: object) -> object:
    return await store.client.ask(*words)  # what another program sends


# The wire


async def test_an_entry_is_the_origins_key_with_one_field_and_its_envelope_byte_for_byte(redis: Redis) -> None:
    publisher = Publisher(redis.streams, SystemClock())
    id = await publisher.publish(S, bytes([0, 1, 2, 255]), trace_id="t-1")
    ((_, (field, envelope)),) = await redis.client.ask("XRANGE", KEY, "-", "+")
    ours = decode(envelope)
    same = ORIGIN.replace(b"01ARZ3NDEKTSV4RRFFQ69G5FAV", id.encode()).replace(b"1700000000000", b"%d" % ours.timestamp)
    assert (field, envelope) == (b"envelope", same)


async def test_an_entry_of_the_origin_is_read_and_delivered(redis: Redis) -> None:
    await foreign(redis, "XADD", KEY, "*", "envelope", ORIGIN)
    await redis.groups.join(S, G, FIRST)
    (delivery,) = await redis.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT)
    assert (decode(delivery.entry.body).payload, await bodies(redis)) == (bytes([0, 1, 2, 255]), [ORIGIN])


async def test_an_entry_without_an_envelope_shows_all_its_fields(redis: Redis) -> None:
    await foreign(redis, "XADD", KEY, "*", "a", "1", "b", b"\xff")
    (entry,) = (await redis.streams.read(S, START, 10)).items
    assert (entry.body, entry.fields) == (b"", {"a": b"1", "b": b"\xff"})


async def test_a_dead_letter_has_the_origins_fields_first(redis: Redis) -> None:
    await redis.groups.join(S, G, FIRST)
    (id,) = await append(redis, ORIGIN)
    await redis.groups.deliver([S], G, "c", 1, ack_timeout=TIMEOUT)
    letter = Draft("gbe._deadletter.events", ORIGIN, fields={"reason": b"why"})
    await redis.groups.answer([DeadLetter(S, G, id, letter)])
    ((_, words),) = await redis.client.ask("XRANGE", "gbe:_deadletter:events", "-", "+")
    assert words == [b"envelope", ORIGIN, b"reason", b"why"]


async def test_the_origins_archiver_sees_how_far_a_group_is(redis: Redis) -> None:
    await redis.groups.join(S, G, FIRST)
    ids = await append(redis, b"1", b"2", b"3")
    await redis.groups.mark(S, G, ids[1])
    (group,) = await redis.client.ask("XINFO", "GROUPS", KEY)
    known = dict(zip(group[::2], group[1::2], strict=True))
    assert (known[b"last-delivered-id"].decode(), known[b"lag"]) == (str(ids[1]), 1)


async def test_a_subject_below_the_root_of_our_own_keys_is_refused(redis: Redis) -> None:
    with pytest.raises(UsageError, match="uses itself"):
        await append(redis, b"", subject="jobqueue.token")


async def test_a_key_that_is_no_stream_is_told(redis: Redis) -> None:
    await foreign(redis, "SET", KEY, "something else")
    with pytest.raises(StoreBroken, match="WRONGTYPE"):
        await append(redis, b"1")


# Programs of others


async def test_ids_go_on_from_what_another_program_wrote_in_the_future(redis: Redis) -> None:
    far = f"99999999999999-{(1 << 64) - 2}"
    await foreign(redis, "XADD", KEY, far, "envelope", ORIGIN)
    (id,) = await append(redis, b"1")
    assert id > EntryId.parse(far)


async def test_where_others_write_too_length_is_right_and_size_is_what_the_stream_takes(redis: Redis) -> None:
    await append(redis, b"1")
    await foreign(redis, "XADD", KEY, "*", "envelope", ORIGIN)
    state = await redis.streams.info(S)
    assert state is not None
    assert (state.length, state.appended, state.bytes > len(ORIGIN)) == (2, 2, True)


async def test_a_group_that_only_the_origin_reads_protects_what_it_has_not_acked(redis: Redis) -> None:
    await append(redis, b"1", b"2", b"3")
    await foreign(redis, "XGROUP", "CREATE", KEY, G, "0")
    before = await trim(redis, G)
    await foreign(redis, "XREADGROUP", "GROUP", G, "host-1", "COUNT", 2, "STREAMS", KEY, ">")
    pending = await trim(redis, G)
    first = (await redis.streams.read(S, START, 1)).items[0].id
    await foreign(redis, "XACK", KEY, G, str(first))
    assert (before, pending, await trim(redis, G), await bodies(redis)) == (0, 0, 1, [b"2", b"3"])


async def test_a_wrong_lag_does_not_change_a_trim(redis: Redis) -> None:
    ids = await append(redis, b"1", b"2", b"3", b"4")
    await redis.groups.join(S, G, FIRST)
    await foreign(redis, "XDEL", KEY, str(ids[1]))
    state = await redis.streams.info(S)
    assert state is not None
    assert (state.groups[0].lag, await trim(redis, G)) == (None, 0)


async def test_what_a_dead_consumer_of_the_origin_held_comes_to_us_with_its_count(redis: Redis) -> None:
    await append(redis, b"1")
    await redis.groups.join(S, G, FIRST)
    await foreign(redis, "XREADGROUP", "GROUP", G, "host-1", "STREAMS", KEY, ">")
    short = timedelta(milliseconds=150)
    assert await redis.groups.deliver([S], G, "ours", 10, ack_timeout=TIMEOUT) == []
    async with asyncio.timeout(20):
        while not (found := await redis.groups.deliver([S], G, "ours", 10, ack_timeout=short, wait=short)):
            await redis.client.ask("HDEL", StreamKeys(redis.client.options).group(S, G).consumers, "")  # look again now
    assert [(delivery.entry.body, delivery.number) for delivery in found] == [(b"1", 2)]


async def test_what_a_live_consumer_of_the_origin_works_on_stays_with_it(redis: Redis) -> None:
    await append(redis, b"1")
    await redis.groups.join(S, G, FIRST)
    await foreign(redis, "XREADGROUP", "GROUP", G, "host-1", "STREAMS", KEY, ">")
    assert await redis.groups.deliver([S], G, "ours", 10, ack_timeout=TIMEOUT) == []


async def test_a_quiet_consumer_of_the_origin_is_not_retired(redis: Redis) -> None:
    await redis.groups.join(S, G, FIRST)
    await foreign(redis, "XGROUP", "CREATECONSUMER", KEY, G, "host-1")
    (state,) = await redis.groups.consumers(S, G)
    assert (state.consumer, await redis.groups.retire(S, G, "host-1")) == ("host-1", Outcome.CONFLICT)


async def test_the_group_that_the_origin_makes_and_nobody_reads_is_not_shown(redis: Redis) -> None:
    await append(redis, b"1")
    await foreign(redis, "XGROUP", "CREATE", KEY, "_init", "$")
    state = await redis.streams.info(S)
    assert state is not None
    assert state.groups == ()


async def test_a_foreign_stream_is_found_by_its_pattern_and_only_then_trimmed(redis: Redis) -> None:
    await foreign(redis, "XADD", KEY, "1-1", "envelope", ORIGIN)
    await foreign(redis, "XADD", "not.a.subject", "*", "a", "b")
    await foreign(redis, "SET", "gbe:events:audit:text", "no stream")
    unknown = await trim(redis)
    found = await redis.streams.subjects("gbe.events.*.*", None, 10)
    assert (unknown, found.items, await trim(redis)) == (0, (S,), 1)


@pytest.mark.parametrize(
    ("key", "shown"),
    [(b"with space", "with space"), (b"", ""), (b"\xff", "\\xff"), (b"a.b", None), (b"deep:x y", None)],
)
async def test_a_stream_that_a_pattern_means_and_whose_key_is_no_subject_is_told_once(
    redis: Redis, caplog: pytest.LogCaptureFixture, key: bytes, shown: str | None
) -> None:
    await foreign(redis, "XADD", b"gbe:events:audit:" + key, "*", "a", "b")
    await append(redis, b"1")
    for _ in range(2):
        assert (await redis.streams.subjects("gbe.events.audit.*", None, 10)).items == (S,)
        await redis.streams.survey("gbe.events.audit.*", None, 10)
        await redis.streams.subjects(">", None, 10)
    told = [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()]
    assert len(told) == (shown is not None)
    assert all(repr(f"gbe:events:audit:{shown}") in each for each in told)


async def test_the_doctor_names_streams_whose_keys_are_no_subjects(redis: Redis) -> None:
    assert not [each for each in await redis.examine() if each.check == "streams"]
    await foreign(redis, "XADD", "gbe:events:audit:with space", "*", "a", "b")
    (found,) = [each for each in await redis.examine() if each.check == "streams"]
    assert "1 streams are skipped" in found.what
    assert "gbe:events:audit:with space" in found.what


async def test_a_foreign_stream_that_comes_later_is_found_by_the_next_pass(
    server: Valkey, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.streams.subjects(">", None, 10)
    await foreign(redis, "XADD", KEY, "*", "envelope", ORIGIN)
    soon = await redis.streams.subjects(">", None, 10)
    monkeypatch.setattr(streams, "PASS", 0.0)
    assert (soon.items, (await redis.streams.subjects(">", None, 10)).items) == ((), (S,))


@pytest.mark.parametrize("client", ["own", "redis-py"])
@pytest.mark.parametrize("names", [1, 2, 3, 100])
async def test_who_only_reads_sees_streams_of_others_among_our_own_and_registers_none(
    redis: Redis, names: int, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_NAMES", names)
    monkeypatch.setattr(streams, "_SURVEY_NAMES", names)
    for number in (1, 3, 4, 7):
        await append(redis, b"1", subject=f"a.s{number}")
    await foreign(redis, "DEL", "a:s3")
    for number in (0, 2, 5, 6, 8):
        await foreign(redis, "XADD", f"a:s{number}", "*", "envelope", ORIGIN)
    await foreign(redis, "SET", "a:s9", "no stream")
    before = await redis.client.ask("ZRANGE", "jobqueue:streams", 0, -1)
    reader = await Redis.open(replace(redis.client.options, client=client), to_read=True)
    wanted = [f"a.s{number}" for number in (0, 1, 2, 4, 5, 6, 7, 8)]
    for limit in (1, 3, 10):
        for listing in (reader.streams.subjects, reader.surveys.survey):
            found, after = list[str](), None
            while True:
                page = await listing("a.*", after, limit)
                found += [each if isinstance(each, str) else each.subject for each in page.items]
                after = page.cursor
                if after is None:
                    break
            assert found == wanted
    literal = [(await reader.streams.subjects(f"a.s{number}", None, 1)).items for number in (2, 3, 9)]
    await reader.close()
    assert literal == [("a.s2",), (), ()]
    assert await redis.client.ask("ZRANGE", "jobqueue:streams", 0, -1) == before


async def test_what_is_kept_of_deleted_records_is_forgotten_where_there_are_no_others(redis: Redis) -> None:
    records = redis.records(PROBES)
    first, second = await records.create("a", b"1"), await records.create("b", b"1")
    assert first.version is not None
    assert second.version is not None
    await records.delete("a", at=first.version)
    await redis.forget(PROBES)
    assert await records.get("b") is not None
    assert await redis.client.ask("EXISTS", "jobqueue:records:.wrasse/doctor/r:writes") == 1
    await records.delete("b", at=second.version)
    await redis.forget(PROBES)
    assert await redis.client.ask("DBSIZE") == 0


async def test_a_stream_that_somebody_deleted_is_forgotten(redis: Redis) -> None:
    await append(redis, b"1")
    await foreign(redis, "DEL", KEY)
    assert (await redis.streams.subjects(">", None, 10)).items == ()
    assert await redis.client.ask("ZCARD", "jobqueue:streams") == 0


async def test_a_consumer_hears_what_another_program_appends(redis: Redis) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(received: Received) -> None:
        got.put_nowait(received.payload)

    settings = ConsumerSettings(auto_ack=True, start=FIRST)
    consumer = Consumer(redis.streams, redis.groups, SystemClock(), StreamSubscription(S, "workers", handle, settings))
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run())
        await foreign(redis, "XADD", KEY, "*", "envelope", ORIGIN)
        assert await got.get() == bytes([0, 1, 2, 255])
        await consumer.close()


async def test_an_archiver_keeps_every_message_with_streams_and_cursor_on_redis(
    server: Valkey, redis: Redis, tmp_path: Path
) -> None:
    file = tmp_path / "wrasse.yaml"
    file.write_text(
        f"backends: {{streams: '{server.url}', records: '{server.url}', objects: 'file://{tmp_path}/kept'}}\n"
        "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 10}]}\n"
    )
    kept = await publish_and_archive(load(file), SystemClock())
    (group,) = await redis.client.ask("XINFO", "GROUPS", KEY)
    assert (kept.whole, await trim(redis, "archiver"), group[1]) == (True, MESSAGES, b"archiver")


# Our notes and the server's


async def test_what_is_pending_comes_back_though_our_own_notes_are_lost(redis: Redis) -> None:
    await append(redis, b"1")
    await redis.groups.join(S, G, FIRST)
    short = timedelta(milliseconds=100)
    await redis.groups.deliver([S], G, "gone", 10, ack_timeout=short)
    keys = StreamKeys(redis.client.options).group(S, G)
    await redis.client.ask("DEL", keys.held, keys.due, keys.consumers)
    async with asyncio.timeout(20):
        while not (found := await redis.groups.deliver([S], G, "c2", 10, ack_timeout=short, wait=short)):
            await redis.client.ask("HDEL", keys.consumers, "")
    assert [delivery.number for delivery in found] == [2]


@pytest.mark.parametrize("extended", [False, True])
async def test_what_others_claimed_from_us_is_not_delivered_again_at_our_deadline(
    server: Valkey, redis: Redis, extended: bool
) -> None:
    clock = ManualClock()
    ours = await Redis.open(server.url, clock, time=clock)
    await append(ours, b"1")
    await ours.groups.join(S, G, FIRST)
    (delivery,) = await ours.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT)
    if extended:
        await ours.groups.extend("c", [delivery], ack_timeout=TIMEOUT)
    await foreign(redis, "XCLAIM", KEY, G, "host-1", 0, str(delivery.entry.id))
    clock.advance(TIMEOUT * 2)
    assert await ours.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT) == []
    await ours.close()


async def test_acked_batches_leave_nothing_behind(server: Valkey) -> None:
    clock = ManualClock()
    store = await Redis.open(server.url, clock, time=clock)
    await store.groups.join(S, "tidy", StartAt())
    for _ in range(20):
        await append(store, b"1", b"2")
        found = await store.groups.deliver([S], "tidy", "c", 10, ack_timeout=TIMEOUT)
        await store.groups.answer([Ack(S, "tidy", each.entry.id) for each in found])
    clock.advance(TIMEOUT)
    await store.groups.deliver([S], "tidy", "c", 10, ack_timeout=TIMEOUT)
    keys = StreamKeys(store.client.options).group(S, "tidy")
    assert await store.client.ask("EXISTS", keys.held, keys.due) == 0
    await store.close()


async def test_a_server_that_forgot_our_scripts_delivers_everything_once_and_in_order(redis: Redis) -> None:
    await redis.groups.join(S, G, FIRST)
    await append(redis, *(b"%d" % n for n in range(6)))
    numbered = []
    for _ in range(3):
        found = await redis.groups.deliver([S], G, "c", 2, ack_timeout=TIMEOUT)
        numbered += [(delivery.entry.body, delivery.number) for delivery in found]
        await foreign(redis, "SCRIPT", "FLUSH")
    assert numbered == [(b"%d" % n, 1) for n in range(6)]


async def test_a_consumer_gets_no_more_than_it_asked_for_when_some_are_due_and_some_are_new(redis: Redis) -> None:
    await redis.groups.join(S, G, FIRST)
    ids = await append(redis, *(b"%d" % n for n in range(9)))
    await redis.groups.deliver([S], G, "c", 3, ack_timeout=TIMEOUT)
    await redis.groups.answer([Nak(S, G, id) for id in ids[:3]])
    steps = [await redis.groups.deliver([S], G, "c", 4, ack_timeout=TIMEOUT) for _ in range(3)]
    numbered = [[(delivery.entry.body, delivery.number) for delivery in step] for step in steps]
    assert numbered == [
        [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 1)],
        [(b"4", 1), (b"5", 1), (b"6", 1), (b"7", 1)],
        [(b"8", 1)],
    ]


async def test_who_waits_hears_of_a_nak_without_looking_again(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_BLOCK_MAX", 600.0)
    await redis.groups.join(S, G, FIRST)
    (id,) = await append(redis, b"1")
    long = timedelta(minutes=10)
    await redis.groups.deliver([S], G, "c", 1, ack_timeout=long)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(redis.groups.deliver([S], G, "c2", 1, ack_timeout=long, wait=long))
        rows = StreamKeys(redis.client.options).group(S, G).consumers
        while not await redis.client.ask("HEXISTS", rows, "c2"):  # noqa: ASYNC110  # it asks in another task
            await asyncio.sleep(0.01)
        await redis.groups.answer([Nak(S, G, id)])
    assert [delivery.number for delivery in waiting.result()] == [2]


# Races


@pytest.mark.parametrize("total", [600, pytest.param(10_000, marks=pytest.mark.full)])
async def test_no_trim_takes_what_a_racing_archiver_was_given_and_has_not_acked(
    server: Valkey, redis: Redis, total: int
) -> None:
    other = await Redis.open(server.url)
    await redis.groups.join(S, G, FIRST)
    archived = 0

    async def archive() -> None:
        nonlocal archived
        while archived < total:
            found = await other.groups.deliver([S], G, "c", 7, ack_timeout=TIMEOUT)
            there = {entry.id for entry in (await other.streams.read(S, START, 10_000)).items}
            assert all(each.entry.id in there for each in found), "trimmed though it was not acked"
            await other.groups.answer([Ack(S, G, each.entry.id) for each in found])
            archived += len(found)

    async def sweep() -> None:
        while archived < total:
            await trim(redis, G)

    async def write() -> None:
        for number in range(total // 10):
            await append(redis, *(b"%d" % (number * 10 + n) for n in range(10)))

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for work in (archive(), sweep(), write()):
            tasks.create_task(work)
    assert archived == total
    await other.close()


async def test_a_batch_is_stored_whole_or_not_at_all_when_its_second_stream_is_none(redis: Redis) -> None:
    await foreign(redis, "SET", "b", "no stream")
    with pytest.raises(StoreBroken):
        await redis.streams.append([Draft("a", b"1"), Draft("b", b"2")])
    assert await redis.streams.info("a") is None


# Answers that are lost


@pytest.fixture
async def lossy(server: Valkey, redis: Redis) -> AsyncIterator[tuple[Redis, Proxy]]:
    proxy = Proxy(server.port)
    await proxy.start()
    store = await Redis.open(f"redis://127.0.0.1:{proxy.port}/0?max_retries=1&read_timeout=2s")
    yield store, proxy
    proxy.deaf = False
    await store.close()
    await proxy.close()


async def test_an_append_with_a_key_whose_answer_was_lost_is_made_once(
    lossy: tuple[Redis, Proxy], redis: Redis
) -> None:
    store, proxy = lossy
    proxy.deaf = True
    with pytest.raises(StoreUnavailable):
        await store.streams.append([Draft(S, b"1", "k")])
    proxy.deaf = False
    (id,) = await store.streams.append([Draft(S, b"1", "k")])
    assert [entry.id for entry in (await redis.streams.read(S, START, 10)).items] == [id]


async def test_a_delivery_whose_answer_was_lost_comes_back_after_its_deadline(
    lossy: tuple[Redis, Proxy], redis: Redis
) -> None:
    store, proxy = lossy
    await append(redis, b"1")
    await redis.groups.join(S, G, FIRST)
    short = timedelta(milliseconds=100)
    proxy.deaf = True
    with pytest.raises(StoreUnavailable):
        await store.groups.deliver([S], G, "c", 10, ack_timeout=short)
    async with asyncio.timeout(20):
        (again,) = await redis.groups.deliver([S], G, "c2", 10, ack_timeout=short, wait=timedelta(seconds=15))
    assert (again.entry.body, again.number) == (b"1", 2)


async def test_a_dead_letter_whose_answer_was_lost_is_written_once(lossy: tuple[Redis, Proxy], redis: Redis) -> None:
    store, proxy = lossy
    (id,) = await append(redis, b"1")
    await redis.groups.join(S, G, FIRST)
    await redis.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT)
    letter = DeadLetter(S, G, id, Draft("gbe._deadletter.events", b"1"))
    proxy.deaf = True
    with pytest.raises(StoreUnavailable):
        await store.groups.answer([letter])
    proxy.deaf = False
    again = await store.groups.answer([letter, Nak(S, G, id)])
    assert (list(again), await bodies(redis, "gbe._deadletter.events")) == ([Outcome.CONFLICT] * 2, [b"1"])


# Old servers and Clusters


async def test_a_server_older_than_7_is_refused_for_streams_and_kept_for_jobs() -> None:
    stores = Stores(SystemClock())
    url = SHARED.at(oldest()).url
    with pytest.raises(ConfigError, match=r"Redis 6\.2.* streams need 7\.0"):
        await stores.open_streams(url)
    assert (await (await stores.open(url)).jobs.counts()) is not None
    await stores.close()


def test_on_a_cluster_every_key_of_a_stream_is_in_the_slot_of_the_root() -> None:
    options = RedisOptions(nodes=(("h", 1),), cluster=True)
    keys = StreamKeys(options)
    log, group = keys.of("a{b}.c"), keys.group("a{b}.c", "g{x}")
    named = (log.log, log.facts, log.known, log.known_expiry, group.held, group.due, group.consumers, group.wake)
    assert {key_slot(key) for key in named} == {options.slot}
    assert keys.subject(log.log.encode()) == "a{b}.c"


def test_a_prefix_outside_the_tag_of_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="streams_prefix is outside"):
        RedisOptions(nodes=(("h", 1),), cluster=True, streams_prefix="other:")
