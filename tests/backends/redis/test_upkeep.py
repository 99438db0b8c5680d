"""Sweeps of streams on Redis beside other programs: their consumers, their trims, and the cost of a search."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.stores import Store
from conformance.upkeep import DAY, Upkeep
from servers.valkey import SHARED, newest
from wrasse.backends.redis import groups
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.clock import SystemClock
from wrasse.ports.groups import Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import Draft
from wrasse.streams.group_census import PlainSurvey
from wrasse.streams.retention import RetentionRule

S, G = "gbe.tasks.mail.queue", "mail-workers"
FIRST = StartAt(first=True)
TIMEOUT = timedelta(seconds=30)


@pytest.fixture
async def upkeep(tmp_path: Path) -> AsyncIterator[Upkeep]:
    store = Store("redis", tmp_path)
    await store.open()
    yield Upkeep(store)
    await store.close()


def redis(upkeep: Upkeep) -> Redis:
    backend = upkeep.store.backend
    assert isinstance(backend, Redis)
    return backend


async def foreign(upkeep: Upkeep, *words: Any) -> Any:
    """What another program sends; `S` stands for the key of the stream."""
    link = redis(upkeep).client
    key = link.options.streams_prefix + S.replace(".", ":")
    return await link.ask(*(key if word is S else word for word in words))


async def names(upkeep: Upkeep) -> list[str]:
    return [each.consumer for each in await upkeep.groups.consumers(S, G)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers of other programs count as silent at once."""
    monkeypatch.setattr(groups, "FOREIGN_IDLE_MAX", timedelta(0))


@pytest.mark.usefixtures("impatient")
async def test_an_idle_consumer_of_another_program_is_removed_at_the_second_look(upkeep: Upkeep) -> None:
    await upkeep.groups.join(S, G, FIRST)
    await foreign(upkeep, "XGROUP", "CREATECONSUMER", S, G, "rust-1")
    sweep = upkeep.dead_consumers(gone_for=timedelta(0))
    first = await upkeep.run(sweep, dry_run=True)
    await upkeep.run(sweep)
    assert ([each.verb for each in first.plan], await names(upkeep)) == (["note"], ["rust-1"])

    await upkeep.run(upkeep.dead_consumers(gone_for=timedelta(0)))  # whoever takes the second look

    assert await names(upkeep) == []
    assert not (await upkeep.run(sweep, dry_run=True)).plan  # nothing is left of the first


@pytest.mark.usefixtures("impatient")
async def test_a_look_at_a_consumer_that_somebody_else_removed_is_forgotten(upkeep: Upkeep) -> None:
    await upkeep.groups.join(S, G, FIRST)
    await foreign(upkeep, "XGROUP", "CREATECONSUMER", S, G, "rust-1")
    sweep = upkeep.dead_consumers(gone_for=DAY)
    for _ in range(2):
        await upkeep.run(sweep)
    assert len(await sweep.census.idle_observations.known()) == 1
    await foreign(upkeep, "XGROUP", "DELCONSUMER", S, G, "rust-1")

    await upkeep.run(sweep)

    assert not await sweep.census.idle_observations.known()


@pytest.mark.usefixtures("impatient")
async def test_a_consumer_of_another_program_that_holds_something_is_never_removed(upkeep: Upkeep) -> None:
    await upkeep.append(S, b"1")
    await upkeep.groups.join(S, G, FIRST)
    await foreign(upkeep, "XREADGROUP", "GROUP", G, "rust-1", "STREAMS", S, ">")
    sweep = upkeep.dead_consumers(gone_for=timedelta(0), stale_after=DAY)

    for _ in range(3):
        await upkeep.run(sweep)

    assert await names(upkeep) == ["rust-1"]


async def test_an_entry_that_was_trimmed_while_pending_is_dropped_counted_and_told_once(upkeep: Upkeep) -> None:
    ids = await upkeep.append(S, b"1", b"2", b"3")
    await upkeep.groups.join(S, G, FIRST)
    given = await upkeep.groups.deliver([S], G, "c", 3, ack_timeout=TIMEOUT)
    await foreign(upkeep, "XTRIM", S, "MINID", "=", str(ids[2]))
    assert await upkeep.groups.answer([Nak(S, G, given[0].entry.id)]) == (Outcome.CONFLICT,)
    upkeep.pass_time(TIMEOUT)
    again = await upkeep.groups.deliver([S], G, "d", 3, ack_timeout=DAY)
    assert [each.entry.body for each in again] == [b"3"]
    sweep = upkeep.dead_consumers()

    for _ in range(3):
        await upkeep.run(sweep)

    assert [(alarm.stream, alarm.group, alarm.count) for alarm in await upkeep.alarms()] == [(S, G, 2)]
    assert upkeep.tally.trimmed_pending == 2
    (state,) = await upkeep.surveys.survey("gbe.tasks.>", None, 10)
    assert [(group.name, group.pending, group.lost) for group in state.groups] == [(G, 1, 2)]


