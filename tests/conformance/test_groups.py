"""What every backend's Groups promises: each entry to one consumer of a group, until it is acked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from conformance.stores import Store
from nats_noticed import delivering
from wrasse.clock import ManualClock
from wrasse.errors import Refused, UsageError
from wrasse.ports.groups import GROUP_BYTES_MAX, Ack, DeadLetter, Delivery, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import BODY_BYTES_MAX, START, Draft, EntryId

S = "gbe.tasks.email.queue"
G = "email-workers"
DEAD = "gbe._deadletter.tasks"
FIRST = StartAt(first=True)
TIMEOUT = timedelta(milliseconds=600)
LONGER = timedelta(milliseconds=700)
HALF = timedelta(milliseconds=400)
ZERO = timedelta(0)
DONE, CONFLICT = Outcome.DONE, Outcome.CONFLICT
LONG = timedelta(seconds=30)


class StreamClient:
    """Short ways to work one group in a test."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Where time is real, everything takes longer, so that a busy machine is no reason to fail.
        self.pace = 1 if isinstance(store.clock, ManualClock) else 2

    def slow_down(self) -> None:
        """For a test that must do several things within one ack timeout."""
        if self.pace > 1:
            self.pace = 6

    async def append(self, *bodies: bytes, subject: str = S) -> list[EntryId]:
        return list(await self.store.backend.streams.append([Draft(subject, body) for body in bodies]))

    async def join(
        self, group: str = G, start: StartAt = FIRST, subject: str = S, *,
        cursor: bool = False, expires: bool = False,
    ) -> bool:  # fmt: skip
        timeout = TIMEOUT * self.pace if expires else LONG  # where a group has one timeout for all deliveries
        return await self.store.backend.groups.join(subject, group, start, ack_timeout=timeout, cursor=cursor)

    async def deliver(
        self,
        limit: int = 100,
        *,
        consumer: str = "c1",
        group: str = G,
        subjects: Sequence[str] = (S,),
        ack_timeout: timedelta = TIMEOUT,
        wait: timedelta = ZERO,
        back: int = 0,
    ) -> list[Delivery]:
        """`back`: so many at least are delivered again, where the server's own timers say when."""
        ask = delivering(self.store.backend.groups, back=back)
        return list(await ask(subjects, group, consumer, limit, ack_timeout=ack_timeout, wait=wait))

    async def bodies(self, limit: int = 100, *, consumer: str = "c1", group: str = G, back: int = 0) -> list[bytes]:
        return [d.entry.body for d in await self.deliver(limit, consumer=consumer, group=group, back=back)]

    async def ack(self, *ids: EntryId, group: str = G) -> list[Outcome]:
        return list(await self.store.backend.groups.answer([Ack(S, group, id) for id in ids]))

    async def nak(self, *ids: EntryId, delay: timedelta = ZERO) -> list[Outcome]:
        return list(await self.store.backend.groups.answer([Nak(S, G, id, delay * self.pace) for id in ids]))

    async def bury(self, id: EntryId, draft: Draft) -> Outcome:
        return (await self.store.backend.groups.answer([DeadLetter(S, G, id, draft)]))[0]

    async def extend(self, *deliveries: Delivery, consumer: str = "c1") -> list[bool]:
        return list(await self.store.backend.groups.extend(consumer, deliveries, ack_timeout=TIMEOUT))

    async def read(self, subject: str) -> list[bytes]:
        return [e.body for e in (await self.store.backend.streams.read(subject, START, 100)).items]

    async def state(self, group: str = G):
        info = await self.store.backend.streams.info(S)
        return next(state for state in info.groups if state.name == group)

    async def pass_time(self, duration: timedelta) -> None:
        await self.store.pass_time(duration * self.pace)


@pytest.fixture
def client(store: Store) -> StreamClient:
    return StreamClient(store)


@pytest.fixture
def live_desk(live_store: Store) -> StreamClient:
    return StreamClient(live_store)


# Joining: where a group begins


async def test_a_group_that_begins_at_the_first_entry_gets_all(client: StreamClient) -> None:
    await client.append(b"1")
    assert await client.join()
    await client.append(b"2")
    assert await client.bodies() == [b"1", b"2"]


async def test_a_group_that_begins_after_the_last_entry_gets_what_comes_later(client: StreamClient) -> None:
    await client.append(b"1")
    await client.join(start=StartAt())
    await client.append(b"2")
    assert await client.bodies() == [b"2"]


