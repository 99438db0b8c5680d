"""Aged entries: every stream is trimmed to its retention, and none loses what a group still needs."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from conformance.stores import CLUSTER, OLD_SERVERS, STREAMS_BACKENDS, Store
from conformance.upkeep import DAY, ERRORS, Upkeep
from nats_noticed import delivering
from wrasse.jobs.stream_tasks.fields import SWEEPS
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import Draft
from wrasse.streams.envelope import decode
from wrasse.streams.retention import RetentionRule

LONG = [pytest.param(name, marks=pytest.mark.full) for name in (*OLD_SERVERS, CLUSTER)]
pytestmark = pytest.mark.parametrize("open_store", [*STREAMS_BACKENDS, *LONG], indirect=True)

AUDIT, QUEUE, DEAD = "gbe.events.audit.change", "gbe.tasks.mail.queue", "gbe._deadletter.tasks"
HOUR = timedelta(hours=1)
FIRST = StartAt(first=True)
TIMEOUT = timedelta(seconds=30)


@pytest.fixture
def upkeep(store: Store) -> Upkeep:
    return Upkeep(store)


def kept(pattern: str = "gbe.>", age: timedelta = DAY, *, exact: bool = True) -> RetentionRule:
    return RetentionRule(pattern, age, exact=exact)


async def test_what_is_older_than_its_retention_is_trimmed_and_nothing_else(upkeep: Upkeep) -> None:
    await upkeep.append("gbe.notify.topic.a", b"old")
    upkeep.pass_time(DAY)
    await upkeep.append("gbe.notify.topic.a", b"young")
    upkeep.pass_time(timedelta(milliseconds=1))

    report = await upkeep.run(upkeep.aged_entries(kept()))

    assert await upkeep.bodies("gbe.notify.topic.a") == [b"young"]
    assert (report.done, upkeep.tally.trimmed, upkeep.tally.lost) == (1, 1, 0)


async def test_a_stream_without_a_rule_is_never_trimmed(upkeep: Upkeep) -> None:
    await upkeep.append("other.stream", b"old")
    upkeep.pass_time(100 * DAY)

    await upkeep.run(upkeep.aged_entries(kept()))

    assert await upkeep.bodies("other.stream") == [b"old"]


async def test_a_dry_run_plans_the_trim_and_changes_nothing(upkeep: Upkeep) -> None:
    await upkeep.append("gbe.a", b"old")
    await upkeep.append(DEAD, b"old")
    upkeep.pass_time(2 * DAY)

    plan = await upkeep.run(upkeep.aged_entries(kept()), dry_run=True)

    assert [(each.verb, each.suspect) for each in plan.plan] == [("alert", DEAD), ("trim", "gbe.a")]
    assert (await upkeep.bodies("gbe.a"), await upkeep.alarms()) == ([b"old"], [])


async def test_without_its_archiver_group_nothing_is_trimmed_and_one_alert_is_raised(upkeep: Upkeep) -> None:
    await upkeep.append(AUDIT, b"old")
    upkeep.pass_time(2 * DAY)
    sweep = upkeep.aged_entries(kept(), archived=("gbe.events.audit.*",))

    for _ in range(3):
        await upkeep.run(sweep)

    assert await upkeep.bodies(AUDIT) == [b"old"]
    assert [(alarm.stream, alarm.group, alarm.source) for alarm in await upkeep.alarms()] == [
        (AUDIT, "archiver", "aged_entries")
    ]


async def test_an_alert_is_told_again_after_the_repeat_interval_and_after_it_was_over(upkeep: Upkeep) -> None:
    await upkeep.append(AUDIT, b"old")
    upkeep.pass_time(2 * DAY)
    sweep = upkeep.aged_entries(kept(), archived=("gbe.events.audit.*",))
    await upkeep.run(sweep)
    upkeep.pass_time(HOUR)
    await upkeep.run(sweep)
    assert len(await upkeep.alarms()) == 2
    without = upkeep.aged_entries(kept("gbe.events.system.*"))
    await upkeep.run(without)  # the rule is gone, and with it the cause
    upkeep.pass_time(timedelta(seconds=1))

    await upkeep.run(sweep)

    assert len(await upkeep.alarms()) == 3


async def test_an_alert_whose_cause_comes_back_at_once_is_told_at_once(upkeep: Upkeep) -> None:
    await upkeep.append(DEAD, b"old")
    upkeep.pass_time(2 * DAY)
    sweep, without = upkeep.aged_entries(kept()), upkeep.aged_entries(kept("gbe.other"))
    await upkeep.run(sweep)
    await upkeep.run(without)
    upkeep.pass_time(timedelta(seconds=1))

    await upkeep.run(sweep)

    assert len(await upkeep.alarms()) == 2


async def test_nothing_that_was_not_delivered_is_trimmed_although_nothing_is_pending(upkeep: Upkeep) -> None:
    ids = await upkeep.append(AUDIT, b"1", b"2", b"3")
    await upkeep.groups.join(AUDIT, "archiver", FIRST, cursor=True)
    await upkeep.groups.mark(AUDIT, "archiver", ids[0])
    upkeep.pass_time(2 * DAY)

    await upkeep.run(upkeep.aged_entries(kept(), archived=(AUDIT,)))

    assert await upkeep.bodies(AUDIT) == [b"2", b"3"]


async def test_only_what_is_below_the_oldest_pending_entry_is_trimmed(upkeep: Upkeep) -> None:
    ids = await upkeep.append(QUEUE, b"1", b"2", b"3")
    await upkeep.groups.join(QUEUE, "mail-workers", FIRST)
    await delivering(upkeep.groups)([QUEUE], "mail-workers", "c", 3, ack_timeout=TIMEOUT)
    await upkeep.groups.answer([Ack(QUEUE, "mail-workers", ids[0]), Ack(QUEUE, "mail-workers", ids[2])])
    upkeep.pass_time(DAY + HOUR)

    await upkeep.run(upkeep.aged_entries(kept()))

    assert await upkeep.bodies(QUEUE) == [b"2", b"3"]


async def test_a_queue_is_protected_by_its_workers_also_before_their_group_exists(upkeep: Upkeep) -> None:
    await upkeep.append(QUEUE, b"not delivered yet")
    upkeep.pass_time(10 * DAY)

    await upkeep.run(upkeep.aged_entries(kept()))

    assert await upkeep.bodies(QUEUE) == [b"not delivered yet"]
    assert [alarm.group for alarm in await upkeep.alarms()] == ["mail-workers"]


async def test_dead_letters_go_only_below_an_archivers_floor(upkeep: Upkeep) -> None:
    ids = await upkeep.append(DEAD, b"1", b"2")
    upkeep.pass_time(2 * DAY)
    sweep = upkeep.aged_entries(kept())
    await upkeep.run(sweep)
    assert await upkeep.bodies(DEAD) == [b"1", b"2"]
    await upkeep.groups.join(DEAD, "archiver", FIRST, cursor=True)
    await upkeep.groups.mark(DEAD, "archiver", ids[0])

    for _ in range(2):  # the alert is settled first
        await upkeep.run(sweep)

    assert await upkeep.bodies(DEAD) == [b"2"]


async def test_allowed_loss_counts_and_tells_what_was_pending_or_never_read(upkeep: Upkeep) -> None:
    ids = await upkeep.append(QUEUE, b"1", b"2", b"3", b"4", b"5")
    await upkeep.groups.join(QUEUE, "mail-workers", FIRST)
    await delivering(upkeep.groups)([QUEUE], "mail-workers", "c", 3, ack_timeout=TIMEOUT)
    await upkeep.groups.answer([Ack(QUEUE, "mail-workers", ids[0]), Ack(QUEUE, "mail-workers", ids[2])])
    upkeep.pass_time(2 * DAY)
    await upkeep.append(QUEUE, b"young")

    await upkeep.run(upkeep.aged_entries(RetentionRule("gbe.tasks.>", DAY, exact=True, allow_data_loss=True)))

    assert await upkeep.bodies(QUEUE) == [b"young"]
    assert (upkeep.tally.trimmed, upkeep.tally.lost) == (5, 3)
    assert [(alarm.stream, alarm.count) for alarm in await upkeep.alarms()] == [(QUEUE, 3)]


async def test_a_long_backlog_is_trimmed_within_one_run(upkeep: Upkeep) -> None:
    for _ in range(5):
        await upkeep.streams.append([Draft("gbe.a", b"x")] * 500)
    upkeep.pass_time(2 * DAY)
    sweep = upkeep.aged_entries(kept())

    await upkeep.run(type(sweep)(sweep.surveys, sweep.retention, sweep.trimmer, sweep.alerts, entries_max=300))

    assert await upkeep.bodies("gbe.a") == []
    assert upkeep.tally.trimmed == 2_500


async def test_an_approximate_rule_waits_for_a_hundredth_more_and_never_trims_more(upkeep: Upkeep) -> None:
    await upkeep.append("gbe.a", b"old")
    upkeep.pass_time(HOUR)
    await upkeep.append("gbe.a", b"an hour later")
    sweep = upkeep.aged_entries(kept(exact=False))
    upkeep.pass_time(23 * HOUR + timedelta(minutes=10))
    await upkeep.run(sweep)
    assert len(await upkeep.bodies("gbe.a")) == 2

    upkeep.pass_time(timedelta(minutes=10))
    await upkeep.run(sweep)

    assert await upkeep.bodies("gbe.a") == [b"an hour later"]


async def test_a_group_that_holds_a_stream_back_for_twice_its_retention_is_named(upkeep: Upkeep) -> None:
    await upkeep.append(AUDIT, b"1")
    await upkeep.groups.join(AUDIT, "archiver", FIRST, cursor=True)
    sweep = upkeep.aged_entries(kept(), archived=(AUDIT,))
    upkeep.pass_time(DAY + HOUR)
    report = await upkeep.run(sweep)
    assert (await upkeep.alarms(), report.kept["a group has not acked it"]) == ([], 1)
    upkeep.pass_time(DAY)

    await upkeep.run(sweep)

    assert [alarm.group for alarm in await upkeep.alarms()] == ["archiver"]


async def test_an_alert_about_a_stream_that_is_gone_is_forgotten(upkeep: Upkeep) -> None:
    await upkeep.append("gbe.zzz.last", b"old")
    await upkeep.append(DEAD, b"old")
    upkeep.pass_time(2 * DAY)
    sweep = upkeep.aged_entries(kept("gbe._deadletter.*"))
    await upkeep.run(sweep)
    told = await sweep.alerts.told()
    assert [each.stream for each in told.values()] == [DEAD]
    without = upkeep.aged_entries(kept("gbe.zzz.*"))

    await upkeep.run(without)

    assert await sweep.alerts.told() == {}


async def test_the_stream_of_alerts_itself_is_bound_by_its_rule(upkeep: Upkeep) -> None:
    await upkeep.append(ERRORS, b"old")
    upkeep.pass_time(8 * DAY)

    await upkeep.run(upkeep.aged_entries(kept("gbe.events.system.*", 7 * DAY)))

    assert await upkeep.bodies(ERRORS) == []


async def test_a_trim_of_reports_is_not_reported(upkeep: Upkeep) -> None:
    await upkeep.append(SWEEPS, b"old")
    upkeep.pass_time(2 * DAY)

    await upkeep.run(upkeep.aged_entries(kept(SWEEPS)))

    assert await upkeep.bodies(SWEEPS) == []


async def test_a_report_says_how_many_streams_and_entries_were_trimmed(upkeep: Upkeep) -> None:
    for subject in ("gbe.a", "gbe.b", "gbe.b"):
        await upkeep.append(subject, b"old")
    upkeep.pass_time(2 * DAY)

    await upkeep.run(upkeep.aged_entries(kept("gbe.*")))

    (report,) = [msgspec.json.decode(decode(body).payload) for body in await upkeep.bodies(SWEEPS)]
    assert report == {"retried": 0, "failed": 0, "streams_trimmed": 2, "entries_trimmed": 3, "source": "watcher"}
