"""The archiver in virtual time: when it writes, what it does in trouble, and what it tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from faults import Network, Script
from virtual_time import VirtualClock, run_virtual
from wrasse.archives import archiver as archiving
from wrasse.archives.archiver import LAG_INTERVAL, Archiver
from wrasse.archives.cursor import CURSORS, lease_key
from wrasse.archives.drain import GROUP
from wrasse.clock import SystemClock
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, WrasseError
from wrasse.ports.page import Page
from wrasse.ports.records import Collection
from wrasse.ports.streams import START, Draft, EntryId

from .scene import ALARMS, CHANGE, LEASES, LOGIN, World, envelope
from .test_codec import ODD

T = TypeVar("T")


def virtually(story: Coroutine[Any, Any, T]) -> T:
    return run_virtual(story)


@asynccontextmanager
async def running(archiver: Archiver):  # type: ignore[no-untyped-def]
    async with asyncio.TaskGroup() as group:
        group.create_task(archiver.run())
        try:
            yield archiver
        finally:
            archiver.stop()


async def floor(world: World, subject: str = CHANGE) -> EntryId:
    state = await world.memory.streams.info(subject)
    assert state is not None
    return next((group.floor for group in state.groups if group.name == GROUP), START)


async def keys(world: World) -> list[str]:
    return [info.key for info in (await world.memory.objects.page("", None, 1_000)).items]


def test_a_quiet_stream_is_archived_when_its_first_message_is_old_enough() -> None:
    async def story() -> list[int]:
        world = World(VirtualClock())
        async with running(world.archiver()):
            await world.publish(CHANGE, 2)
            await asyncio.sleep(58)
            before = len(await keys(world))
            await asyncio.sleep(4)
            return [before, len(await world.archived())]

    assert virtually(story()) == [0, 2]


def test_a_full_batch_is_archived_within_a_cycle_and_a_new_stream_from_its_first_entry() -> None:
    async def story() -> list[int]:
        world = World(VirtualClock(), size=3)
        async with running(world.archiver()):
            await asyncio.sleep(5)
            await world.publish(LOGIN, 3)
            await asyncio.sleep(1.5)
            return [len(await world.archived())]

    assert virtually(story()) == [3]


def test_an_archive_holds_its_whole_batch_however_often_must_be_read_for_it() -> None:
    async def story() -> tuple[int, str]:
        world = World(SystemClock(), size=5_000)
        for _ in range(5):
            await world.memory.streams.append([Draft(CHANGE, envelope())] * 500)
        await world.note(CHANGE, 2_500)
        await world.archiver().drain()
        return len(await keys(world)), await world.broken()

    assert asyncio.run(story()) == (1, "")  # a batch of this size is compressed in a thread: time is real


def test_a_batch_over_midnight_is_two_archives_under_their_days() -> None:
    async def story() -> list[str]:
        world = World(VirtualClock(off=timedelta(hours=23, minutes=59, seconds=30)), size=100)
        await world.publish(CHANGE, 2)
        await asyncio.sleep(60)
        await world.publish(CHANGE, 2)
        await world.archiver().drain()
        assert await world.broken() == ""
        return [key[:24] for key in await keys(world)]

    assert virtually(story()) == ["archive/audit/2026/01/01", "archive/audit/2026/01/02"]


def test_a_stop_writes_what_was_read_and_reads_nothing_more() -> None:
    async def story() -> tuple[int, str]:
        world = World(VirtualClock(), size=100)
        async with running(world.archiver()) as archiver:
            await world.publish(CHANGE, 4)
            await asyncio.sleep(2)
            archiver.stop()
            await world.publish(CHANGE, 3)
        written = len(await world.archived())
        await world.archiver(owner="next").drain()  # at once: the lease was given back
        return written, await world.broken()

    assert virtually(story()) == (4, "")


def test_a_stop_ends_in_time_although_the_store_is_down() -> None:
    async def story() -> float:
        clock = VirtualClock()
        world, network = World(clock, size=100), Network(Script({}))
        async with running(world.archiver(network)) as archiver:
            await world.publish(CHANGE, 4)
            await asyncio.sleep(2)
            network.stall(1_000)
            began = clock.monotonic()
            archiver.stop(timedelta(seconds=5))
        return clock.monotonic() - began

    assert virtually(story()) <= 5


def test_while_the_store_is_down_nothing_is_acked_and_it_goes_on_by_itself() -> None:
    async def story() -> tuple[EntryId, str]:
        world, network = World(VirtualClock()), Network(Script({}))
        async with running(world.archiver(network)):
            network.down = True
            await world.publish(CHANGE, 7)
            await asyncio.sleep(600)
            down = await floor(world)
            network.down = False
            await asyncio.sleep(100)
            return down, await world.broken()

    assert virtually(story()) == (START, "")


def test_one_of_two_archivers_does_the_work() -> None:
    async def story() -> list[int]:
        world = World(VirtualClock(), size=1)
        one, other = world.archiver(owner="one"), world.archiver(owner="other")
        async with running(one), running(other):
            for _ in range(20):
                await world.publish(CHANGE, 1)
                await asyncio.sleep(2)
        assert await world.broken() == ""
        return sorted([one.tally.archives, other.tally.archives])

    assert virtually(story()) == [0, 20]


def test_an_archive_is_announced_once_with_what_it_holds() -> None:
    async def story() -> list[dict[str, Any]]:
        world = World(VirtualClock())
        await world.publish(CHANGE, 2)
        await world.archiver(pattern="gbe.events.>").drain()
        return [json.loads(event.payload) for event in await world.events()]

    (event,) = virtually(story())
    assert (event["stream"], event["domain"], event["count"], event["destination"]) == (CHANGE, "audit", 2, "memory:")
    assert event["key"].startswith("archive/audit/2026/01/01/")
    assert event["last_id"].endswith("-2")


def test_odd_entries_are_archived_whole_and_hold_nothing_up() -> None:
    async def story() -> tuple[str, int]:
        world = World(VirtualClock(), size=4)
        for body in ODD.values():
            await world.append(CHANGE, body)
        await world.append(CHANGE, envelope(), {"reason": b"\xff"})
        await world.publish(CHANGE, 1)
        await world.archiver().drain()
        return await world.broken(), sum(each.marked for each in await world.verified())

    assert virtually(story()) == ("", len(ODD) + 1)


@pytest.mark.parametrize("group_too", [False, True])
def test_a_lost_cursor_is_made_again_from_the_group_and_the_newest_archive(group_too: bool) -> None:
    async def story() -> str:
        world = World(VirtualClock())
        await world.publish(CHANGE, 7)
        await world.archiver().drain()
        records = world.memory.records(CURSORS)
        record = await records.get(CHANGE)
        assert record is not None
        await records.delete(CHANGE, at=record.version)
        await asyncio.sleep(86_400)
        await world.trim()
        if group_too:
            log = world.memory.streams._logs.find(CHANGE)
            assert log is not None
            del log.groups[GROUP]
        await world.publish(CHANGE, 2)
        await world.archiver().drain()
        return await world.broken()

    assert virtually(story()) == ""


def test_a_cursor_from_a_backup_doubles_nothing() -> None:
    async def story() -> str:
        world = World(VirtualClock())
        await world.publish(CHANGE, 4)
        await world.archiver().drain()
        records = world.memory.records(CURSORS)
        old = await records.get(CHANGE)
        assert old is not None
        await asyncio.sleep(86_400)
        await world.publish(CHANGE, 4)
        await world.archiver().drain()
        await asyncio.sleep(86_400)
        await world.trim()
        await world.publish(CHANGE, 4)
        now = await records.get(CHANGE)
        assert now is not None
        await records.put(CHANGE, old.value, at=now.version)
        await world.archiver().drain()
        return await world.broken()

    assert virtually(story()) == ""


def test_a_stream_that_was_set_back_is_not_archived_and_raises_one_alarm() -> None:
    async def story() -> tuple[int, int, int]:
        world = World(VirtualClock())
        await world.publish(CHANGE, 4)
        await world.archiver().drain()
        world.memory.streams._logs._logs.pop(CHANGE)
        world.clock.step(timedelta(hours=-1))  # type: ignore[attr-defined]
        await world.publish(CHANGE, 2)
        with pytest.raises(Refused, match="set back"):
            await world.archiver().drain()
        async with running(world.archiver(owner="other")) as other:
            await asyncio.sleep(300)
        return len(await keys(world)), len(await world.events(ALARMS)), other.tally.alarms

    assert virtually(story()) == (2, 1, 1)


def test_entries_that_were_trimmed_unarchived_are_counted_and_stay_provable() -> None:
    async def story() -> tuple[int, int, list[str]]:
        world = World(VirtualClock(), size=100)
        await world.publish(CHANGE, 3)
        await world.archiver().drain()
        await world.publish(CHANGE, 5)
        await world.memory.streams.trim(CHANGE, age=None, below=world.published[6].id, protect=[], limit=100)
        archiver = world.archiver()
        await archiver.drain()
        found = [problem.what for each in await world.verified() for problem in each.problems]
        return archiver.tally.lost, len(await world.events(ALARMS)), found

    lost, alarms, problems = virtually(story())
    assert (lost, alarms) == (3, 1)
    assert problems == ["3 entries before it were trimmed from the stream before they could be archived"]


@pytest.mark.parametrize("collection", [CURSORS, LEASES])
def test_trouble_with_one_stream_stops_no_other(collection: Collection) -> None:
    async def story() -> list[str]:
        world = World(VirtualClock(), size=1)
        await world.publish(CHANGE, 1)
        await world.publish(LOGIN, 1)
        records, key = world.memory.records(collection), CHANGE if collection == CURSORS else lease_key(CHANGE)
        await records.create(key, b"nonsense")
        async with running(world.archiver()):
            await asyncio.sleep(3 * LAG_INTERVAL.total_seconds())
        return await keys(world)

    assert [LOGIN in key for key in virtually(story())] == [True]


@pytest.mark.parametrize("error", [StoreBroken("it is damaged"), StoreUnavailable("it is down")])
def test_a_listing_that_fails_is_waited_for(error: WrasseError, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> list[str]:
        world = World(VirtualClock(), size=1)
        await world.publish(CHANGE, 1)
        whole = world.memory.streams.subjects

        async def failing(pattern: str, after: str | None, limit: int) -> Page[str]:
            raise error

        monkeypatch.setattr(world.memory.streams, "subjects", failing)
        async with running(world.archiver()):
            await asyncio.sleep(3)
            monkeypatch.setattr(world.memory.streams, "subjects", whole)
            await asyncio.sleep(60)
        return await keys(world)

    assert [CHANGE in key for key in virtually(story())] == [True]


def test_open_batches_are_dropped_rather_than_take_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "OPEN_BYTES_MAX", 1_000)

    async def story() -> tuple[int, str]:
        world = World(VirtualClock(), size=1_000)
        archiver = world.archiver()
        async with running(archiver):
            await world.publish(CHANGE, 200)  # far more than that, and not due yet
            await world.publish(LOGIN, 200)
            await asyncio.sleep(10)
            held = sum(post.drain.held for post in archiver._states.values())
            await asyncio.sleep(60)
            return held, await world.broken()

    held, broken = virtually(story())
    assert held <= 1_000
    assert broken == ""