async def test_a_group_that_begins_at_a_moment_gets_what_was_appended_then_or_later(client: StreamClient) -> None:
    await client.append(b"1")
    await client.pass_time(HALF)
    at = client.store.clock.now() - HALF / 4  # the server's clock is known to a few milliseconds only
    await client.append(b"2")
    await client.pass_time(HALF)
    await client.append(b"3")
    await client.join(start=StartAt(at=at))
    assert await client.bodies() == [b"2", b"3"]


@pytest.mark.needs("begins_later")
async def test_a_group_may_begin_at_a_moment_to_come(client: StreamClient) -> None:
    await client.join(start=StartAt(at=client.store.clock.now() + HALF))
    await client.append(b"too early")
    await client.pass_time(HALF)
    await client.append(b"in time")
    assert await client.bodies() == [b"in time"]


async def test_a_group_that_begins_after_an_id_gets_what_follows_it(client: StreamClient) -> None:
    ids = await client.append(b"1", b"2", b"3")
    await client.join(start=StartAt(after=ids[1]))
    assert await client.bodies() == [b"3"]


async def test_joining_again_changes_nothing(client: StreamClient) -> None:
    await client.append(b"1")
    await client.join(start=StartAt())
    assert not await client.join(start=FIRST)
    assert await client.bodies() == []


async def test_joining_makes_the_stream(client: StreamClient) -> None:
    await client.join()
    state = await client.store.backend.streams.info(S)
    assert (state.length, [group.name for group in state.groups]) == (0, [G])


async def test_a_delivery_needs_a_group_that_was_joined(client: StreamClient) -> None:
    await client.append(b"1")
    with pytest.raises(UsageError, match=G):
        await client.deliver()


@pytest.mark.parametrize("group", ["", "x" * 256, "a\nb"])
async def test_what_is_no_name_for_a_group_is_refused(client: StreamClient, group: str) -> None:
    with pytest.raises(UsageError, match="group"):
        await client.join(group)


# Sharing


@pytest.mark.guarantee("at least once")
async def test_two_groups_each_get_every_entry(client: StreamClient) -> None:
    await client.append(b"1", b"2")
    await client.join("a")
    await client.join("b")
    assert await client.bodies(group="a") == await client.bodies(group="b") == [b"1", b"2"]


