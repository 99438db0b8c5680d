"""Maximum ages of JetStream: set on streams of ours without a group, and removed before a group reads one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from backends.nats.scene import S, Scene, drafts, scene
from servers.nats import Nats
from wrasse.backends.memory.connect import Memory
from wrasse.backends.nats.client.jetstream import JetStream, Receipt
from wrasse.backends.nats.connect import Flows
from wrasse.backends.nats.message_codec import stream_name
from wrasse.clock import SystemClock
from wrasse.engine.report import Report
from wrasse.engine.run import RunContext, run_once
from wrasse.ids import Ids
from wrasse.ports.groups import StartAt
from wrasse.ports.outcome import Outcome
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.retention import Retention, RetentionRule, RetentionTally, Trimmer
from wrasse.sweeps.aged_entries import AgedEntries

FIRST = StartAt(first=True)
DAY = timedelta(days=1)
RULE = RetentionRule("gbe.>", DAY)
TASKS = "gbe.tasks.mail.queue"


@pytest.fixture
async def stage(nats_server: Nats) -> AsyncIterator[Scene]:
    async with scene(nats_server.port) as made:
        yield made


class Upkeep:
    """The sweep over one process's streams; what it has told stays with it."""

    def __init__(self, stage: Scene, flows: Flows) -> None:
        self._stage = stage
        self.flows = flows
        self._clock = SystemClock()
        self._beside = Memory(self._clock)

    async def run(self, *rules: RetentionRule, archived: tuple[str, ...] = (), dry_run: bool = False) -> Report:
        alerts = Alerts(self._beside.records(ALERTS), self._beside.streams, self._clock, AgedEntries.name)
        trimmer = Trimmer(self.flows.streams, alerts, self._clock, RetentionTally())
        sweep = AgedEntries(self.flows.streams, Retention(rules, archived), trimmer, alerts, ages=self.flows.streams)
        frame = RunContext(self._beside.journal, self._clock, Ids(self._clock))
        report = await run_once(sweep, frame, dry_run=dry_run)
        assert not report.errors, report.errors
        return report

    async def told(self) -> list[str]:
        alerts = Alerts(self._beside.records(ALERTS), self._beside.streams, self._clock, AgedEntries.name)
        return [each.stream for each in (await alerts.told()).values()]

    async def age(self, subject: str = S) -> timedelta:
        return await age(self._stage, subject)


async def age(stage: Scene, subject: str = S) -> timedelta:
    """The maximal age as the server has it."""
    told = await (await stage.js()).call(f"STREAM.INFO.{stream_name(f'{stage.root}.s.{subject}')}")
    return timedelta(microseconds=told["config"]["max_age"] / 1_000)


async def edit(stage: Scene, subject: str, **changes: object) -> None:
    """As a person edits a stream."""
    js, name = await stage.js(), stream_name(f"{stage.root}.s.{subject}")
    config = (await js.call(f"STREAM.INFO.{name}"))["config"]
    await js.call(f"STREAM.UPDATE.{name}", {**config, **changes})


@pytest.fixture
async def upkeep(stage: Scene) -> Upkeep:
    flows = await stage.flows()
    await flows.streams.append(drafts(2))
    return Upkeep(stage, flows)


async def test_a_stream_that_nobody_reads_in_a_group_is_kept_to_its_age_by_the_server(upkeep: Upkeep) -> None:
    await upkeep.run(RULE)

    assert await upkeep.age() == DAY


async def test_no_stream_that_is_protected_gets_an_age(upkeep: Upkeep) -> None:
    protected = (TASKS, "gbe._deadletter.tasks", "gbe.archived", "gbe.named", "gbe.grouped", "gbe.durable")
    for subject in protected:
        await upkeep.flows.streams.append(drafts(1, subject))
    await upkeep.flows.groups.join("gbe.grouped", "g", FIRST)
    lane = await upkeep.flows.stream_map.find("gbe.durable")
    config = {"durable_name": "theirs", "ack_policy": "explicit"}
    js = upkeep.flows.stream_map.js
    await js.call(f"CONSUMER.DURABLE.CREATE.{lane.stream}.theirs", {"stream_name": lane.stream, "config": config})

    rules = RULE, RetentionRule("gbe.named", DAY, protect=("g",))
    report = await upkeep.run(*rules, archived=("gbe.archived",))

    assert (report.done, report.conflict) == (1, 0)
    assert {subject: await upkeep.age(subject) for subject in protected} == dict.fromkeys(protected, timedelta(0))
    assert await upkeep.age() == DAY


async def test_an_age_follows_its_rule_and_goes_with_it(upkeep: Upkeep) -> None:
    ages = []
    for rules in ((RULE,), (RetentionRule(S, 2 * DAY),), (RetentionRule(S, timedelta(seconds=5)),), ()):
        await upkeep.run(*rules)
        ages.append(await upkeep.age())

    assert ages == [DAY, 2 * DAY, timedelta(minutes=2), timedelta(0)]  # never below the window of keys


async def test_a_rule_that_is_shorter_than_the_server_takes_comes_to_rest(upkeep: Upkeep) -> None:
    short = RetentionRule(S, timedelta(seconds=100))
    await upkeep.run(short)

    assert not (await upkeep.run(short, dry_run=True)).plan


async def test_an_age_goes_when_its_stream_becomes_archived(upkeep: Upkeep) -> None:
    await upkeep.run(RULE)

    await upkeep.run(RULE, archived=(S,))

    assert await upkeep.age() == timedelta(0)