async def test_what_a_retired_consumer_held_and_somebody_trimmed_is_counted_as_lost(upkeep: Upkeep) -> None:
    await upkeep.append(S, b"1", b"2")
    await upkeep.groups.join(S, G, FIRST)
    await upkeep.groups.deliver([S], G, "c", 2, ack_timeout=TIMEOUT)
    await foreign(upkeep, "XTRIM", S, "MAXLEN", "=", 1)
    upkeep.pass_time(DAY)

    await upkeep.run(upkeep.dead_consumers())

    (state,) = await upkeep.surveys.survey("gbe.tasks.>", None, 10)
    assert [(group.pending, group.lost, group.consumers) for group in state.groups] == [(1, 1, 0)]


async def test_a_trim_goes_by_the_servers_clock_however_wrong_ours_is(tmp_path: Path) -> None:
    class Ahead(SystemClock):
        """25 hours ahead of everybody else."""

        def now(self) -> Any:
            return super().now() + timedelta(hours=25)

    store = Store("redis", tmp_path, clock=Ahead())
    await store.open()
    try:
        upkeep = Upkeep(store)
        await upkeep.append("gbe.notify.topic.a", b"fresh")

        await upkeep.run(upkeep.aged_entries(RetentionRule("gbe.>", DAY, exact=True)))

        assert await upkeep.bodies("gbe.notify.topic.a") == [b"fresh"]
    finally:
        await store.close()


async def test_a_survey_says_what_streams_say_one_by_one(upkeep: Upkeep) -> None:
    await upkeep.append(S, b"1", b"2")
    await upkeep.groups.join(S, G, FIRST)
    await upkeep.groups.deliver([S], G, "c", 1, ack_timeout=TIMEOUT)
    await upkeep.append("gbe.b", b"1")
    await upkeep.append("other", b"1")
    plain = PlainSurvey(upkeep.streams)

    for pattern in (">", "gbe.>", "gbe.*", "other", "nothing"):
        pages = [await survey.survey(pattern, None, 100) for survey in (upkeep.surveys, plain)]
        shown = [[(s.subject, s.length, s.appended, s.first, s.last, s.groups) for s in page] for page in pages]
        assert shown[0] == shown[1]


async def test_a_survey_in_small_pages_shows_every_stream_once(upkeep: Upkeep) -> None:
    subjects = [f"gbe.s{n:03}" for n in range(20)]
    await upkeep.streams.append([Draft(subject, b"1") for subject in subjects])
    await redis(upkeep).client.ask("DEL", f"{redis(upkeep).client.options.streams_prefix}gbe:s007")
    found: list[str] = []
    after: str | None = None

    while True:
        page = await upkeep.surveys.survey(">", after, 4)
        found += [state.subject for state in page]
        after = page.cursor
        if after is None:
            break

    assert found == [subject for subject in subjects if subject != "gbe.s007"]


class OwnDatabase(Store):
    """A database of the server that no other test uses: a search for streams of other programs sees nothing else."""

    async def another(self) -> Redis:
        server = SHARED.at(newest())
        options = RedisOptions(nodes=(("127.0.0.1", server.port),), db=11, root=self._root)
        return await Redis.open(options, self.clock, time=self.clock)


async def test_a_thousand_streams_with_nothing_due_cost_at_most_ten_round_trips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = OwnDatabase("redis", tmp_path)
    await store.open()
    upkeep = Upkeep(store)
    await redis(upkeep).client.ask("FLUSHDB")
    await upkeep.streams.append([Draft(f"gbe.events.s{n:04}", b"young") for n in range(1_000)])
    trips = 0
    run, ask_many = OwnRedisClient.run, OwnRedisClient.ask_many

    async def counted_run(self: OwnRedisClient, script: Any, keys: Sequence[Any], args: Sequence[Any] = ()) -> Any:
        nonlocal trips
        trips += 1
        return await run(self, script, keys, args)

    async def counted_ask(self: OwnRedisClient, commands: Sequence[Any]) -> Any:
        nonlocal trips
        trips += 1
        return await ask_many(self, commands)

    monkeypatch.setattr(OwnRedisClient, "run", counted_run)
    monkeypatch.setattr(OwnRedisClient, "ask_many", counted_ask)

    try:
        report = await upkeep.run(upkeep.aged_entries(RetentionRule("gbe.>", DAY)))
    finally:
        monkeypatch.undo()
        await redis(upkeep).client.ask("FLUSHDB")
        await store.close()

    assert report.kept == {"nothing is old enough": 1}
    assert trips <= 10, trips
