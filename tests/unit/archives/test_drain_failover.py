"""A failover in the middle of archiving: what was read from a server that is gone is never taken for what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from virtual_time import VirtualClock, run_virtual
from wrasse.archives.archiver import ArchivePorts, Archiver
from wrasse.archives.cursor import CURSORS, Cursors
from wrasse.archives.drain import GROUP, Drain, Stepped
from wrasse.archives.restart import plan_restart, restart
from wrasse.archives.rule import Rule
from wrasse.errors import Refused, StoreUnavailable
from wrasse.leases.manager import LeaseManager
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import START, Draft, Entry, EntryChunk, EntryId, StreamState

from .scene import ALARMS, CHANGE, LEASES, PATTERN, FaultyStreams, Network, Script, World, envelope

ARCHIVED = 4  # before it happens


class Failover(FaultyStreams):
    """Streams on a server that another may take the place of: before a read, or after any number of looks."""

    def __init__(self, world: World) -> None:
        super().__init__(world.memory.streams, Network(Script({})))
        self.history = "one"
        self.looks = 0
        self.before_read: Callable[[], Awaitable[None]] | None = None
        self.after_looks: tuple[int, Callable[[], Awaitable[None]]] | None = None

    async def info(self, subject: str) -> StreamState | None:
        state = await super().info(subject)
        shown = None if state is None else replace(state, history=self.history)
        self.looks += 1
        if self.after_looks is not None and self.looks == self.after_looks[0]:
            await self.after_looks[1]()
        return shown

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        if self.before_read is not None:
            then, self.before_read = self.before_read, None
            await then()
        return await self._streams.chunk(subject, after, limit)


class Scene:
    """A stream of which some is archived and more is there, and an archiver of it."""

    def __init__(self) -> None:
        self.world = World(VirtualClock(), size=100)
        self.memory = self.world.memory
        self.streams = Failover(self.world)
        self.cursors = Cursors(self.memory.records(CURSORS))
        self.rule = Rule(PATTERN, self.memory.objects, "memory:")
        lease_manager = LeaseManager(self.memory.records(LEASES), self.world.clock)
        ports = ArchivePorts(self.streams, self.memory.groups, self.memory.records(CURSORS), lease_manager)
        self.archiver = Archiver(ports, [self.rule], self.world.clock, "one")
        self.drain = Drain(CHANGE, self.rule, self.archiver._tools)

    async def begun(self) -> Scene:
        await self.world.publish(CHANGE, ARCHIVED)
        await self.drain.step(flush=True)
        await self.world.publish(CHANGE, 3)
        return self

    async def set_back(self, kept: int = ARCHIVED + 1, new: int = 4) -> None:
        """Another server that has only the first of them, and gives the ids of the others to new ones."""
        old = self.world.published[:kept]
        self.memory.streams._logs._logs.pop(CHANGE)
        self.memory.streams._logs.names.remove(CHANGE)
        await self.memory.streams.append([Draft(CHANGE, entry.body) for entry in old])
        await self.memory.groups.join(CHANGE, GROUP, StartAt(first=True))
        await self.memory.groups.mark(CHANGE, GROUP, old[min(kept, ARCHIVED) - 1].id)
        await self.memory.streams.append([Draft(CHANGE, envelope(payload=b"new %d" % each)) for each in range(new)])
        self.streams.history = "two"

    async def missing(self) -> list[Entry]:
        """What the stream holds and no archive does."""
        archived = {(entry.id, entry.body) for entry in await self.world.archived()}
        there = (await self.memory.streams.read(CHANGE, START, 1_000)).items
        return [entry for entry in there if (entry.id, entry.body) not in archived]

    async def trimmable(self) -> list[EntryId]:
        """What a trim may take although no archive holds it."""
        state = await self.memory.streams.info(CHANGE)
        floor = START if state is None else next(each.floor for each in state.groups if each.name == GROUP)
        return [entry.id for entry in await self.missing() if entry.id <= floor]


def test_what_was_collected_from_a_server_that_is_gone_is_read_again() -> None:
    async def story() -> tuple[Stepped, list[Entry]]:
        scene = await Scene().begun()
        waited = await scene.drain.step()
        await scene.set_back()
        while await scene.drain.step(flush=True) is Stepped.MOVED:
            pass
        return waited, await scene.missing()

    assert run_virtual(story()) == (Stepped.WAITING, [])


def test_what_was_read_from_two_servers_is_read_again() -> None:
    async def story() -> list[Entry]:
        scene = await Scene().begun()
        await scene.drain.step()
        await scene.world.publish(CHANGE, 1)
        scene.streams.before_read = scene.set_back
        while await scene.drain.step(flush=True) is not Stepped.IDLE:
            pass
        return await scene.missing()

    assert run_virtual(story()) == []


def test_a_group_of_a_server_that_came_meanwhile_is_not_marked() -> None:
    async def story() -> list[EntryId]:
        scene = await Scene().begun()
        scene.streams.after_looks = (
            scene.streams.looks + 2,
            scene.set_back,
        )  # those of the step and of the archive
        await scene.drain.step(flush=True)
        return await scene.trimmable()

    assert run_virtual(story()) == []


async def lost_with_its_cursor(scene: Scene) -> None:
    """A failover that took the cursor back as well, behind an archive that is stored."""
    records = scene.memory.records(CURSORS)
    before = await records.get(CHANGE)
    await scene.drain.step(flush=True)
    now = await records.get(CHANGE)
    assert before is not None
    assert now is not None
    await records.put(CHANGE, before.value, at=now.version)
    await scene.set_back()
    scene.drain.forget()


def test_an_archive_of_a_past_that_is_gone_is_not_taken_for_what_is_there() -> None:
    async def story() -> list[EntryId]:
        scene = await Scene().begun()
        await lost_with_its_cursor(scene)
        with pytest.raises(Refused, match="has other entries"):
            await scene.drain.step(flush=True)
        return await scene.trimmable()

    assert run_virtual(story()) == []


def test_after_such_a_failover_a_new_epoch_archives_what_is_new() -> None:
    async def story() -> list[Entry]:
        scene = await Scene().begun()
        await lost_with_its_cursor(scene)
        await restart(scene.cursors, await plan_restart(scene.streams, scene.cursors, scene.rule, CHANGE, GROUP))
        while await scene.drain.step(flush=True) is Stepped.MOVED:
            pass
        return await scene.missing()

    assert run_virtual(story()) == []


async def stored_but_not_committed(scene: Scene) -> None:
    """An archive that its writer could not commit."""
    records = scene.memory.records(CURSORS)
    before = await records.get(CHANGE)
    assert before is not None
    await scene.drain.step(flush=True)
    now = await records.get(CHANGE)
    assert now is not None
    await records.put(CHANGE, before.value, at=now.version)
    scene.drain.forget()


async def lost_and_trimmed(scene: Scene) -> None:
    """A failover that took back cursor and stream, to just what was archived first; all of that is trimmed, and what
    comes then is younger than what was lost."""
    await stored_but_not_committed(scene)
    await scene.set_back(kept=ARCHIVED, new=0)
    await asyncio.sleep(60)
    await scene.world.trim()
    await scene.memory.streams.append([Draft(CHANGE, envelope(payload=b"new"))] * 9)


def test_an_archive_that_the_stream_never_held_is_not_taken_for_one_that_was_trimmed() -> None:
    async def story() -> list[EntryId]:
        scene = await Scene().begun()
        await lost_and_trimmed(scene)
        with pytest.raises(Refused, match="has other entries"):
            await scene.drain.step(flush=True)
        return await scene.trimmable()

    assert run_virtual(story()) == []


def test_what_was_lost_is_counted_also_where_all_before_it_is_trimmed() -> None:
    async def story() -> tuple[int, int]:
        scene = await Scene().begun()
        await lost_and_trimmed(scene)
        planned = await plan_restart(scene.streams, scene.cursors, scene.rule, CHANGE, GROUP)
        return planned.new, planned.gone

    assert run_virtual(story()) == (9, 3)


def test_what_somebody_else_trimmed_from_the_front_makes_nothing_new() -> None:
    async def story() -> int:
        scene = await Scene().begun()
        await scene.drain.step(flush=True)
        await scene.set_back(kept=ARCHIVED + 2, new=4)
        last_but_one = scene.world.published[ARCHIVED + 1].id
        await scene.memory.streams.trim(CHANGE, age=None, below=last_but_one, protect=[], limit=100)
        return (await plan_restart(scene.streams, scene.cursors, scene.rule, CHANGE, GROUP)).new

    assert run_virtual(story()) == 4


def test_an_archive_whose_messages_somebody_trimmed_before_it_was_committed_counts() -> None:
    async def story() -> str:
        scene = await Scene().begun()
        await stored_but_not_committed(scene)
        await scene.set_back(kept=len(scene.world.published), new=0)  # nothing but the group
        scene.streams.history = "one"
        await scene.world.publish(CHANGE, 2)
        first_new = scene.world.published[-2].id
        await scene.memory.streams.trim(CHANGE, age=None, below=first_new, protect=[], limit=100)
        while await scene.drain.step(flush=True) is Stepped.MOVED:
            pass
        return await scene.world.broken()

    assert run_virtual(story()) == ""


def test_while_it_cannot_be_told_which_server_answers_nothing_moves() -> None:
    async def story() -> None:
        scene = await Scene().begun()
        scene.streams.history = ""
        with pytest.raises(StoreUnavailable, match="which server"):
            await scene.drain.step(flush=True)

    run_virtual(story())


def test_what_others_acked_in_the_group_is_archived_all_the_same_and_told_once() -> None:
    async def story() -> tuple[str, int]:
        scene = await Scene().begun()
        groups = scene.memory.groups
        for _ in range(2):
            taken = await groups.deliver([CHANGE], GROUP, "other", 2, ack_timeout=scene.archiver._leases._ttl)
            await groups.answer([Ack(CHANGE, GROUP, each.entry.id) for each in taken])
            await scene.drain.step()
        while await scene.drain.step(flush=True) is Stepped.MOVED:
            pass
        return await scene.world.broken(), len(await scene.world.events(ALARMS))

    assert run_virtual(story()) == ("", 1)


def test_a_stream_that_was_lost_with_group_and_cursor_is_not_taken_for_the_archived_one() -> None:
    async def story() -> list[Entry]:
        scene = await Scene().begun()
        records = scene.memory.records(CURSORS)
        before = await records.get(CHANGE)
        assert before is not None
        await records.delete(CHANGE, at=before.version)
        scene.memory.streams._logs._logs.pop(CHANGE)
        scene.memory.streams._logs.names.remove(CHANGE)
        await scene.memory.streams.append([Draft(CHANGE, envelope(payload=b"new %d" % each)) for each in range(9)])
        scene.drain.forget()
        with pytest.raises(Refused, match="set back"):
            await scene.drain.step(flush=True)
        await restart(scene.cursors, await plan_restart(scene.streams, scene.cursors, scene.rule, CHANGE, GROUP))
        while await scene.drain.step(flush=True) is Stepped.MOVED:
            pass
        return await scene.missing()

    assert run_virtual(story()) == []
