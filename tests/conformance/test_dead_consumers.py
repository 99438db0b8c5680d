"""Dead consumers: the dead are retired and their entries go on to the others; the idle are left alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.stores import Store
from conformance.upkeep import DAY, Upkeep
from nats_noticed import delivering
from wrasse.ports.groups import Ack, StartAt

S, G = "gbe.tasks.mail.queue", "mail-workers"
MINUTE = timedelta(minutes=1)
FIRST = StartAt(first=True)
TIMEOUT = timedelta(seconds=30)


@pytest.fixture
async def upkeep(store: Store) -> Upkeep:
    upkeep = Upkeep(store)
    await upkeep.groups.join(S, G, FIRST)
    return upkeep


async def ask(upkeep: Upkeep, consumer: str, limit: int = 10) -> list[tuple[bytes, int]]:
    given = await delivering(upkeep.groups)([S], G, consumer, limit, ack_timeout=TIMEOUT)
    return [(each.entry.body, each.number) for each in given]


async def names(upkeep: Upkeep) -> list[str]:
    return [each.consumer for each in await upkeep.groups.consumers(S, G)]


@pytest.mark.needs("knows_holders")
async def test_a_dead_consumer_is_removed_and_its_entries_are_delivered_with_their_count(upkeep: Upkeep) -> None:
    await upkeep.append(S, b"1", b"2")
    await ask(upkeep, "dead")
    upkeep.pass_time(11 * MINUTE)

    await upkeep.run(upkeep.dead_consumers())

    assert await names(upkeep) == []
    assert await ask(upkeep, "alive") == [(b"1", 2), (b"2", 2)]


@pytest.mark.needs("knows_holders")
async def test_a_live_consumer_on_a_quiet_stream_is_left_alone(upkeep: Upkeep) -> None:
    for _ in range(60):
        assert await ask(upkeep, "quiet") == []
        upkeep.pass_time(timedelta(seconds=20))

    report = await upkeep.run(upkeep.dead_consumers())

    assert (report.planned, await names(upkeep)) == (0, ["quiet"])


@pytest.mark.needs("knows_holders")
async def test_a_consumer_that_died_a_short_while_ago_is_waited_for(upkeep: Upkeep) -> None:
    await ask(upkeep, "c")
    upkeep.pass_time(TIMEOUT + 9 * MINUTE)

    report = await upkeep.run(upkeep.dead_consumers())

    assert (report.planned, await names(upkeep)) == (0, ["c"])


@pytest.mark.needs("knows_holders")
async def test_a_consumer_that_comes_back_between_check_and_removal_stays(upkeep: Upkeep) -> None:
    await ask(upkeep, "c")
    upkeep.pass_time(11 * MINUTE)
    sweep = upkeep.dead_consumers()
    page = await sweep.find(None, 100)
    verdicts = [sweep.decide(suspect, page.at) for suspect in page]
    await ask(upkeep, "c")

    outcomes = await sweep.apply([each for each in verdicts if hasattr(each, "change")])

    assert ([outcome.value for outcome in outcomes], await names(upkeep)) == (["conflict"], ["c"])


@pytest.mark.needs("knows_holders")
async def test_after_many_restarts_one_run_leaves_only_the_living(upkeep: Upkeep) -> None:
    for number in range(130):
        await ask(upkeep, f"host-{number:04}")
    upkeep.pass_time(11 * MINUTE)
    await ask(upkeep, "alive")

    await upkeep.run(upkeep.dead_consumers())

    assert await names(upkeep) == ["alive"]


@pytest.mark.needs("knows_holders")
async def test_a_group_without_readers_raises_one_alert_until_it_changes(upkeep: Upkeep) -> None:
    await upkeep.append(S, b"1", b"2")
    at = upkeep.store.clock.now()
    await ask(upkeep, "dead")
    upkeep.pass_time(11 * MINUTE)
    sweep = upkeep.dead_consumers()
    for _ in range(3):
        await upkeep.run(sweep)
    (alarm,) = await upkeep.alarms()
    assert (alarm.stream, alarm.group, alarm.count, alarm.source) == (S, G, 2, "dead_consumers")
    assert alarm.oldest_at is not None
    assert abs(alarm.oldest_at - at) < timedelta(seconds=1)
    upkeep.pass_time(timedelta(hours=1))
    await upkeep.run(sweep)
    assert len(await upkeep.alarms()) == 2
    await ask(upkeep, "alive")
    await upkeep.run(sweep)
    upkeep.pass_time(11 * MINUTE)

    await upkeep.run(sweep)

    assert len(await upkeep.alarms()) == 3  # it was read meanwhile, and is unread again


async def test_a_group_whose_entries_are_all_acked_is_in_order_without_consumers(upkeep: Upkeep) -> None:
    ids = await upkeep.append(S, b"1")
    await ask(upkeep, "c")
    await upkeep.groups.answer([Ack(S, G, ids[0])])
    upkeep.pass_time(DAY)

    await upkeep.run(upkeep.dead_consumers())

    assert (await names(upkeep), await upkeep.alarms()) == ([], [])
    assert not await upkeep.groups.join(S, G, FIRST), "the group is still there"


@pytest.mark.needs("knows_holders")
async def test_groups_to_be_ignored_and_that_of_the_origin_are_left_alone(upkeep: Upkeep) -> None:
    await upkeep.groups.join(S, "_init", FIRST)
    await upkeep.append(S, b"1")
    await ask(upkeep, "c")
    await upkeep.groups.deliver([S], "_init", "c", 1, ack_timeout=TIMEOUT)
    upkeep.pass_time(DAY)

    report = await upkeep.run(upkeep.dead_consumers(ignore=(G,)))

    assert (report.planned, await names(upkeep)) == (0, ["c"])


@pytest.mark.needs("knows_holders")
async def test_a_dry_run_plans_the_removal_and_changes_nothing(upkeep: Upkeep) -> None:
    await ask(upkeep, "dead")
    upkeep.pass_time(11 * MINUTE)

    plan = await upkeep.run(upkeep.dead_consumers(), dry_run=True)

    assert [(each.verb, each.suspect) for each in plan.plan] == [("retire", f"{S} {G} dead")]
    assert await names(upkeep) == ["dead"]


@pytest.mark.needs("knows_holders")
async def test_small_pages_see_every_dead_consumer_of_every_stream_once(upkeep: Upkeep) -> None:
    for subject in ("gbe.a", "gbe.b"):
        for group in ("g", "h"):
            await upkeep.groups.join(subject, group, FIRST)
            for consumer in ("1", "2", "3"):
                await upkeep.groups.deliver([subject], group, consumer, 1, ack_timeout=TIMEOUT)
    upkeep.pass_time(11 * MINUTE)
    sweep = upkeep.dead_consumers()
    seen: list[str] = []
    after: str | None = None

    while True:
        page = await sweep.find(after, 2)
        verdicts = [sweep.decide(suspect, page.at) for suspect in page]
        seen += [each.suspect for each in verdicts if hasattr(each, "suspect")]
        after = page.cursor
        if after is None:
            break

    assert seen == [f"gbe.{s} {g} {c}" for s in "ab" for g in "gh" for c in "123"]
