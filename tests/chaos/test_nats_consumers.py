"""Consumers of a group on NATS that are killed and frozen, also while servers die: every message is handled at least
once, poison ends as a dead letter, and nothing is trimmed that was not acked."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.nats_consumer_actor import ACK_TIMEOUT, G, S
from servers.nats import nats, nats_cluster
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.message_codec import stream_name
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.groups import StartAt
from wrasse.ports.streams import START
from wrasse.streams.delivery import envelope_in
from wrasse.streams.publisher import Publication, Publisher

ACTOR = Path(__file__).with_name("nats_consumer_actor.py")
DEAD = "gbe._deadletter.events"
MEMBERS, POISON = 3, 4
PATIENCE = 120.0


class Crew:
    """The consumers, and what they wrote."""

    def __init__(self, folder: Path, url: str, replicas: int) -> None:
        self._file = folder / "handled"
        self._file.touch()
        self._argv = [sys.executable, str(ACTOR), url, str(replicas), str(self._file)]
        self._members: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        self._members.append(await asyncio.create_subprocess_exec(*self._argv))

    async def blow(self, chance: random.Random) -> None:
        """Kills one and starts another, or freezes one for longer than the ack time-out."""
        member = chance.choice(self._members)
        if chance.random() < 0.5:
            member.kill()
            await member.wait()
            self._members.remove(member)
            await self.start()
        else:
            member.send_signal(signal.SIGSTOP)
            await asyncio.sleep(ACK_TIMEOUT.total_seconds() * chance.uniform(0.2, 1.4))
            member.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        for member in self._members:
            with suppress(ProcessLookupError):
                member.kill()
            await member.wait()

    @property
    def handled(self) -> Counter[bytes]:
        return Counter(self._file.read_bytes().split())


@asynccontextmanager
async def crew_on(folder: Path, url: str, replicas: int) -> AsyncIterator[tuple[Crew, Nats]]:
    store = await Nats.open(replace(NatsOptions.of(url), replicas=replicas))
    await store.groups.join(S, G, StartAt(first=True), ack_timeout=ACK_TIMEOUT)
    crew = Crew(folder, url, replicas)
    try:
        for _ in range(MEMBERS):
            await crew.start()
        yield crew, store
    finally:
        await crew.end()
        await store.close()


async def survived(
    folder: Path, url: str, *, count: int, blows: int, replicas: int = 1, also: Callable[[int], None] = lambda n: None
) -> str:
    seed = random.getrandbits(32)  # from the seed of the run
    chance = random.Random(seed)
    async with crew_on(folder, url, replicas) as (crew, store), asyncio.timeout(PATIENCE + blows * 4):
        published: set[bytes] = set()
        trimmed = 0

        async def publish() -> None:
            publisher = Publisher(store.streams, SystemClock())
            for n in range(count):
                name = b"poison%d" % n if n % (count // POISON) == 0 else b"m%d" % n
                try:
                    await publisher.publish_many([Publication(S, name)])
                    published.add(name)
                except StoreUnavailable:
                    await asyncio.sleep(0.2)
                await asyncio.sleep(blows * 0.5 / count)

        async def trim() -> None:
            nonlocal trimmed
            while True:
                with suppress(StoreUnavailable):
                    done = await store.streams.trim(S, age=None, below=None, protect=(G,), limit=1_000)
                    trimmed += done.count
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as tasks:
            trimming = tasks.create_task(trim())
            publishing = tasks.create_task(publish())
            for n in range(blows):
                await asyncio.sleep(chance.uniform(0.1, 0.8))
                also(n)
                await crew.blow(chance)
            await publishing
            await _drained(store)
            trimming.cancel()
        letters = [envelope_in(entry).payload for entry in (await store.streams.read(DEAD, START, 1_000)).items]
        handled = crew.handled
    poison = {name for name in published if name.startswith(b"poison")}
    assert published - poison <= set(handled), "a message was lost"
    assert poison <= set(letters), "poison without a dead letter"
    return f"seed {seed}: {len(published)} messages, {handled.total() - len(handled)} again, {trimmed} trimmed"


async def _drained(store: Nats) -> None:
    """Waits until the group has acked everything."""
    while True:
        with suppress(StoreUnavailable):
            state = await store.streams.info(S)
            assert state is not None
            (group,) = state.groups
            if not group.pending and not group.lag:
                return
        await asyncio.sleep(0.2)


@pytest.mark.timeout(240)
async def test_consumers_that_are_killed_and_frozen_lose_nothing(tmp_path: Path) -> None:
    with nats() as server:
        print(await survived(tmp_path, server.url, count=200, blows=6))
        assert server.pid


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_many_consumers_killed_and_a_server_restarted_lose_nothing(tmp_path: Path) -> None:
    with nats() as server:

        def restart(n: int) -> None:
            if n % 8 == 5:
                server.kill()
                server.start()

        print(await survived(tmp_path, server.url, count=1_500, blows=40, also=restart))
        assert server.pid


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_consumers_on_a_cluster_whose_leaders_die_lose_nothing(tmp_path: Path) -> None:
    with nats_cluster() as cluster:
        down: list = []

        def kill_leader(n: int) -> None:
            if down:
                down.pop().start()
            elif n % 5 == 2 and (leader := cluster.leader(stream_name(S))) is not None:
                leader.kill()
                down.append(leader)

        print(await survived(tmp_path, cluster.url, count=400, blows=20, replicas=3, also=kill_leader))
        assert len(cluster.nodes) == 3