async def test_two_consumers_of_a_group_share_without_overlap(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2", b"3", b"4", b"5")
    shares = [await client.bodies(2, consumer=name) for name in ("c1", "c2", "c1", "c2")]
    assert shares == [[b"1", b"2"], [b"3", b"4"], [b"5"], []]


async def test_consumers_that_ask_at_once_share_without_overlap(client: StreamClient) -> None:
    await client.join()
    await client.append(*(b"%d" % n for n in range(200)))
    shares = await asyncio.gather(*(client.bodies(9, consumer=f"c{n % 8}") for n in range(40)))
    assert sorted(body for share in shares for body in share) == sorted(b"%d" % n for n in range(200))


async def test_two_connections_share_without_overlap(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2", b"3")
    other = await client.store.another()
    first = await client.bodies(2)
    rest = await other.groups.deliver([S], G, "c2", 10, ack_timeout=TIMEOUT, wait=LONG)
    assert (first, [d.entry.body for d in rest]) == ([b"1", b"2"], [b"3"])
    if other is not client.store.backend:
        await other.close()


@pytest.mark.needs("ack_timeout_per_call")
async def test_a_delivery_says_whose_it_is_and_until_when(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    (delivery,) = await client.deliver()
    assert (delivery.entry.id, delivery.entry.subject, delivery.group, delivery.consumer) == (id, S, G, "c1")
    assert (delivery.number, delivery.until) == (1, client.store.clock.now() + TIMEOUT)


async def test_fields_beside_a_body_are_delivered(client: StreamClient) -> None:
    await client.join()
    await client.store.backend.streams.append([Draft(S, b"x", fields={"reason": b"why"})])
    (delivery,) = await client.deliver()
    assert (delivery.entry.body, delivery.entry.fields) == (b"x", {"reason": b"why"})


async def test_several_streams_are_delivered_oldest_first(client: StreamClient) -> None:
    for n, subject in enumerate(("b", "a", "b", "a")):
        await client.append(b"%d" % n, subject=subject)
        await client.pass_time(timedelta(milliseconds=2))
    for subject in ("a", "b"):
        await client.join(subject=subject)  # now, so that both groups know of all of it
    delivered = await client.deliver(subjects=["a", "b", "a"])
    assert [(d.entry.subject, d.entry.body) for d in delivered] == [("b", b"0"), ("a", b"1"), ("b", b"2"), ("a", b"3")]


async def test_a_busy_stream_does_not_starve_another(client: StreamClient) -> None:
    for subject in ("busy", "quiet"):
        await client.join(subject=subject)
    await client.append(*(b"%d" % n for n in range(50)), subject="busy")
    await client.append(b"me too", subject="quiet")
    delivered = [d for _ in range(6) for d in await client.deliver(10, subjects=["busy", "quiet"])]
    assert len(delivered) == 51


async def test_a_consumer_gets_no_more_than_it_asked_for(client: StreamClient) -> None:
    for subject in ("a", "b", "c"):
        await client.join(subject=subject)
        await client.append(*(b"%d" % n for n in range(10)), subject=subject)
    assert [len(await client.deliver(limit, subjects=["a", "b", "c"])) for limit in (1, 2, 7, 100)] == [1, 2, 7, 20]


# Acking


@pytest.mark.guarantee("at least once")
async def test_an_acked_entry_is_never_delivered_again(client: StreamClient) -> None:
    await client.join(expires=True)
    ids = await client.append(b"1", b"2")
    await client.deliver()
    assert await client.ack(ids[0]) == [DONE]
    await client.store.reopen()
    await client.pass_time(LONGER)
    assert await client.bodies(back=1) == [b"2"]


async def test_an_ack_of_what_is_not_pending_is_a_conflict(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2")
    await client.deliver(1)
    await client.ack(ids[0])
    assert await client.ack(ids[0], ids[1], EntryId(5, 5)) == [CONFLICT, CONFLICT, CONFLICT]
    assert await client.bodies() == [b"2"]


async def test_one_ack_twice_in_a_batch_counts_once(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2")
    await client.deliver()
    assert await client.ack(ids[1], ids[0], ids[1]) == [DONE, DONE, CONFLICT]


async def test_an_ack_concerns_its_own_group_only(client: StreamClient) -> None:
    (id,) = await client.append(b"1")
    for group in ("a", "b"):
        await client.join(group)
        await client.deliver(group=group)
    assert await client.ack(id, group="a") == [DONE]
    assert [(await client.state(name)).pending for name in ("a", "b")] == [0, 1]


async def test_an_ack_to_an_unknown_group_or_stream_is_a_conflict(client: StreamClient) -> None:
    await client.append(b"1")
    answers = [Ack(S, "nobody", EntryId(1, 1)), Ack("no.where", G, EntryId(1, 1))]
    assert list(await client.store.backend.groups.answer(answers)) == [CONFLICT, CONFLICT]


async def test_acks_in_any_order_answer_in_the_order_asked(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(*(b"%d" % n for n in range(10)))
    await client.deliver(6)
    order = [ids[n] for n in (3, 9, 0, 1, 5, 7, 2)]
    assert await client.ack(*order) == [DONE, CONFLICT, DONE, DONE, DONE, CONFLICT, DONE]
    assert (await client.state()).pending == 1


async def test_a_batch_of_acks_with_a_hole_in_it_says_which_one_conflicts(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2", b"3")
    await client.deliver()
    await client.ack(ids[1])
    assert await client.ack(*ids) == [DONE, CONFLICT, DONE]


@pytest.mark.needs("ack_outcome")
async def test_an_answer_to_what_another_connection_settled_is_a_conflict(client: StreamClient) -> None:
    await client.join(expires=True)
    (id,) = await client.append(b"1")
    await client.deliver()
    await client.pass_time(LONGER)
    other = await client.store.another()
    (again,) = await other.groups.deliver([S], G, "c2", 1, ack_timeout=LONG, wait=LONG)
    assert (again.number, await other.groups.answer([Ack(S, G, id)])) == (2, (DONE,))
    assert (await client.ack(id), await client.bury(id, LETTER), await client.read(DEAD)) == ([CONFLICT], CONFLICT, [])
    if other is not client.store.backend:
        await other.close()


async def test_an_ack_of_an_id_that_never_was_acks_nothing(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    await client.deliver()
    assert await client.ack(EntryId(id.ms + 1, id.seq)) == [CONFLICT]
    assert (await client.state()).pending == 1


async def test_a_late_ack_counts_while_the_entry_is_pending(client: StreamClient) -> None:
    await client.join(expires=True)
    (id,) = await client.append(b"1")
    await client.deliver()
    await client.pass_time(LONGER)
    assert await client.ack(id) == [DONE]
    assert await client.bodies() == []


@pytest.mark.guarantee("G5")
async def test_the_floor_is_below_the_lowest_pending_entry(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2", b"3")
    await client.deliver()
    floors = []
    for id in (ids[1], ids[0], ids[2]):
        await client.ack(id)
        floors.append((await client.state()).floor)
    assert floors[0] < ids[0] <= ids[1] <= floors[1] < ids[2] == floors[2]


# Coming back


async def test_what_was_delivered_is_not_delivered_again_before_its_time(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2")
    await client.deliver()
    assert await client.bodies() + await client.bodies(consumer="c2") == []
    await client.store.reopen()
    assert await client.bodies() == []


@pytest.mark.guarantee("at least once")
async def test_what_is_not_acked_in_time_is_delivered_again_with_its_count(client: StreamClient) -> None:
    await client.join(expires=True)
    await client.append(b"1", b"2")
    await client.deliver()
    await client.pass_time(LONGER)
    assert [(d.entry.body, d.number) for d in await client.deliver(consumer="c2", back=2)] == [(b"1", 2), (b"2", 2)]


async def test_what_is_due_comes_before_what_is_new(client: StreamClient) -> None:
    await client.join(expires=True)
    await client.append(b"1", b"2")
    await client.deliver()
    await client.pass_time(LONGER)
    await client.append(b"3")
    assert [(d.entry.body, d.number) for d in await client.deliver(back=3)] == [(b"1", 2), (b"2", 2), (b"3", 1)]


@pytest.mark.guarantee("at least once")
async def test_entries_of_dead_consumers_come_back_however_many_they_are(client: StreamClient) -> None:
    await client.join(expires=True)
    await client.append(*(b"%d" % n for n in range(100)))
    for n in range(10):
        await client.deliver(10, consumer=f"dead-{n}")
    await client.pass_time(LONGER)
    again: set[bytes] = set()
    while len(again) < 100:
        found = await client.deliver(10, consumer="alive", back=1)
        assert found
        await client.ack(*(d.entry.id for d in found))
        again |= {d.entry.body for d in found}
    assert again == {b"%d" % n for n in range(100)}


@pytest.mark.guarantee("at least once")
async def test_pending_entries_survive_a_restart(client: StreamClient) -> None:
    await client.join(expires=True)
    await client.append(b"1")
    await client.deliver()
    await client.store.reopen()
    await client.pass_time(LONGER)
    assert [(d.entry.body, d.number) for d in await client.deliver(back=1)] == [(b"1", 2)]


@pytest.mark.guarantee("at least once")
async def test_a_nak_brings_an_entry_back_at_once(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    await client.deliver()
    assert await client.nak(id) == [DONE]
    assert [(d.entry.body, d.number) for d in await client.deliver(consumer="c2", back=1)] == [(b"1", 2)]


async def test_a_nak_with_a_delay_brings_it_back_after_the_delay_and_not_before(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    await client.deliver()
    await client.nak(id, delay=TIMEOUT * 2)
    await client.pass_time(TIMEOUT / 4)
    assert await client.bodies() == []
    await client.pass_time(TIMEOUT * 2)
    assert await client.bodies(back=1) == [b"1"]


async def test_a_nak_of_what_is_not_pending_is_a_conflict(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    assert await client.nak(id) == [CONFLICT]
    await client.deliver()
    await client.ack(id)
    assert await client.nak(id) == [CONFLICT]
    assert await client.bodies() == []


async def test_what_was_said_nak_to_may_still_be_acked(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    await client.deliver()
    await client.nak(id, delay=HALF)
    assert await client.ack(id) == [DONE]
    await client.pass_time(LONGER)
    assert await client.bodies() == []


@pytest.mark.guarantee("G5")
async def test_a_delayed_entry_is_not_acked_and_holds_the_floor(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2")
    await client.deliver()
    await client.nak(ids[0], delay=TIMEOUT)
    await client.ack(ids[1])
    assert (await client.state()).floor < ids[0]


# Extending


async def test_an_extended_delivery_stays_with_its_consumer(client: StreamClient) -> None:
    client.slow_down()
    await client.join(expires=True)
    await client.append(b"1")
    (delivery,) = await client.deliver()
    for _ in range(4):  # each long before the deadline, so that a busy machine has time to be late
        await client.pass_time(TIMEOUT / 3)
        assert await client.extend(delivery) == [True]
    assert await client.bodies(consumer="c2") == []
    await client.pass_time(LONGER)
    assert await client.bodies(consumer="c2", back=1) == [b"1"]


@pytest.mark.needs("knows_holders")
async def test_a_late_extension_counts_while_no_other_consumer_has_the_entry(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1")
    (delivery,) = await client.deliver()
    await client.pass_time(LONGER)
    assert await client.extend(delivery) == [True]
    assert await client.bodies(consumer="c2") == []


@pytest.mark.needs("knows_holders")
async def test_what_is_acked_or_delivered_to_another_is_not_extended(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2", b"3", b"4")
    deliveries = await client.deliver()
    await client.ack(deliveries[0].entry.id)
    await client.nak(deliveries[1].entry.id)
    await client.pass_time(HALF)
    await client.extend(deliveries[3])
    await client.pass_time(HALF)
    await client.deliver(consumer="c2")
    assert await client.extend(*deliveries) == [False, False, False, True]


async def test_what_was_said_nak_to_is_not_extended(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1")
    (delivery,) = await client.deliver()
    await client.nak(delivery.entry.id, delay=HALF)
    assert await client.extend(delivery) == [False]
    await client.pass_time(LONGER)
    assert await client.bodies(consumer="c2", back=1) == [b"1"]


async def test_an_older_delivery_to_the_same_consumer_is_not_extended(client: StreamClient) -> None:
    await client.join(expires=True)
    await client.append(b"1")
    (old,) = await client.deliver()
    await client.pass_time(LONGER)
    (new,) = await client.deliver(back=1)
    assert await client.extend(old, new) == [False, True]


@pytest.mark.needs("knows_holders")
async def test_a_busy_consumer_that_only_extends_is_alive(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1")
    (delivery,) = await client.deliver()
    await client.pass_time(HALF)
    await client.extend(delivery)
    await client.pass_time(HALF)
    assert await client.store.backend.groups.retire(S, G, "c1") is CONFLICT


async def test_extending_nothing_answers_nothing(client: StreamClient) -> None:
    await client.join()
    assert await client.extend() == []


@pytest.mark.parametrize("letter", ["g", "é", "."])
async def test_a_group_of_the_longest_name_is_joined_and_worked(client: StreamClient, letter: str) -> None:
    name = letter * (GROUP_BYTES_MAX // len(letter.encode()))
    await client.join(name)
    (id,) = await client.append(b"1")
    assert await client.bodies(group=name) == [b"1"]
    assert list(await client.store.backend.groups.answer([Ack(S, name, id)])) == [DONE]
    state = await client.store.backend.streams.info(S)
    assert state is not None
    assert [(each.name, each.floor) for each in state.groups] == [(name, id)]
    marked = "m" + name[1:]
    await client.join(marked, cursor=True)
    assert await client.store.backend.groups.mark(S, marked, id) is DONE
    state = await client.store.backend.streams.info(S)
    assert state is not None
    assert {each.name: each.floor for each in state.groups} == {name: id, marked: id}


async def test_the_largest_entry_is_delivered_and_becomes_a_dead_letter(client: StreamClient) -> None:
    await client.join()
    body = b"x" * BODY_BYTES_MAX
    (id,) = await client.append(body)
    (given,) = await client.deliver()
    assert given.entry.body == body
    assert await client.bury(id, Draft(DEAD, body, fields={"reason": b"too much"})) is DONE
    (entry,) = (await client.store.backend.streams.read(DEAD, START, 10)).items
    assert (entry.body == body, entry.fields) == (True, {"reason": b"too much"})


# Dead letters

LETTER = Draft(DEAD, b"the envelope", fields={"reason": b"no such user"})


@pytest.mark.guarantee("at least once")
async def test_a_dead_letter_is_appended_and_the_original_acked(client: StreamClient) -> None:
    await client.join(expires=True)
    (id,) = await client.append(b"1")
    await client.deliver()
    assert await client.bury(id, LETTER) is DONE
    (entry,) = (await client.store.backend.streams.read(DEAD, START, 10)).items
    assert (entry.body, entry.fields) == (LETTER.body, LETTER.fields)
    await client.pass_time(LONGER)
    assert await client.bodies() == []


async def test_a_dead_letter_is_written_once(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    await client.deliver()
    answers = await client.store.backend.groups.answer([DeadLetter(S, G, id, LETTER)] * 2)
    again = await client.bury(id, LETTER)
    assert ([*answers, again], await client.read(DEAD)) == ([DONE, CONFLICT, CONFLICT], [LETTER.body])


async def test_what_was_acked_makes_no_dead_letter(client: StreamClient) -> None:
    await client.join()
    (id,) = await client.append(b"1")
    await client.deliver()
    await client.ack(id)
    assert (await client.bury(id, LETTER), await client.read(DEAD)) == (CONFLICT, [])


@pytest.mark.guarantee("at least once")
async def test_a_dead_letter_that_is_refused_leaves_every_answer_of_its_call_undone(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2")
    await client.deliver()
    with pytest.raises(UsageError, match="no subject"):
        await client.store.backend.groups.answer(
            [Ack(S, G, ids[0]), DeadLetter(S, G, ids[1], Draft("no subject", b""))]
        )
    assert (await client.state()).pending == 2


async def test_answers_of_all_kinds_go_together(client: StreamClient) -> None:
    await client.join()
    a, b, c, d = await client.append(b"1", b"2", b"3", b"4")
    await client.deliver(3)
    answers = [Nak(S, G, a), DeadLetter(S, G, b, LETTER), Ack(S, G, c), Ack(S, G, d)]
    assert list(await client.store.backend.groups.answer(answers)) == [DONE, DONE, DONE, CONFLICT]
    assert (await client.bodies(), await client.read(DEAD)) == ([b"1", b"4"], [LETTER.body])


# Cursors


@pytest.mark.needs("marks_any_group")
async def test_a_mark_acks_everything_up_to_it(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2", b"3")
    assert await client.store.backend.groups.mark(S, G, ids[1]) is DONE
    state = await client.state()
    assert (state.floor, state.delivered, state.pending, state.lag) == (ids[1], ids[1], 0, 1)
    assert await client.bodies() == [b"3"]


async def test_a_group_that_is_moved_by_marks_stands_where_it_was_marked(client: StreamClient) -> None:
    await client.join(cursor=True)
    ids = await client.append(b"1", b"2", b"3")
    assert await client.store.backend.groups.mark(S, G, ids[1]) is DONE
    state = await client.state()
    assert (state.floor, state.delivered, state.pending, state.lag) == (ids[1], ids[1], 0, 1)
    assert not await client.join(cursor=True)


async def test_a_mark_never_goes_back(client: StreamClient) -> None:
    await client.join(cursor=True)
    ids = await client.append(b"1", b"2", b"3")
    groups = client.store.backend.groups
    marks = [await groups.mark(S, G, id) for id in (ids[1], ids[1], ids[0], ids[2])]
    assert marks == [DONE, CONFLICT, CONFLICT, DONE]


@pytest.mark.needs("marks_any_group")
async def test_a_mark_acks_what_was_delivered_below_it(client: StreamClient) -> None:
    await client.join()
    ids = await client.append(b"1", b"2", b"3")
    await client.deliver()
    assert await client.store.backend.groups.mark(S, G, ids[1]) is DONE
    state = await client.state()
    assert (state.pending, state.delivered) == (1, ids[2])


async def test_a_mark_of_an_unknown_group_is_a_conflict(client: StreamClient) -> None:
    ids = await client.append(b"1")
    assert await client.store.backend.groups.mark(S, "nobody", ids[0]) is CONFLICT
    assert await client.store.backend.groups.mark("no.where", G, ids[0]) is CONFLICT


async def test_a_mark_beyond_the_last_entry_is_refused(client: StreamClient) -> None:
    await client.join(cursor=True)
    ids = await client.append(b"1")
    with pytest.raises(Refused, match="beyond the last entry"):
        await client.store.backend.groups.mark(S, G, EntryId(ids[0].ms + 1, 0))
    assert (await client.state()).floor < ids[0]


# Consumers


@pytest.mark.needs("knows_holders")
async def test_a_group_knows_its_consumers(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2", b"3")
    await client.deliver(2, consumer="b")
    at = client.store.clock.now()
    await client.pass_time(HALF)
    await client.deliver(0, consumer="a")
    a, b = await client.store.backend.groups.consumers(S, G)
    assert (a.consumer, a.pending, a.subject, a.group) == ("a", 0, S, G)
    assert (b.consumer, b.pending, b.seen_at, b.until) == ("b", 2, at, at + TIMEOUT)


async def test_an_unknown_group_has_no_consumers(client: StreamClient) -> None:
    assert list(await client.store.backend.groups.consumers("no.where", G)) == []


@pytest.mark.needs("knows_holders")
async def test_a_dead_consumer_is_retired_and_its_entries_are_due_at_once(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2")
    await client.deliver(1, consumer="silent", ack_timeout=TIMEOUT)
    await client.pass_time(LONGER)
    await client.deliver(consumer="c1", ack_timeout=TIMEOUT * 10)
    await client.deliver(0, consumer="silent", ack_timeout=ZERO)
    assert await client.store.backend.groups.retire(S, G, "silent") is DONE
    assert [c.consumer for c in await client.store.backend.groups.consumers(S, G)] == ["c1"]


@pytest.mark.needs("knows_holders")
async def test_the_entries_of_a_retired_consumer_keep_their_count(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1", b"2", b"3")
    held = await client.deliver(2, consumer="silent", ack_timeout=TIMEOUT * 10)
    await client.nak(held[1].entry.id, delay=TIMEOUT * 10)
    await client.deliver(0, consumer="silent", ack_timeout=ZERO)
    await client.store.backend.groups.retire(S, G, "silent")
    assert [(d.entry.body, d.number) for d in await client.deliver(consumer="c1")] == [(b"1", 2), (b"3", 1)]


@pytest.mark.needs("knows_holders")
async def test_a_consumer_that_is_alive_is_not_retired(client: StreamClient) -> None:
    await client.join()
    await client.append(b"1")
    await client.deliver(consumer="c1")
    await client.pass_time(HALF)
    assert await client.store.backend.groups.retire(S, G, "c1") is CONFLICT
    assert await client.bodies(consumer="c2") == []


async def test_an_unknown_consumer_is_not_retired(client: StreamClient) -> None:
    await client.join()
    groups = client.store.backend.groups
    assert [await groups.retire(S, G, "x"), await groups.retire(S, "no", "x"), await groups.retire("no", G, "x")] == [
        CONFLICT, CONFLICT, CONFLICT,
    ]  # fmt: skip


@pytest.mark.needs("knows_holders")
async def test_a_consumer_that_asks_again_and_again_stays_alive(client: StreamClient) -> None:
    await client.join()
    for _ in range(5):
        await client.deliver(consumer="c1")
        await client.pass_time(HALF)
        assert await client.store.backend.groups.retire(S, G, "c1") is CONFLICT


@pytest.mark.parametrize(("limit", "ack_timeout"), [(-1, TIMEOUT), (1, ZERO), (1, -TIMEOUT)])
async def test_a_delivery_that_makes_no_sense_is_refused(
    client: StreamClient, limit: int, ack_timeout: timedelta
) -> None:
    await client.join()
    with pytest.raises(UsageError, match="deliveries"):
        await client.deliver(limit, ack_timeout=ack_timeout)


# Waiting. These have a clock that moves by itself.


async def test_a_wait_ends_at_once_when_something_is_appended(live_desk: StreamClient) -> None:
    await live_desk.join()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(live_desk.deliver(wait=LONG, ack_timeout=LONG))
        await asyncio.sleep(0.05)
        await live_desk.append(b"1")
    assert [d.entry.body for d in waiting.result()] == [b"1"]


async def test_a_wait_ends_when_another_connection_appends(live_desk: StreamClient) -> None:
    await live_desk.join()
    other = await live_desk.store.another()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(live_desk.deliver(wait=LONG, ack_timeout=LONG))
        await asyncio.sleep(0.05)
        await other.streams.append([Draft(S, b"1")])
    if other is not live_desk.store.backend:
        await other.close()
    assert [d.entry.body for d in waiting.result()] == [b"1"]


async def test_a_wait_on_several_streams_ends_when_any_has_something(live_desk: StreamClient) -> None:
    for subject in ("a", "b"):
        await live_desk.join(subject=subject)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(live_desk.deliver(subjects=["a", "b"], wait=LONG, ack_timeout=LONG))
        await asyncio.sleep(0.05)
        await live_desk.append(b"1", subject="b")
    assert [d.entry.subject for d in waiting.result()] == ["b"]


async def test_a_wait_ends_when_a_delay_is_over(live_desk: StreamClient) -> None:
    await live_desk.join()
    (id,) = await live_desk.append(b"1")
    (_,) = await live_desk.deliver(wait=LONG, ack_timeout=LONG)
    await live_desk.nak(id, delay=timedelta(milliseconds=100))
    async with asyncio.timeout(20):
        (again,) = await live_desk.deliver(wait=LONG, ack_timeout=LONG)
    assert again.number == 2


async def test_a_wait_ends_with_a_nak(live_desk: StreamClient) -> None:
    await live_desk.join()
    (id,) = await live_desk.append(b"1")
    (_,) = await live_desk.deliver(wait=LONG, ack_timeout=LONG)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(live_desk.deliver(consumer="c2", wait=LONG, ack_timeout=LONG))
        await asyncio.sleep(0.05)
        await live_desk.nak(id)
    assert [d.number for d in waiting.result()] == [2]


async def test_a_wait_ends_when_a_deadline_passes(live_desk: StreamClient) -> None:
    await live_desk.join(expires=True)
    await live_desk.append(b"1")
    async with asyncio.timeout(20):
        (_,) = await live_desk.deliver(wait=LONG, ack_timeout=timedelta(milliseconds=100))
        (again,) = await live_desk.deliver(consumer="c2", wait=LONG, ack_timeout=LONG)
    assert (again.number, again.consumer) == (2, "c2")


async def test_a_wait_for_nothing_ends_with_nothing(live_desk: StreamClient) -> None:
    await live_desk.join()
    assert await live_desk.deliver(wait=timedelta(milliseconds=50)) == []


async def test_a_wait_delays_neither_an_append_nor_an_ack(live_desk: StreamClient) -> None:
    await live_desk.join()
    (id,) = await live_desk.append(b"1")
    (_,) = await live_desk.deliver(wait=LONG, ack_timeout=LONG)
    await live_desk.join("elsewhere", StartAt())
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(live_desk.deliver(group="elsewhere", wait=LONG, ack_timeout=LONG))
        await asyncio.sleep(0.05)
        await live_desk.append(b"1", subject="other")
        assert await live_desk.ack(id) == [DONE]
        assert not waiting.done()
        waiting.cancel()


async def test_a_wait_that_was_cancelled_delivered_nothing(live_desk: StreamClient) -> None:
    await live_desk.join()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(live_desk.deliver(consumer="gone", wait=LONG, ack_timeout=LONG))
        await asyncio.sleep(0.05)
        waiting.cancel()
    await live_desk.append(b"1")
    async with asyncio.timeout(20):
        (delivery,) = await live_desk.deliver(consumer="c2", wait=LONG, ack_timeout=LONG)
    assert delivery.entry.body == b"1"


@pytest.mark.parametrize("turns", range(6))
async def test_a_call_that_was_cancelled_delivered_nothing(live_desk: StreamClient, turns: int) -> None:
    had = await _cancelled(live_desk, turns)
    async with asyncio.timeout(20):
        again = [] if had else await live_desk.deliver(consumer="c2", ack_timeout=LONG, wait=LONG)
    assert had or [d.entry.body for d in again] == [b"1"]


@pytest.mark.needs("uncounted_return")
@pytest.mark.parametrize("turns", range(6))
async def test_a_delivery_that_was_cancelled_does_not_count(live_desk: StreamClient, turns: int) -> None:
    had = await _cancelled(live_desk, turns)
    again = await live_desk.deliver(consumer="c2", ack_timeout=LONG)
    assert had or [(d.entry.body, d.number) for d in again] == [(b"1", 1)]


async def _cancelled(live_desk: StreamClient, turns: int) -> bool:
    """Cancels a delivery after so many turns of the event loop; whether it had come."""
    await live_desk.join()
    await live_desk.append(b"1")
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(live_desk.deliver(1, consumer="gone", ack_timeout=LONG))
        for _ in range(turns):
            await asyncio.sleep(0)
        had = asking.done()
        asking.cancel()
    return had


@pytest.mark.needs("ack_timeout_per_call")
async def test_a_clock_that_steps_back_delivers_nothing_twice(client: StreamClient) -> None:
    assert isinstance(client.store.clock, ManualClock)
    await client.join()
    await client.append(b"1")
    await client.deliver()
    client.store.clock.step(-timedelta(hours=1))
    await client.append(b"2")
    assert await client.bodies() == [b"2"]
