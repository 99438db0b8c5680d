"""What becomes of a message that its handler does not ack, on every backend."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from conformance.mail import (
    AUTO,
    DEAD,
    EXPIRING,
    FIRST,
    MANUAL,
    SHORT,
    G,
    Log,
    S,
    StreamClient,
    acks,
    eventually,
    raises,
    reached,
    same,
)
from conformance.stores import Store
from faults import LOST_REPLY, LOST_REQUEST, Network, Script
from nats_noticed import delivering
from stream_faults import FaultyGroups
from wrasse.errors import StoreFull, StoreUnavailable
from wrasse.ports.groups import Answer, DeadLetter
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import FIELDS_BYTES_MAX, FIELDS_MAX, Draft
from wrasse.streams.delivery import Received


@pytest.fixture
def client(live_store: Store) -> StreamClient:
    return StreamClient(live_store)


# Not acking


async def test_a_handler_that_raises_gets_its_message_again_after_the_ack_timeout(client: StreamClient) -> None:
    await client.publish(b"1")

    async def fail_once(received: Received) -> None:
        if received.number == 1:
            raise ValueError("not yet")
        await received.ack()

    log = Log(fail_once)
    async with client.consuming(log, EXPIRING):
        await log.until(2)
    assert [received.number for received in log.seen][:2] == [1, 2]


async def test_a_handler_that_returns_without_an_ack_gets_its_message_again(client: StreamClient) -> None:
    await client.publish(b"1")

    async def ignore_once(received: Received) -> None:
        if received.number > 1:
            await received.ack()

    log = Log(ignore_once)
    async with client.consuming(log, EXPIRING) as consumer:
        await log.until(2)
        await eventually(lambda: reached(consumer.tally.acked, 1))
    assert (await client.pending(), [received.number for received in log.seen][:2]) == (0, [1, 2])


async def test_with_auto_ack_a_handler_that_returned_has_acked(client: StreamClient) -> None:
    await client.publish(b"1")
    log = Log()
    async with client.consuming(log, AUTO) as consumer:
        await log.until(1)
    assert (await client.pending(), consumer.tally.acked) == (0, 1)


async def test_with_auto_ack_a_handler_that_raised_has_said_nak(client: StreamClient) -> None:
    await client.publish(b"1")

    async def fail_twice(received: Received) -> None:
        if received.number < 3:
            raise ValueError("not yet")

    log = Log(fail_twice)
    # Nothing comes back by its deadline here: only a nak can bring it.
    async with client.consuming(log, AUTO) as consumer:
        await log.until(3)
    assert (consumer.tally.nacked, await client.pending()) == (2, 0)


async def test_a_message_of_a_dead_consumer_goes_to_another(client: StreamClient) -> None:
    await client.publish(b"1")
    await client.groups.join(S, G, FIRST, ack_timeout=SHORT)
    await delivering(client.groups)([S], G, "dead", 1, ack_timeout=SHORT)
    log = Log(acks)
    async with client.consuming(log, EXPIRING):
        await log.until(1)
    assert [(received.payload, received.number) for received in log.seen][:1] == [(b"1", 2)]


async def test_a_full_window_of_dead_consumers_does_not_stop_the_group(client: StreamClient) -> None:
    sent = [b"%d" % n for n in range(12)]
    await client.publish(*sent)
    await client.groups.join(S, G, FIRST, ack_timeout=SHORT)
    for n in range(3):
        await delivering(client.groups)([S], G, f"dead-{n}", 4, ack_timeout=SHORT)
    log = Log()
    async with client.consuming(log, replace(EXPIRING, auto_ack=True, inflight_max=4)) as consumer:
        await eventually(lambda: reached(consumer.tally.acked, 12))
    assert sorted(set(log.payloads)) == sorted(sent)


async def test_no_consumer_has_more_than_its_limit_unanswered(client: StreamClient) -> None:
    await client.publish(*(b"%d" % n for n in range(20)))
    log = Log()
    async with client.consuming(log, replace(MANUAL, inflight_max=3)):
        await log.until(3)
        await asyncio.sleep(0.3)
        assert (await client.pending(), len(log.seen)) == (3, 3)
        await log.seen[0].ack()
        await log.until(4)
    assert await client.pending() == 3


async def test_a_message_stays_with_a_handler_that_takes_longer_than_the_ack_timeout(client: StreamClient) -> None:
    await client.publish(b"1")
    settings = replace(MANUAL, ack_timeout=timedelta(seconds=1.5))
    slow, other = Log(lambda received: _slowly(received)), Log(acks)

    async def _slowly(received: Received) -> None:
        await asyncio.sleep(2.5)
        await received.ack()

    async with client.consuming(slow, settings) as consumer:
        await slow.until(1)
        async with client.consuming(other, settings):
            await eventually(lambda: reached(consumer.tally.acked, 1))
    assert (len(slow.seen), other.seen) == (1, [])


async def test_messages_that_wait_for_their_turn_stay_with_their_consumer(client: StreamClient) -> None:
    await client.publish(b"1", b"2")
    settings = replace(AUTO, ack_timeout=timedelta(seconds=1.5))
    slow, other = Log(lambda received: asyncio.sleep(1.3)), Log()
    async with client.consuming(slow, settings) as consumer:
        await eventually(lambda: same(client.pending(), 2))
        async with client.consuming(other, settings):
            await eventually(lambda: reached(consumer.tally.acked, 2))
    assert (len(slow.seen), other.seen) == (2, [])


async def test_a_handler_that_takes_too_long_loses_its_message(client: StreamClient) -> None:
    await client.publish(b"1")
    ended = asyncio.Event()

    async def hang_once(received: Received) -> None:
        if received.number == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    log = Log(hang_once)
    async with client.consuming(log, replace(AUTO, timeout=timedelta(milliseconds=100))) as consumer:
        await log.until(2)
    assert (ended.is_set(), consumer.tally.failed, await client.pending()) == (True, 1, 0)


# Answers


async def test_a_nak_with_a_delay_comes_back_after_it_and_not_before(client: StreamClient) -> None:
    await client.publish(b"1")
    times: list[float] = []

    async def put_off_once(received: Received) -> None:
        times.append(client.store.clock.monotonic())
        await (received.nak(timedelta(milliseconds=500)) if received.number == 1 else received.ack())

    log = Log(put_off_once)
    async with client.consuming(log):
        await log.until(2)
    assert times[1] - times[0] >= 0.49


async def test_an_ack_after_another_answer_does_nothing(client: StreamClient) -> None:
    await client.publish(b"1", b"2")

    async def answer_twice(received: Received) -> None:
        if received.number > 1:
            return
        await (received.nak(timedelta(hours=1)) if received.payload == b"1" else received.dead_letter("why"))
        await received.ack()

    log = Log(answer_twice)
    async with client.consuming(log) as consumer:
        await eventually(lambda: reached(consumer.tally.nacked + consumer.tally.dead, 2))
    assert (consumer.tally.acked, await client.pending(), len(await client.entries(DEAD))) == (0, 1, 1)


@pytest.mark.parametrize("fault", [LOST_REQUEST, LOST_REPLY], ids=["lost request", "lost reply"])
async def test_an_ack_that_failed_raises_and_may_be_given_again(client: StreamClient, fault) -> None:
    await client.publish(b"1")
    failures: list[Exception] = []
    groups = FaultyGroups(client.groups, Network(Script({0: fault}, only="answer")))

    async def ack_until_it_works(received: Received) -> None:
        while not received.answered:
            try:
                await received.ack()
            except StoreUnavailable as error:
                failures.append(error)

    log = Log(ack_until_it_works)
    async with client.consuming(log, MANUAL, groups=groups):
        await log.until(1)
        await eventually(lambda: same(client.pending(), 0))
    assert (len(failures), len(log.seen)) == (1, 1)


async def test_an_auto_ack_that_failed_is_tried_again_and_nothing_runs_twice(client: StreamClient) -> None:
    await client.publish(b"1", b"2")
    faults = {0: LOST_REQUEST, 1: LOST_REPLY, 2: LOST_REQUEST}
    groups = FaultyGroups(client.groups, Network(Script(faults, only="answer")))
    log = Log()
    async with client.consuming(log, AUTO, groups=groups):
        await log.until(2)
        await eventually(lambda: same(client.pending(), 0))
    assert log.payloads == [b"1", b"2"]


async def test_a_consumer_outlives_a_backend_that_does_not_answer(client: StreamClient) -> None:
    await client.publish(b"1")
    network = Network(Script({}))
    network.down = True
    log = Log()
    async with client.consuming(log, AUTO, groups=FaultyGroups(client.groups, network)) as consumer:
        await eventually(lambda: reached(consumer.tally.unavailable, 2))
        network.down = False
        await log.until(1)
    assert log.payloads == [b"1"]


# Dead letters


async def test_after_its_last_delivery_a_message_is_set_aside_once_and_acked(client: StreamClient) -> None:
    (id,) = await client.publish(b"poison")
    log = Log()
    async with client.consuming(log, replace(EXPIRING, deliveries_max=2)) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    (letter,) = await client.entries(DEAD)
    assert ([received.number for received in log.seen], await client.pending()) == ([1, 2], 0)
    assert (json.loads(letter.body)["message_id"], letter.fields["deliveries"]) == (id, b"2")


async def test_with_auto_ack_the_last_failure_sets_a_message_aside_at_once(client: StreamClient) -> None:
    await client.publish(b"poison", b"good")

    async def fail(received: Received) -> None:
        if received.payload == b"poison":
            raise ValueError("no such user")

    log = Log(fail)
    settings = replace(AUTO, deliveries_max=2)
    async with client.consuming(log, settings) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    (letter,) = await client.entries(DEAD)
    assert (letter.fields["reason"], letter.fields["deliveries"]) == (b"ValueError: no such user", b"2")


async def test_a_dead_letter_keeps_the_original_and_says_where_it_came_from(client: StreamClient) -> None:
    await client.publish(b"1")

    async def set_aside(received: Received) -> None:
        await received.dead_letter("no such user")

    log = Log(set_aside)
    async with client.consuming(log) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    (original,), (letter,) = await client.entries(S), await client.entries(DEAD)
    assert letter.body == original.body
    assert letter.fields == {
        "reason": b"no such user",
        "stream": S.encode(),
        "entry_id": str(original.id).encode(),
        "group": G.encode(),
        "deliveries": b"1",
    }


async def test_a_consumer_of_dead_letters_sees_message_and_reason(client: StreamClient) -> None:
    (id,) = await client.publish(b"1")
    async with client.consuming(raises, replace(AUTO, deliveries_max=1)) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    log = Log(acks)
    async with client.consuming(log, pattern=DEAD):
        (received,) = await log.until(1)
    assert (received.message_id, received.payload, received.subject) == (id, b"1", DEAD)
    assert received.fields["reason"] == b"ValueError: no such user"


async def test_a_dead_letter_is_not_set_aside_twice(client: StreamClient, caplog: pytest.LogCaptureFixture) -> None:
    await client.publish(b"secret")
    async with client.consuming(raises, replace(AUTO, deliveries_max=1)) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    with caplog.at_level(logging.ERROR):
        async with client.consuming(raises, replace(AUTO, deliveries_max=1), pattern=DEAD) as consumer:
            await eventually(lambda: reached(consumer.tally.dropped, 1))
    assert (len(await client.entries(DEAD)), await client.entries("gbe._deadletter._deadletter")) == (1, ())
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "a dead letter could not be handled either and is dropped"
    ]


@pytest.mark.parametrize("body", [b"", b"not json", b"\xff\0", b"{}", b'{"message_id":"short"}'])
async def test_what_is_no_envelope_is_set_aside_as_it_is_and_blocks_nothing(client: StreamClient, body: bytes) -> None:
    await client.raw(body)
    await client.publish(b"good")
    log = Log()
    async with client.consuming(log, AUTO) as consumer:
        await log.until(1)
        await eventually(lambda: reached(consumer.tally.dead, 1))
    (letter,) = await client.entries(DEAD)
    assert (log.payloads, letter.body, letter.fields["reason"]) == ([b"good"], body, b"the entry is not an envelope")


@pytest.mark.parametrize("many", [False, True])
async def test_a_dead_letter_that_would_be_too_large_names_the_entry_only(client: StreamClient, many: bool) -> None:
    fields = {str(n): b"" for n in range(FIELDS_MAX)} if many else {"x": b"x" * (FIELDS_BYTES_MAX - 600)}
    (id,) = await client.streams.append([Draft(S, b"", fields=fields)])
    async with client.consuming(Log(), AUTO) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    (letter,) = await client.entries(DEAD)
    assert letter.fields is not None
    named = b"too large to repeat here" in letter.fields["reason"]
    assert named is (
        many or client.store.name.startswith("nats")
    )  # NATS keeps 64 KiB of headers, whatever they are for
    assert (letter.body, letter.fields["entry_id"], "raw.x" in letter.fields) == (b"", str(id).encode(), not named)


async def test_fields_of_a_foreign_entry_are_kept_in_its_dead_letter(client: StreamClient) -> None:
    await client.streams.append([Draft(S, b"", fields={"reason": b"mine", "x": b"\xff"})])
    async with client.consuming(Log(), AUTO) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    (letter,) = await client.entries(DEAD)
    assert (letter.fields["raw.reason"], letter.fields["raw.x"]) == (b"mine", b"\xff")


async def test_a_consumer_of_dead_letters_sees_those_that_never_were_messages(client: StreamClient) -> None:
    await client.raw(b"not json")
    async with client.consuming(Log(), AUTO) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    log = Log(acks)
    async with client.consuming(log, pattern=DEAD):
        (received,) = await log.until(1)
    assert (received.message_id, received.payload) == ("", b"not json")


class NoRoom(FaultyGroups):
    """Groups of a server that has no room for dead letters."""

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        if any(isinstance(each, DeadLetter) for each in answers):
            raise StoreFull("the server is full", do="make room")
        return await super().answer(answers)


async def test_dead_letters_that_find_no_room_stop_neither_acks_nor_handlers(client: StreamClient) -> None:
    await client.raw(b"not json")
    await client.publish(*(b"%d" % n for n in range(10)))
    log = Log()
    async with client.consuming(log, AUTO, groups=NoRoom(client.groups, Network(Script({})))) as consumer:
        await eventually(lambda: reached(consumer.tally.acked, 10))
    assert (consumer.tally.dead, len(log.seen)) == (0, 10)
