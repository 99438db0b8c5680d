"""A failover of Redis to a real replica while an archiver runs. One that has all: it goes on by itself, each message
once. One that lags behind the archives: it is noticed, nothing new is lost, and there is a way on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from archives.archiver_story import keys_of
from cli.command_line import Answer, wrasse
from servers.replica import replicated
from servers.sentinel import watched
from servers.valkey import Valkey
from wrasse.archives.archiver import Archiver
from wrasse.archives.codec import entry_of
from wrasse.archives.drain import GROUP
from wrasse.archives.reader import lines_at
from wrasse.archives.verify import Verified, verify
from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.errors import StoreUnavailable
from wrasse.ports.objects import Objects
from wrasse.ports.streams import START, Streams
from wrasse.runtime.archiver import build_archiver
from wrasse.runtime.backends import Stores
from wrasse.streams.envelope import decode
from wrasse.streams.publisher import Publication, Publisher

CHANGE, ALARMS = "gbe.events.audit.change", "gbe.events.system.error"
ENGINES = {"on the same server": "", "elsewhere": "engine: {backend: 'sqlite:engine.db'}\n"}
WAIT = 60


@dataclass(frozen=True, slots=True)
class Scene:
    """A server that may fail over, and an archiver that runs."""

    streams: Streams
    objects: Objects

    async def publish(self, numbers: range) -> None:
        """Publishes numbers, and again what nobody confirmed, as a server that goes away may do once."""
        messages = [Publication(CHANGE, b"%d" % number) for number in numbers]
        async with asyncio.timeout(WAIT):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await Publisher(self.streams, SystemClock()).publish_many(messages)
                    return
                await asyncio.sleep(0.05)

    async def archived(self) -> Counter[int]:
        """What the archives hold."""
        found: Counter[int] = Counter()
        async for key in keys_of(self.objects):
            async for line in lines_at(self.objects, key):
                found[int(decode(entry_of(line, CHANGE).body).payload)] += 1
        return found

    async def holds(self, count: int) -> Counter[int]:
        """What the archives hold, once it is so many messages."""
        async with asyncio.timeout(WAIT):
            while (found := await self.archived()).total() < count:  # noqa: ASYNC110  # another task's doing
                await asyncio.sleep(0.02)
            return found

    async def alarm(self) -> str:
        """The first alarm that is raised."""
        async with asyncio.timeout(WAIT):
            while not (found := await self.alarms()):  # noqa: ASYNC110  # another task's doing
                await asyncio.sleep(0.02)
            return found[0]

    async def alarms(self) -> list[str]:
        try:
            return [decode(entry.body).payload.decode() for entry in await self.streams.read(ALARMS, START, 10)]
        except StoreUnavailable:
            return []

    async def kept(self) -> list[int]:
        """What the stream still holds after a trim that never waits."""
        await self.streams.trim(CHANGE, age=timedelta(0), below=None, protect=[GROUP], limit=1_000)
        return [int(decode(entry.body).payload) for entry in await self.streams.read(CHANGE, START, 1_000)]

    async def verified(self) -> list[Verified]:
        return [each async for each in verify(self.objects, "archive", ">", group=GROUP, streams=self.streams)]


@contextlib.asynccontextmanager
async def archiving(place: Path, url: str, engine: str) -> AsyncIterator[Scene]:
    """Streams on this server; cursors and leases there as well, or elsewhere."""
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{url}', objects: 'file:wrasse-data'}}\n{ENGINES[engine]}"
        "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 10, batch_timeout: 50ms}]}\n"
    )
    stores = Stores(SystemClock())
    try:
        archiver = await build_archiver(load(), stores, SystemClock(), "one")
        backend = await stores.open_streams(url)
        async with running(archiver), asyncio.timeout(3 * WAIT):
            yield Scene(backend.streams, archiver._rules[0].objects)
    finally:
        await stores.close()


@contextlib.asynccontextmanager
async def running(archiver: Archiver) -> AsyncIterator[None]:
    archiver._poll = 0.02  # the tests are short of time
    async with asyncio.TaskGroup() as group:
        group.create_task(archiver.run())
        try:
            yield
        finally:
            archiver.stop(timedelta(seconds=1))


async def typed(*args: str) -> Answer:
    return await asyncio.to_thread(wrasse, *args)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_replica_behind_the_archives_stops_them_until_a_new_epoch_begins(place: Path, engine: str) -> None:
    async with replicated() as pair, archiving(place, pair.url, engine) as scene:
        await scene.publish(range(12))
        await scene.holds(12)
        await pair.in_step()
        pair.part()
        await scene.publish(range(12, 20))
        await scene.holds(20)
        await pair.fail_over()
        await scene.publish(range(100, 120))

        assert "was set back" in await scene.alarm()
        assert Counter(await scene.kept()) & Counter(range(100, 120)) == Counter(range(100, 120))
        assert await scene.archived() == Counter(range(20))
        planned = (await typed("archives", "restart", CHANGE, "--dry-run", "--json")).json
        assert (planned["epoch"], planned["new"], planned["gone"]) == (2, 20, 8)
        gone_on = await typed("archives", "restart", CHANGE, "--yes")
        assert gone_on.code == 0, gone_on.err
        assert await scene.holds(40) == Counter([*range(20), *range(100, 120)])
        assert [(each.epoch, each.problems) for each in await scene.verified()] == [(1, ()), (2, ())]


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_replica_that_has_all_goes_on_by_itself_with_each_message_once(place: Path, engine: str) -> None:
    async with replicated() as pair, archiving(place, pair.url, engine) as scene:
        await scene.publish(range(12))
        await scene.holds(12)
        await scene.publish(range(12, 50))  # some of it is archived when the server dies
        await pair.in_step()
        await pair.fail_over()
        await scene.publish(range(50, 60))

        assert await scene.holds(60) == Counter(range(60))
        assert [(each.epoch, each.problems) for each in await scene.verified()] == [(1, ())]
        assert await scene.alarms() == []


async def demoted(server: Valkey) -> None:
    """Waits until this server is a replica."""
    with redis.Redis(port=server.port) as client:
        async with asyncio.timeout(WAIT):
            while (await asyncio.to_thread(client.info, "replication"))["role"] != "slave":  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.mark.full
async def test_a_failover_that_a_sentinel_decides_goes_on_by_itself_with_each_message_once(place: Path) -> None:
    with watched() as servers:
        async with archiving(place, servers.url, "on the same server") as scene:
            await scene.publish(range(30))
            await scene.holds(30)
            await asyncio.to_thread(servers.fail_over)
            await demoted(servers.first)  # until then it takes messages that it will lose
            await scene.publish(range(30, 50))

            assert await scene.holds(50) == Counter(range(50))
            assert [(each.epoch, each.problems) for each in await scene.verified()] == [(1, ())]
