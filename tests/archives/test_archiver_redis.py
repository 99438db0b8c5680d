"""The archiver on Redis: progress that everybody sees, other programs' entries, cuts and delays on every way, and a
server that was restored from a backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from archives.archiver_story import Pairs, archived_ids
from archives.test_archiver_kills import pairs
from cli.command_line import wrasse
from servers.nats import Nats
from servers.proxy import Proxy
from servers.seaweed import S3
from servers.valkey import Valkey, valkey
from wrasse.archives.archiver import ArchivePorts, Archiver, ArchiverOptions
from wrasse.archives.batch import BatchLimits
from wrasse.archives.cursor import CURSORS, StreamLeases
from wrasse.archives.drain import GROUP
from wrasse.archives.rule import Rule
from wrasse.archives.verify import Verified, verify
from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.errors import Refused
from wrasse.leases.core import leases_in
from wrasse.leases.manager import LeaseManager
from wrasse.ports.backend import Backend
from wrasse.ports.objects import Objects
from wrasse.runtime.archiver import build_archiver, open_ports
from wrasse.runtime.backends import Stores
from wrasse.streams.publisher import Publication, Publisher

CHANGE = "gbe.events.audit.change"
KEY = "gbe:events:audit:change"
pairs = pairs


@dataclass(frozen=True, slots=True)
class Scene:
    """Streams on one backend, archives in another."""

    backend: Backend
    objects: Objects

    def archiver(self, size: int = 7, lease: timedelta = timedelta(milliseconds=30)) -> Archiver:
        clock = SystemClock()
        lease_manager = LeaseManager(self.backend.records(leases_in(".wrasse")), clock)
        ports = ArchivePorts(self.backend.streams, self.backend.groups, self.backend.records(CURSORS), lease_manager)
        limits = BatchLimits(size, timeout=timedelta(milliseconds=200))
        rule = Rule("gbe.events.audit.*", self.objects, "there", limits=limits)
        return Archiver(ports, [rule], clock, "one", ArchiverOptions(timedelta(milliseconds=10), lease))

    async def publish(self, count: int) -> list[str]:
        messages = [Publication(CHANGE, b"%d" % number) for number in range(count)]
        return list(await Publisher(self.backend.streams, SystemClock()).publish_many(messages))

    async def holds(self, count: int) -> None:
        """Waits until so many messages are archived."""
        while sum(each.messages for each in await self.verified()) < count:  # noqa: ASYNC110  # another process's doing
            await asyncio.sleep(0.05)

    async def verified(self) -> list[Verified]:
        found = verify(self.objects, "archive", ">", group=GROUP, streams=self.backend.streams)
        return [each async for each in found]


@contextlib.asynccontextmanager
async def opened(transport: str, objects: str) -> AsyncIterator[Scene]:
    stores = Stores(SystemClock())
    try:
        yield Scene(await stores.open_streams(transport), await stores.open_objects(objects))
    finally:
        await stores.close()


async def test_the_group_shows_how_many_entries_are_archived(pairs: Pairs) -> None:
    pair = await pairs.make("redis", "directory")
    async with opened(pair.transport, pair.objects) as scene:
        await scene.publish(20)
        await scene.archiver().drain()
        await scene.publish(5)
    with redis.Redis.from_url(pairs.redis.url) as client:
        (group,) = client.xinfo_groups(f"{pairs.prefix}:{KEY}")
    assert (group["name"], group["entries-read"], group["lag"], group["pending"]) == (b"archiver", 20, 5, 0)


async def test_a_cursor_says_which_server_it_is_about(pairs: Pairs) -> None:
    pair = await pairs.make("redis", "directory")
    async with opened(pair.transport, pair.objects) as scene:
        await scene.publish(3)
        records = scene.backend.records(CURSORS)
        await records.create(CHANGE, b'{"after":"0-0","passed":0}')  # as it was before servers were told apart
        await scene.archiver().drain()
        with redis.Redis.from_url(pairs.redis.url) as client:
            run = client.info("server")["run_id"]
        record = await records.get(CHANGE)
    assert record is not None
    assert json.loads(record.value)["history"].split()[0] == run


async def test_entries_of_other_programs_are_archived_whole_and_marked(pairs: Pairs) -> None:
    pair = await pairs.make("redis", "directory")
    async with opened(pair.transport, pair.objects) as scene:
        await scene.publish(3)
        with redis.Redis.from_url(pairs.redis.url) as client:
            for fields in ({"a": b"\xff", "b": "2"}, {"envelope": "{}"}, {"envelope": b"\x80", "more": "x"}):
                client.xadd(f"{pairs.prefix}:{KEY}", fields)  # type: ignore[arg-type]
        await scene.publish(1)
        assert await scene.archiver(size=100).drain() == 7
        (chain,) = await scene.verified()
        with redis.Redis.from_url(pairs.redis.url) as client:
            (group,) = client.xinfo_groups(f"{pairs.prefix}:{KEY}")
    assert (chain.messages, chain.marked, chain.problems) == (7, 3, ())
    assert (group["entries-read"], group["lag"]) == (7, 0)


@dataclass(slots=True)
class _Trouble:
    """What goes on between us and a server while messages are archived."""

    proxy: Proxy

    async def make(self, times: int, scene: Scene) -> list[str]:
        """Cuts so many times what is being archived; gives what was published meanwhile."""
        published = []
        for number in range(times):
            published += await scene.publish(20)
            self.proxy.delay = 0.02 * (number % 2)
            self.proxy.deaf, dropped = number % 3 == 0, self.proxy.replies_dropped
            await asyncio.sleep(0.05)
            while self.proxy.deaf and self.proxy.replies_dropped == dropped:  # noqa: ASYNC110  # another task's doing
                await asyncio.sleep(0.01)
            self.proxy.cut()
        self.proxy.delay, self.proxy.deaf = 0.0, False
        return published


@pytest.mark.parametrize("between", ["redis", "s3", "nats"])
async def test_cuts_delays_and_lost_replies_lose_nothing_and_double_nothing(
    pairs: Pairs, request: pytest.FixtureRequest, between: str
) -> None:
    pair = await pairs.make("redis" if between == "s3" else between, "s3" if between == "s3" else "directory")
    fixtures = {"redis": "redis_server", "s3": "s3", "nats": "nats_server"}
    server: S3 | Valkey | Nats = request.getfixturevalue(fixtures[between])
    port = int(server.endpoint.rsplit(":", 1)[1]) if isinstance(server, S3) else server.port
    proxy = Proxy(port)
    await proxy.start()
    behind = (pair.objects if between == "s3" else pair.transport).replace(f":{port}", f":{proxy.port}")
    ways = (pair.transport, behind) if between == "s3" else (behind, pair.objects)
    try:
        async with opened(pair.transport, pair.objects) as plain, opened(*ways) as scene:
            archiver = scene.archiver()
            async with asyncio.TaskGroup() as group, asyncio.timeout(100):
                group.create_task(archiver.run())
                published = await _Trouble(proxy).make(12, plain)
                published += await plain.publish(7)
                await plain.holds(len(published))
                archiver.stop()
            assert await archived_ids(plain.objects) == Counter(published)
            assert [each.problems for each in await plain.verified()] == [()]
    finally:
        await proxy.close()


def test_a_restored_server_is_noticed_and_gone_on_from(place: Path) -> None:
    """Archived, set back to a backup, grown past the archives again: stopped with an alarm, then a new epoch."""
    with valkey() as server:
        # Cursors are on another server, as they are where only the streams' server fails over.
        (place / "wrasse.yaml").write_text(
            f"backends: {{streams: '{server.url}', objects: 'file:wrasse-data'}}\n"
            "engine: {backend: 'sqlite:engine.db'}\n"
            "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 10}]}\n"
        )
        wrasse_publish(range(12))
        with redis.Redis.from_url(server.url) as client:
            client.save()
        shutil.copy(server.place / "dump.rdb", place / "backup.rdb")
        wrasse_publish(range(12, 20))
        asyncio.run(drained())
        server.kill()
        shutil.copy(place / "backup.rdb", server.place / "dump.rdb")
        server.start()
        wrasse_publish(range(100, 120))
        stopped = asyncio.run(drained())
        assert "was set back" in stopped
        with redis.Redis.from_url(server.url) as client:
            assert client.xlen(KEY) == 32
        planned = wrasse("archives", "restart", CHANGE, "--dry-run", "--json").json
        assert (planned["epoch"], planned["new"], planned["gone"]) == (2, 20, 8)
        assert wrasse("archives", "restart", CHANGE).code != 0
        asyncio.run(held_by_somebody())
        begun = wrasse("archives", "restart", CHANGE, "--yes")
        assert (begun.code, "waiting for an archiver" in begun.err) == (0, True)
        assert asyncio.run(drained()) == ""
        assert read_numbers() == Counter([*range(20), *range(100, 120)])
        verified = wrasse("archives", "verify", "--json")
        assert (verified.code, [each["epoch"] for each in verified.json["streams"]]) == (0, [1, 2])


def wrasse_publish(numbers: range) -> None:
    lines = b"".join(b"%d\n" % number for number in numbers)
    answer = wrasse("streams", "publish", CHANGE, "--lines", "--file=-", stdin=lines)
    assert answer.code == 0, answer.err


def read_numbers() -> Counter[int]:
    """What the archives hold."""
    read = [json.loads(line) for line in wrasse("archives", "read", CHANGE, "--json").out.splitlines()]
    return Counter(int(each["payload"]) for each in read)


async def held_by_somebody() -> None:
    """An archiver dies while it has the stream."""
    stores = Stores(SystemClock())
    try:
        ports = await open_ports(load(), stores, SystemClock())
        assert await StreamLeases(ports.lease_manager, "somebody", SystemClock(), timedelta(seconds=1)).acquire(CHANGE)
    finally:
        await stores.close()


async def drained() -> str:
    """Archives all there is with a fresh archiver; what stopped it."""
    stores = Stores(SystemClock())
    try:
        archiver = await build_archiver(load(), stores, SystemClock(), "one")
        await archiver.drain()
        return ""
    except Refused as why:
        return why.message
    finally:
        await stores.close()
