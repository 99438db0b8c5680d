"""How far archiving is behind: measured while nothing can be written, and told once."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

from faults import Network, Script
from virtual_time import VirtualClock, run_virtual
from wrasse.archives.announce import Lag, LagLimits, LagWatch
from wrasse.archives.archiver import ArchivePorts, Archiver, ArchiverOptions
from wrasse.archives.cursor import CURSORS, Cursors
from wrasse.archives.drain import GROUP
from wrasse.archives.rule import Rule
from wrasse.leases.manager import LeaseManager
from wrasse.streams.alerts import ALERTS

from .scene import ALARMS, CHANGE, LEASES, LOGIN, PATTERN, FaultyObjects, World


def watched(world: World, store: Network, limits: LagLimits) -> Archiver:
    """An archiver whose store is behind a network of its own."""
    memory = world.memory
    lease_manager = LeaseManager(memory.records(LEASES), world.clock)
    ports = ArchivePorts(memory.streams, memory.groups, memory.records(CURSORS), lease_manager, memory.records(ALERTS))
    rule = Rule(PATTERN, FaultyObjects(memory.objects, store), "memory:")
    return Archiver(ports, [rule], world.clock, "one", ArchiverOptions(lag=limits))


def test_the_lag_is_that_of_the_backlog() -> None:
    async def story() -> tuple[Lag, Lag]:
        world, store = World(VirtualClock()), Network(Script({}))
        archiver = watched(world, store, LagLimits())
        async with asyncio.TaskGroup() as group:
            group.create_task(archiver.run())
            store.down = True
            await world.publish(CHANGE, 30)
            await asyncio.sleep(60)
            await world.publish(LOGIN, 12)
            await asyncio.sleep(61)
            behind, store.down = archiver.tally.lag, False
            await asyncio.sleep(120)
            archiver.stop()
        return behind, archiver.tally.lag

    behind, after = run_virtual(story())
    size = behind.bytes / 42
    assert (behind.messages, 100 < behind.seconds <= 125, 50 < size < 500) == (42, True, True)
    assert after == Lag()


def test_a_cursor_that_cannot_be_read_hides_the_lag_of_its_stream_only() -> None:
    async def story() -> Lag:
        world = World(VirtualClock())
        await world.publish(CHANGE, 3)
        await world.publish(LOGIN, 2)
        await world.memory.records(CURSORS).create(CHANGE, b"nonsense")
        cursors = Cursors(world.memory.records(CURSORS))
        return await LagWatch(world.memory.streams, cursors, None, GROUP, LagLimits()).check([CHANGE, LOGIN])

    assert run_virtual(story()).messages == 2


def test_too_much_lag_is_told_once_and_again_after_the_interval_and_anew_when_it_comes_back() -> None:
    async def story() -> list[int]:
        world, store = World(VirtualClock()), Network(Script({}))
        archiver = watched(world, store, LagLimits(messages=20, age=timedelta(hours=9), repeat=timedelta(hours=1)))
        told = []
        async with asyncio.TaskGroup() as group:
            group.create_task(archiver.run())
            store.down = True
            await world.publish(CHANGE, 30)
            await asyncio.sleep(1_800)
            told.append(len(await world.events(ALARMS)))
            await asyncio.sleep(3_600)
            told.append(len(await world.events(ALARMS)))
            store.down = False
            await asyncio.sleep(300)
            store.down = True
            await world.publish(CHANGE, 30)
            await asyncio.sleep(300)
            told.append(len(await world.events(ALARMS)))
            archiver.stop()
        alarm = json.loads((await world.events(ALARMS))[0].payload)
        assert (alarm["stream"], alarm["count"], alarm["source"]) == (CHANGE, 30, "archiver")
        return told

    assert run_virtual(story()) == [1, 2, 3]


def test_one_old_message_is_too_much_lag() -> None:
    async def story() -> int:
        world, store = World(VirtualClock()), Network(Script({}))
        archiver = watched(world, store, LagLimits(age=timedelta(minutes=5)))
        async with asyncio.TaskGroup() as group:
            group.create_task(archiver.run())
            store.down = True
            await world.publish(CHANGE, 1)
            await asyncio.sleep(240)
            assert not await world.events(ALARMS)
            await asyncio.sleep(240)
            archiver.stop(timedelta(0))
        return len(await world.events(ALARMS))

    assert run_virtual(story()) == 1
