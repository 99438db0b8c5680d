"""Archives are found in the order of their messages, however often the layout of their names was changed."""

from __future__ import annotations

import asyncio

from virtual_time import VirtualClock, run_virtual
from wrasse.archives.naming import DayLayout, Form
from wrasse.archives.reader import list_archives, newest, read

from .scene import CHANGE, LOGIN, World

LAYOUTS = (DayLayout.HIVE, DayLayout.SLASHES, DayLayout.HIVE, DayLayout.SLASHES)


async def changed_twice(world: World) -> None:
    """Archives of two streams and of an epoch of days, of which each began with another layout."""
    for layout in LAYOUTS:
        for _ in range(2):
            await world.publish(CHANGE, 2)
            await world.publish(LOGIN, 2)
            await world.archiver(form=Form(layout)).drain()
            await asyncio.sleep(43_200)


def test_a_change_of_layout_breaks_no_chain_and_hides_no_message() -> None:
    async def story() -> tuple[str, list[str], list[str]]:
        world = World(VirtualClock(), size=3)
        await changed_twice(world)
        found = [str(each.entry.id) async for each in read(world.memory.objects, "archive", CHANGE)]
        wanted = [str(entry.id) for entry in world.published if entry.subject == CHANGE]
        return await world.broken(), found, wanted

    broken, found, wanted = run_virtual(story())
    assert (broken, found) == ("", wanted)


def test_the_newest_archive_is_found_in_either_layout() -> None:
    async def story() -> tuple[object, object]:
        world = World(VirtualClock(), size=3)
        await changed_twice(world)
        last = await newest(world.memory.objects, "archive", "audit", LOGIN)
        listed = [each async for each in list_archives(world.memory.objects, "archive", LOGIN)]
        return None if last is None else last.name, listed[-1].name

    last, listed = run_virtual(story())
    assert last == listed


def test_every_domain_is_listed_and_what_is_no_archive_is_passed_over() -> None:
    async def story() -> list[str]:
        world = World(VirtualClock(), size=3)
        for subject in ("gbe.a.x", "gbe.a-b.x", "gbe.a0.x", "gbe.b.x"):
            await world.publish(subject, 1)
        await world.memory.objects.create("archive/a0", b"no archive")
        await world.archiver(pattern="gbe.*.x").drain()
        return [each.name.subject async for each in list_archives(world.memory.objects, "archive", ">")]

    assert run_virtual(story()) == ["gbe.a-b.x", "gbe.a.x", "gbe.a0.x", "gbe.b.x"]