async def test_a_dry_run_plans_an_age_and_sets_none(upkeep: Upkeep) -> None:
    report = await upkeep.run(RULE, dry_run=True)

    assert [(each.verb, each.suspect) for each in report.plan] == [("set_age", S)]
    assert await upkeep.age() == timedelta(0)


async def test_a_run_with_nothing_to_change_changes_no_stream(upkeep: Upkeep) -> None:
    await upkeep.run(RULE)

    report = await upkeep.run(RULE, dry_run=True)

    assert not report.plan


async def test_what_is_old_goes_while_no_sweep_runs_and_ids_go_on_growing(upkeep: Upkeep, stage: Scene) -> None:
    (*_, last) = await upkeep.flows.streams.append(drafts(3))
    await upkeep.run(RULE)
    await edit(stage, S, max_age=100_000_000, duplicate_window=100_000_000)  # a day in a moment
    async with asyncio.timeout(30):
        while (await upkeep.flows.streams.info(S)).length:  # noqa: ASYNC110  # the server removes them
            await asyncio.sleep(0.05)

    (after,) = await (await stage.flows()).streams.append(drafts(1))

    assert after > last
    assert after.seq == last.seq + 1


# Who makes a group


async def test_a_stream_that_has_a_group_gets_no_age_though_its_rule_names_none(upkeep: Upkeep, stage: Scene) -> None:
    await upkeep.run(RULE)

    await (await stage.flows()).groups.join(S, "archiver", FIRST)
    await upkeep.run(RULE)

    assert await upkeep.age() == timedelta(0)


class Stopped(JetStream):
    """The API as a process has it that is stopped before one of its questions, until it is let go."""

    def __init__(self, flows: Flows, before: str) -> None:
        super().__init__(flows.stream_map.js.connection)
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._before = before
        flows.stream_map.js = flows.groups._marks._js = flows.groups._durables._js = self

    async def call(self, verb: str, asked: Mapping[str, object] | None = None) -> dict[str, Any]:
        await self._stop(verb)
        return await super().call(verb, asked)

    async def receipt(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Receipt:
        await self._stop(subject)
        return await super().receipt(subject, payload, headers)

    async def _stop(self, asked: str) -> None:
        if self._before in asked and not self.reached.is_set():
            self.reached.set()
            await self.go.wait()


KINDS = pytest.mark.parametrize(("cursor", "made_by"), [(True, "._books.mark."), (False, "CONSUMER.CREATE.")])


@KINDS
async def test_a_group_ends_the_age_before_it_is_there(
    upkeep: Upkeep, stage: Scene, cursor: bool, made_by: str
) -> None:
    await upkeep.run(RULE)
    other = await stage.flows()
    making = Stopped(other, made_by)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(other.groups.join(S, "archiver", FIRST, cursor=cursor))
        await making.reached.wait()

        assert await upkeep.age() == timedelta(0)
        making.go.set()


@pytest.mark.parametrize("cursor", [True, False])
async def test_a_group_that_is_made_while_an_age_is_being_set_ends_up_without_it(
    upkeep: Upkeep, stage: Scene, cursor: bool
) -> None:
    setting = Stopped(upkeep.flows, "STREAM.UPDATE.")  # has seen that there is no group
    other = await stage.flows()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        age_set = tasks.create_task(upkeep.flows.streams.keep_for(S, DAY))
        await setting.reached.wait()
        await other.groups.join(S, "archiver", FIRST, cursor=cursor)  # sees no age
        setting.go.set()

    assert age_set.result() is Outcome.CONFLICT
    assert await upkeep.age() == timedelta(0)


@KINDS
async def test_an_age_that_is_set_while_a_group_is_being_made_is_ended_by_whoever_makes_it(
    upkeep: Upkeep, stage: Scene, cursor: bool, made_by: str
) -> None:
    other = await stage.flows()
    making = Stopped(other, made_by)  # has seen that there is no age
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(other.groups.join(S, "archiver", FIRST, cursor=cursor))
        await making.reached.wait()
        assert await upkeep.flows.streams.keep_for(S, DAY) is Outcome.DONE  # sees no group
        making.go.set()

    assert await upkeep.age() == timedelta(0)


# Streams of others


@pytest.mark.parametrize("theirs", [timedelta(0), 10 * DAY], ids=["without an age", "with an age"])
async def test_a_stream_that_somebody_else_made_is_never_changed(stage: Scene, theirs: timedelta) -> None:
    stored, nanos = f"{stage.root}.s.{S}", theirs // timedelta(microseconds=1) * 1_000
    made = {"name": stream_name(stored), "subjects": [stored], "storage": "memory", "max_age": nanos}
    await (await stage.js()).call(f"STREAM.CREATE.{made['name']}", made)
    upkeep = Upkeep(stage, await stage.flows())
    await upkeep.flows.streams.append(drafts(1))

    await upkeep.run(RULE)
    by_rule = await upkeep.age()
    await upkeep.flows.groups.join(S, "g", FIRST)
    await upkeep.run()

    assert [by_rule, await upkeep.age()] == [theirs, theirs]


async def test_an_age_that_somebody_else_gave_a_protected_stream_is_told_and_stays(
    upkeep: Upkeep, stage: Scene
) -> None:
    await edit(stage, S, max_age=10**15)

    await upkeep.run(archived=(S,))

    assert await upkeep.told() == [S]
    assert await upkeep.age() == timedelta(microseconds=10**12)
    await edit(stage, S, max_age=0)
    await upkeep.run(archived=(S,))
    assert await upkeep.told() == []
