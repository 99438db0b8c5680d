"""Reading back in order, and proof that nothing is missing, twice or damaged."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from virtual_time import START as BEGAN, VirtualClock, run_virtual
from wrasse.archives.codec import entry_of, line_of
from wrasse.archives.drain import GROUP
from wrasse.archives.reader import lines_at, read
from wrasse.archives.rule import Rule
from wrasse.archives.verify import verify, without
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import StoreBroken
from wrasse.ports.objects import NO_METADATA, ObjectDelete, ObjectInfo
from wrasse.ports.streams import Entry, EntryId

from .scene import CHANGE, LOGIN, PATTERN, World

Spoil = Callable[[World, ObjectInfo], Awaitable[object]]


async def archived_world(*, per_archive: int = 1, entries: int = 12) -> World:
    """A stream of twelve, all within one millisecond, so that keys do not sort as their numbers do."""
    world = World(VirtualClock(), size=per_archive)
    await world.publish(CHANGE, entries)
    await world.archiver().drain()
    return world


async def numbers(world: World, pattern: str = ">", **bounds: timedelta) -> list[int]:
    when = {name: BEGAN + after for name, after in bounds.items()}
    found = read(world.memory.objects, "archive", pattern, since=when.get("since"), until=when.get("until"))
    return [archived.entry.id.seq async for archived in found]


def test_messages_come_in_the_order_of_their_stream() -> None:
    async def story() -> list[int]:
        return await numbers(await archived_world())

    assert run_virtual(story()) == list(range(1, 13))


def test_messages_are_found_by_time_and_by_subject() -> None:
    async def story() -> list[list[int]]:
        world = World(VirtualClock(), size=2)
        for _ in range(6):
            await world.publish(CHANGE, 1)
            await world.publish(LOGIN, 1)
            await asyncio.sleep(10)
        await world.archiver().drain()
        hour = timedelta(hours=1)
        return [
            await numbers(world, CHANGE, since=timedelta(seconds=10), until=timedelta(seconds=40)),
            await numbers(world, LOGIN, since=timedelta(seconds=45)),
            await numbers(world, CHANGE, since=hour),
            await numbers(world, "gbe.events.audit.none"),
        ]

    assert run_virtual(story()) == [[2, 3, 4], [6], [], []]


async def remove(world: World, info: ObjectInfo) -> None:
    await world.memory.objects.delete([ObjectDelete(info.key, info.version)])


async def change(world: World, info: ObjectInfo, edit: Callable[[bytes], bytes], metadata: bool = True) -> None:
    objects = world.memory.objects
    head = await objects.head(info.key)
    assert head is not None
    data = b"".join([chunk async for chunk in objects.read(info.key)])
    kept = head.metadata if metadata else NO_METADATA
    await objects.replace(info.key, edit(data), at=info.version, metadata=kept)


async def cut(world: World, info: ObjectInfo) -> None:
    await change(world, info, lambda data: data[:-9])


async def damage(world: World, info: ObjectInfo) -> None:
    """The first byte after the gzip header names a block type that does not exist, whatever the messages are."""
    await change(world, info, lambda data: data[:10] + b"\xff" + data[11:])


async def lengthen(world: World, info: ObjectInfo) -> None:
    await change(world, info, lambda data: data + b"more")


async def swap(world: World, info: ObjectInfo) -> None:
    """Puts another archive's bytes there."""
    first = (await world.memory.objects.page("", None, 1)).items[0]
    other = b"".join([chunk async for chunk in world.memory.objects.read(first.key)])
    await change(world, info, lambda _: other)


async def problems_after(spoil: Spoil, number: int) -> list[str]:
    world = await archived_world(per_archive=3)
    await spoil(world, (await world.memory.objects.page("", None, 100)).items[number])
    return [problem.what for each in await world.verified() for problem in each.problems]


@pytest.mark.parametrize(
    ("spoil", "number", "said"),
    [
        (remove, 0, "what came up to 1767225600000-3 is in no archive"),
        (remove, 1, "an archive is missing before it"),
        (remove, -1, "an archive is missing at the end"),
        (cut, 1, "does not end where it should"),
        (damage, 1, "its bytes are damaged"),
        (lengthen, 1, "does not end where it should"),
        (swap, 1, "not in order"),
    ],
)
def test_what_is_missing_or_damaged_is_found(spoil: Spoil, number: int, said: str) -> None:
    # The keys of one millisecond do not sort as their numbers do: 0, 3, 6, 9 do.
    found = run_virtual(problems_after(spoil, number))
    assert said in found[0]


