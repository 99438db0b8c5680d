"""Publishing and consuming, on every backend: what a handler sees, and how a consumer ends."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from conformance.mail import (
    AUTO,
    PATIENCE,
    Log,
    S,
    StreamClient,
    acks,
    consumers,
    eventually,
    reached,
    same,
)
from conformance.stores import Store
from wrasse.errors import TooLarge, UsageError
from wrasse.ports.groups import StartAt
from wrasse.streams.consumer import ConsumerSettings
from wrasse.streams.delivery import PlainReceived, Received


@pytest.fixture
def client(live_store: Store) -> StreamClient:
    return StreamClient(live_store)


# Publishing


async def test_the_id_that_publish_gives_is_the_one_that_a_consumer_sees(client: StreamClient) -> None:
    ids = [*await client.publish(b"1", b"2"), *await client.publish(b"3")]
    log = Log(acks)
    async with client.consuming(log):
        await log.until(3)
    assert [received.message_id for received in log.seen] == ids
    assert {len(id) for id in ids} == {26}
    assert ids == sorted(set(ids))


async def test_a_payload_at_the_limit_passes_and_one_byte_more_writes_nothing(client: StreamClient) -> None:
    await client.publish(b"x" * (1 << 20))
    with pytest.raises(TooLarge, match=r"1048577 bytes.*at most 1048576"):
        await client.publish(b"small", b"x" * ((1 << 20) + 1))
    log = Log(acks)
    async with client.consuming(log):
        await log.until(1)
        await eventually(lambda: same(client.pending(), 0))
    assert [len(payload) for payload in log.payloads] == [1 << 20]


@pytest.mark.parametrize("payload", [b"", bytes(range(256))], ids=["none", "every byte"])
async def test_payload_bytes_arrive_unchanged(client: StreamClient, payload: bytes) -> None:
    await client.publish(payload)
    log = Log(acks)
    async with client.consuming(log):
        await log.until(1)
    assert log.payloads == [payload]


async def test_an_envelope_has_its_five_fields_and_no_trace_id_when_there_is_none(client: StreamClient) -> None:
    await client.publisher.publish(S, b"a", trace_id="t-1")
    await client.publisher.publish(S, b"b")
    with_trace, without = [json.loads(entry.body) for entry in await client.entries(S)]
    assert list(with_trace) == ["message_id", "subject", "timestamp", "trace_id", "payload"]
    assert list(without) == ["message_id", "subject", "timestamp", "payload"]


async def test_a_handler_sees_what_its_publisher_said(client: StreamClient) -> None:
    before = client.store.clock.now().timestamp() * 1_000
    await client.publisher.publish(S, b"a", trace_id="t-1")
    log = Log(acks)
    async with client.consuming(log):
        (received, *_) = await log.until(1)
    assert (received.subject, received.trace_id, received.number, received.fields) == (S, "t-1", 1, {})
    assert before - 1 <= received.timestamp <= client.store.clock.now().timestamp() * 1_000
    assert received.id == (await client.entries(S))[0].id


async def test_an_idempotency_key_makes_one_message_and_gives_its_id_both_times(client: StreamClient) -> None:
    ids = [await client.publisher.publish(S, b"a", key="k") for _ in range(2)]
    assert ids[0] == ids[1]
    assert [json.loads(entry.body)["message_id"] for entry in await client.entries(S)] == ids[:1]


async def test_a_closed_publisher_publishes_nothing(client: StreamClient) -> None:
    await client.publisher.close()
    with pytest.raises(UsageError, match="closed"):
        await client.publish(b"1")
    assert await client.entries(S) == ()


# Delivering


async def test_messages_arrive_in_order(client: StreamClient) -> None:
    sent = [b"%d" % n for n in range(300)]
    await client.publish(*sent[:150])
    log = Log(acks)
    async with client.consuming(log):
        await client.publish(*sent[150:])
        await log.until(300)
    assert log.payloads == sent


async def test_two_groups_each_get_every_message(client: StreamClient) -> None:
    await client.publish(b"1", b"2")
    a, b = Log(acks), Log(acks)
    async with client.consuming(a, group="a"), client.consuming(b, group="b"):
        await a.until(2)
        await b.until(2)
    assert a.payloads == b.payloads == [b"1", b"2"]


async def test_two_consumers_of_a_group_share_the_messages(client: StreamClient) -> None:
    sent = [b"%d" % n for n in range(100)]
    await client.publish(*sent)
    a, b = Log(acks), Log(acks)
    async with client.consuming(a, AUTO), client.consuming(b, AUTO):
        await eventually(lambda: same(_count(a, b), 100))
    assert sorted(a.payloads + b.payloads) == sorted(sent)


async def _count(*logs: Log) -> int:
    return sum(len(log.seen) for log in logs)


async def test_a_pattern_gets_streams_that_come_later_from_their_first_message(client: StreamClient) -> None:
    await client.publish(b"old", subject="orders.eu.paid")
    log = Log(acks)
    settings = replace(AUTO, start=StartAt(), discover=timedelta(milliseconds=50))
    async with client.consuming(log, settings, pattern="orders.*.paid"):
        await eventually(lambda: _joined(client, "orders.eu.paid"))
        await client.publish(b"new", subject="orders.us.paid")
        await client.publish(b"unasked", subject="orders.us.sent")
        await log.until(1)
        await client.publish(b"newer", subject="orders.eu.paid")
        await log.until(2)
    assert [(received.subject, received.payload) for received in log.seen] == [
        ("orders.us.paid", b"new"), ("orders.eu.paid", b"newer"),
    ]  # fmt: skip


async def _joined(client: StreamClient, subject: str) -> bool:
    return bool((await client.streams.info(subject)).groups)


async def test_a_pattern_that_matches_nothing_yet_waits(client: StreamClient) -> None:
    log = Log(acks)
    async with client.consuming(log, replace(AUTO, discover=timedelta(milliseconds=50)), pattern="orders.>"):
        await client.publish(b"1", subject="orders.eu")
        await log.until(1)
    assert log.payloads == [b"1"]


async def test_a_plain_handler_runs_in_a_thread_and_answers_there(client: StreamClient) -> None:
    await client.publish(b"1", b"2", b"3")
    threads: list[str] = []
    seen: list[tuple[bytes, int]] = []

    def handler(received: PlainReceived) -> None:
        threads.append(threading.current_thread().name)
        seen.append((received.payload, received.number))
        if received.payload == b"1":
            received.ack()
        elif received.payload == b"2":
            received.dead_letter("not today")
        elif received.number == 1:
            received.nak()
        else:
            received.ack()

    async with client.consuming(handler) as consumer:
        await eventually(lambda: reached(consumer.tally.acked + consumer.tally.dead, 3))
    assert seen == [(b"1", 1), (b"2", 1), (b"3", 1), (b"3", 2)]
    assert threading.current_thread().name not in threads


async def test_several_handlers_run_at_a_time_when_asked(client: StreamClient) -> None:
    await client.publish(b"1", b"2", b"3")
    together = asyncio.Barrier(3)

    async def meet(received: Received) -> None:
        await together.wait()

    log = Log(meet)
    async with client.consuming(log, replace(AUTO, concurrency=3)) as consumer:
        await eventually(lambda: reached(consumer.tally.acked, 3))
    assert sorted(log.payloads) == [b"1", b"2", b"3"]


# Ending


async def test_closing_waits_for_running_handlers(client: StreamClient) -> None:
    await client.publish(b"1")
    log = Log(lambda received: asyncio.sleep(0.3))
    async with client.consuming(log, AUTO) as consumer:
        await log.until(1)
        await consumer.close()
        assert consumer.tally.acked == 1
    assert await client.pending() == 0


async def test_closing_cuts_off_handlers_that_do_not_end_and_gives_their_messages_back(client: StreamClient) -> None:
    await client.publish(b"1")
    forever = asyncio.Event()
    log, other = Log(lambda received: forever.wait()), Log()
    settings = replace(AUTO, close_max=timedelta(milliseconds=100))
    async with client.consuming(log, settings) as consumer:
        await log.until(1)
        await consumer.close()
    async with client.consuming(other, settings):
        await other.until(1)
    assert [(received.payload, received.number) for received in other.seen] == [(b"1", 2)]


async def test_closing_releases_at_once_what_did_not_start(client: StreamClient) -> None:
    await client.publish(b"1", b"2", b"3")
    gate = asyncio.Event()
    log, other = Log(lambda received: gate.wait()), Log()
    async with client.consuming(log, AUTO) as consumer:
        await log.until(1)
        await eventually(lambda: same(client.pending(), 3))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.close())
            await asyncio.sleep(0)
            gate.set()
    async with client.consuming(other, AUTO):
        await other.until(2)
    assert (log.payloads, sorted(other.payloads)) == ([b"1"], [b"2", b"3"])


async def test_a_consumer_that_is_cancelled_releases_what_it_had(client: StreamClient) -> None:
    await client.publish(b"1", b"2")
    log, other = Log(lambda received: asyncio.Event().wait()), Log()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.consumer(log, AUTO).run())
        await log.until(1)
        await eventually(lambda: same(client.pending(), 2))
        running.cancel()
    async with client.consuming(other, AUTO):
        await other.until(2)
    assert sorted(other.payloads) == [b"1", b"2"]


async def test_a_consumer_that_waits_ends_soon(client: StreamClient) -> None:
    await client.publish(b"1")
    log = Log()
    async with client.consuming(log, AUTO) as consumer:
        await eventually(lambda: reached(consumer.tally.acked, 1))
        began = client.store.clock.monotonic()
        await consumer.close()
        took = client.store.clock.monotonic() - began
    assert (took < 3, await client.pending()) == (True, 0)


@pytest.mark.needs("knows_holders")
async def test_an_idle_consumer_ends_soon_and_leaves_its_group(client: StreamClient) -> None:
    log = Log()
    async with client.consuming(log, AUTO) as consumer:
        await eventually(lambda: same(consumers(client), 1))
        began = client.store.clock.monotonic()
        await consumer.close()
        took = client.store.clock.monotonic() - began
    assert await consumers(client) == 0
    assert took < 3, "the promise is 300 ms; the rest is for a machine that is busy"


@pytest.mark.needs("knows_holders")
async def test_a_consumer_with_something_pending_stays_known_to_its_group(client: StreamClient) -> None:
    await client.publish(b"1")
    log = Log()
    async with client.consuming(log):
        await log.until(1)
    assert (await consumers(client), await client.pending()) == (1, 1)


async def test_an_answer_after_the_end_is_refused(client: StreamClient) -> None:
    await client.publish(b"1")
    log = Log()
    async with client.consuming(log):
        await log.until(1)
    with pytest.raises(UsageError, match="closed"):
        await log.seen[0].ack()


async def test_a_consumer_runs_once(client: StreamClient) -> None:
    await client.publish(b"1")
    log = Log()
    async with client.consuming(log) as consumer:
        await log.until(1)
        await consumer.close()
        with pytest.raises(UsageError, match="has run already"):
            await consumer.run()


async def test_a_consumer_that_waits_delays_no_publish(client: StreamClient) -> None:
    log = Log()
    async with client.consuming(log, AUTO), asyncio.timeout(PATIENCE):
        for n in range(5):
            await client.publish(b"%d" % n)
            await log.until(n + 1)
    assert len(log.seen) == 5


async def test_consumers_of_one_host_have_names_of_their_own(client: StreamClient) -> None:
    names = {client.consumer(Log()).name for _ in range(10)}
    assert len(names) == 10
    assert all(len(name.rpartition("-")[2]) == 26 for name in names)


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", "a b"])
async def test_a_pattern_that_is_none_is_refused(client: StreamClient, pattern: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        client.consumer(Log(), pattern=pattern)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"inflight_max": 0}, {"deliveries_max": -1}, {"ack_timeout": timedelta(0)}, {"concurrency": 0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            ConsumerSettings(**wrong)
