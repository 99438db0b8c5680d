"""After a stream was set back: nothing that is new in it stays out of the archives, nothing is archived again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from virtual_time import VirtualClock, run_virtual
from wrasse.archives.cursor import CURSORS, Cursor, Cursors
from wrasse.archives.drain import GROUP, check_continuity
from wrasse.archives.reader import read
from wrasse.archives.restart import Restart, plan_restart, replay, restart
from wrasse.archives.rule import Rule
from wrasse.errors import Refused
from wrasse.ports.groups import StartAt
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.streams import START, Draft, EntryId

from .scene import CHANGE, PATTERN, World, envelope


async def restored(kept: int, *, archived: int, new: int, back: timedelta = timedelta(0)) -> World:
    """A stream of which the first `kept` of `archived` entries are left, and to which others were appended."""
    world = World(VirtualClock(), size=3)
    await world.publish(CHANGE, archived)
    await world.archiver().drain()
    old = world.published[:kept]
    world.memory.streams._logs._logs.pop(CHANGE)
    world.memory.streams._logs.names.remove(CHANGE)
    await world.memory.streams.append([Draft(CHANGE, entry.body, fields=entry.fields) for entry in old])
    await world.memory.groups.join(CHANGE, GROUP, StartAt(first=True))
    if old:
        await world.memory.groups.mark(CHANGE, GROUP, old[-1].id)
    world.clock.step(-back)  # type: ignore[attr-defined]
    for number in range(new):
        await world.append(CHANGE, envelope(payload=b"new %d" % number))
    return world


async def planned(world: World) -> Restart:
    rule = Rule(PATTERN, world.memory.objects, "memory:")
    return await plan_restart(world.memory.streams, Cursors(world.memory.records(CURSORS)), rule, CHANGE, GROUP)


@pytest.mark.parametrize(("kept", "new"), [(7, 2), (0, 4), (10, 0), (3, 9)])
def test_what_is_new_is_archived_once_in_a_new_epoch(kept: int, new: int) -> None:
    async def story() -> tuple[Restart, str, list[str]]:
        world = await restored(kept, archived=10, new=new)
        plan = await planned(world)
        await restart(Cursors(world.memory.records(CURSORS)), plan)
        await world.archiver().drain()
        keys = [info.key for info in (await world.memory.objects.page("", None, 100)).items if "-e2.jsonl" in info.key]
        return plan, await world.broken(), keys

    plan, broken, keys = run_virtual(story())
    assert (plan.epoch, plan.new, plan.gone, broken) == (2, new, 10 - kept, "")
    assert bool(keys) == bool(new)


def test_a_restart_is_refused_where_archives_that_the_group_passed_are_missing() -> None:
    async def story() -> None:
        world = await restored(7, archived=10, new=2)
        for info in (await world.memory.objects.page("", None, 100)).items:
            await world.memory.objects.delete([ObjectDelete(info.key, info.version)])
        with pytest.raises(Refused, match="restore the missing archives"):
            await planned(world)

    run_virtual(story())


CURSOR = Cursor(CHANGE, EntryId(1, 8), 8, history="one")


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, True),
        ({"last": EntryId(1, 7)}, False),
        ({"appended": 7}, False),
        ({"history": "two"}, True),
        ({"history": "two", "appended": 12}, False),
        ({"history": "two", "first": EntryId(1 << 50, 1), "appended": 18, "groups": ()}, True),
        ({"history": "two", "first": EntryId(1 << 50, 1), "appended": 17, "groups": ()}, False),
    ],
)
def test_a_stream_is_known_by_what_it_held_up_to_the_cursor(changes: dict[str, object], right: bool) -> None:
    async def story() -> None:
        world = World(VirtualClock(), size=100)
        await world.publish(CHANGE, 10)
        entries = world.published
        await world.memory.groups.join(CHANGE, GROUP, StartAt(first=True))
        await world.memory.groups.mark(CHANGE, GROUP, entries[6].id)
        state = await world.memory.streams.info(CHANGE)
        assert state is not None
        state = replace(state, history="one")
        fitted = {name: entries[6].id if name == "last" else value for name, value in changes.items()}
        cursor = replace(CURSOR, after=entries[7].id)
        await check_continuity(world.memory.streams, cursor, replace(state, **fitted), GROUP)  # type: ignore[arg-type]

    if right:
        run_virtual(story())
    else:
        with pytest.raises(Refused, match="set back"):
            run_virtual(story())


def test_a_stream_without_the_cursors_entry_is_another() -> None:
    async def story() -> None:
        world = World(VirtualClock(), size=100)
        await world.publish(CHANGE, 10)
        await asyncio.sleep(1)
        await world.publish(CHANGE, 1)
        state = await world.memory.streams.info(CHANGE)
        assert state is not None
        after = EntryId(world.published[7].id.ms, 10**6)
        state = replace(state, history="two")
        await check_continuity(world.memory.streams, replace(CURSOR, after=after, passed=None), state, GROUP)

    with pytest.raises(Refused, match="no entry"):
        run_virtual(story())


def test_a_replay_gives_every_message_once_however_often_it_is_begun() -> None:
    async def story() -> tuple[int, list[bytes], list[bytes]]:
        world = World(VirtualClock(), size=3)
        await world.publish(CHANGE, 10)
        await world.append(CHANGE, b"\xff", {"x": b"y"})
        await world.archiver().drain()
        counted = await replay(read(world.memory.objects, "archive", ">"), None, "test.again")
        assert await world.memory.streams.info("test.again") is None
        for _ in range(2):
            await replay(read(world.memory.objects, "archive", ">"), world.memory.streams, "test.again")
        again = (await world.memory.streams.read("test.again", START, 100)).items
        return counted.messages, [entry.body for entry in again], [entry.body for entry in world.published]

    count, again, published = run_virtual(story())
    assert (count, again) == (11, published)