def test_what_is_damaged_is_told_once_and_not_of_others() -> None:
    assert run_virtual(problems_after(damage, 1)) == ["line 1: its bytes are damaged"]


def test_a_line_that_is_none_names_its_archive() -> None:
    async def story() -> list[int]:
        world = await archived_world(per_archive=3)
        third = (await world.memory.objects.page("", None, 100)).items[2]
        await change(world, third, lambda _: gzip.compress(b"hello\n"))
        return await numbers(world)

    with pytest.raises(StoreBroken, match=r"-6\.jsonl\.gz' is broken: line 1: it is not a line of an archive"):
        run_virtual(story())


def test_a_stream_that_has_lost_all_of_its_archives_is_found() -> None:
    async def story() -> list[str]:
        world = await archived_world()
        await world.publish(LOGIN, 1)  # not archived yet, and nothing to complain about
        for info in (await world.memory.objects.page("", None, 100)).items:
            await remove(world, info)
        rule = Rule(PATTERN, world.memory.objects, "memory:")
        found = without(world.memory.streams, rule, ">", group=GROUP, known=())
        return [f"{each.subject}: {problem.what}" async for each in found for problem in each.problems]

    assert run_virtual(story()) == [f"{CHANGE}: it has no archive, and the group 'archiver' is at 1767225600000-12"]


def test_archives_that_were_deleted_on_purpose_may_be_left_out() -> None:
    async def story() -> list[tuple[bool, int]]:
        world = World(VirtualClock(), size=2)
        for _ in range(3):
            await world.publish(CHANGE, 2)
            await world.archiver().drain()
            await asyncio.sleep(timedelta(days=1).total_seconds())
        await remove(world, (await world.memory.objects.page("", None, 1)).items[0])
        return [
            (each.whole, each.archives)
            for since in (None, BEGAN + timedelta(days=1), BEGAN + timedelta(days=2))
            async for each in verify(
                world.memory.objects, "archive", ">", group=GROUP, streams=world.memory.streams, since=since
            )
        ]

    assert run_virtual(story()) == [(False, 2), (True, 2), (True, 1)]


def test_an_archive_that_was_written_twice_is_found() -> None:
    async def twice(world: World, info: ObjectInfo) -> None:
        data = b"".join([chunk async for chunk in world.memory.objects.read(info.key)])
        await world.memory.objects.create(info.key.replace("2026/01/01", "2026/01/02"), data)

    assert any("overlaps" in what for what in run_virtual(problems_after(twice, 1)))


def test_an_archive_that_lies_about_itself_is_found() -> None:
    async def lie(world: World, info: ObjectInfo) -> None:
        head = await world.memory.objects.head(info.key)
        assert head is not None
        data = b"".join([chunk async for chunk in world.memory.objects.read(info.key)])
        told = {**head.metadata, "count": "7"}
        await world.memory.objects.replace(info.key, data, at=info.version, metadata=told)

    assert run_virtual(problems_after(lie, 1))[0] == "its metadata does not match its bytes"


def test_a_copy_that_lost_its_metadata_is_whole_and_can_be_gone_on_from() -> None:
    async def story() -> str:
        world = await archived_world(per_archive=3)
        for info in (await world.memory.objects.page("", None, 100)).items:
            await change(world, info, lambda data: data, metadata=False)
        await world.publish(CHANGE, 2)
        await world.archiver().drain()
        return await world.broken()

    assert run_virtual(story()) == ""


def test_a_damaged_archive_is_an_error_and_never_a_shorter_answer() -> None:
    async def story() -> list[int]:
        world = await archived_world(per_archive=3)
        await cut(world, (await world.memory.objects.page("", None, 100)).items[1])
        return await numbers(world)

    with pytest.raises(StoreBroken, match="broken"):
        run_virtual(story())


@pytest.mark.parametrize("codec", [".jsonl.gz", ".jsonl"])
async def test_an_entry_of_any_size_that_is_archived_is_read_back(codec: str) -> None:
    """Other programs' entries may be larger than ours: a line holds them in base64."""
    entries = [Entry(EntryId(5, n), CHANGE, os.urandom(24 << 20) if n == 2 else b"x") for n in range(1, 4)]
    lines = b"".join(map(line_of, entries))
    objects = Memory(ManualClock()).objects
    await objects.create(f"a{codec}", gzip.compress(lines, 1) if codec.endswith("gz") else lines)
    assert [entry_of(line, CHANGE) async for line in lines_at(objects, f"a{codec}")] == entries
