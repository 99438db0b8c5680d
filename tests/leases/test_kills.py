"""SIGKILL of `wrasse run --role=leases` under load, at random points: every acknowledged commit is there, once.

A state is a list to which every commit appends a mark of its own, so the last state tells the whole history.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import seeds
from conformance.object_stores import S3Place
from leases.history import History, nothing_is_left
from leases.places import NS, Place
from servers.seaweed import S3 as S3Server
from wrasse.backends.directory.connect import Directory
from wrasse.clock import ManualClock, SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.leases.client import LeaseClient
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KeyRefused, Refusal
from wrasse.leases.leases import Leases

ACTOR = Path(__file__).with_name("lease_actor.py")
CLOCK = SystemClock()
CLIENTS = 6


@dataclass(frozen=True, slots=True)
class Terms:
    """How many keys there are, and how long a lease lasts: a key whose server was killed is closed for that long, and
    for as long as the store's clock may be off."""

    keys: int
    ttl: timedelta


DIRECTORY, BUCKET = Terms(16, timedelta(seconds=1)), Terms(400, timedelta(seconds=3))


@dataclass
class KillScene:
    """A server that is killed and started again, and what its clients were told."""

    url: str
    actor: asyncio.subprocess.Process
    keys: list[str]
    ttl: timedelta
    acknowledged: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)
    served: asyncio.Event = field(default_factory=asyncio.Event)
    stop: bool = False

    async def start(self) -> int:
        """One more server; its pid."""
        assert self.actor.stdin is not None
        assert self.actor.stdout is not None
        self.actor.stdin.write(b"\n")
        async with asyncio.timeout(30):
            return int(await self.actor.stdout.readline())


def quiet_port() -> int:
    """A free port from which nobody calls: while no server listens, a caller could get it as its own end."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    for port in random.SystemRandom().sample(range(10_000, lowest), 100):  # others run these tests too
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port among a hundred")


@asynccontextmanager
async def kill_scene(
    folder: Path, records: str, terms: Terms, env: Mapping[str, str] | None = None
) -> AsyncIterator[KillScene]:
    port = quiet_port()
    os.mkdir(folder)
    actor = await asyncio.create_subprocess_exec(
        sys.executable, ACTOR, str(port), folder, records, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, **(env or {})},
    )  # fmt: skip
    try:
        yield KillScene(f"http://127.0.0.1:{port}", actor, [f"accounts/{n}" for n in range(terms.keys)], terms.ttl)
    finally:
        assert actor.stdin is not None
        actor.stdin.close()
        await actor.wait()


async def client(scene: KillScene, name: str) -> None:
    """Appends marks to the states of random keys until told to stop."""
    made, draw = 0, seeds.draw(name)
    async with LeaseClient(scene.url, CLOCK, patience=timedelta(seconds=20)) as leases:
        while not scene.stop:
            key, made = draw.choice(scene.keys), made + 1
            with suppress(StoreUnavailable, KeyRefused):
                await append(scene, leases, key, f"{name}-{made}")


async def append(scene: KillScene, leases: LeaseClient, key: str, mark: str) -> None:
    leased = await leases.acquire(key, mark, ttl=scene.ttl)
    seen = await leases.read(leased.granted)
    marks = [] if seen is None else msgspec.json.decode(seen.data, type=list[str])
    await leases.update(leased.granted, msgspec.json.encode([*marks, mark]))
    try:
        await leases.release(leased.granted)
    except KeyRefused as refused:
        if refused.code is Refusal.LEASE_EXPIRED:
            scene.refused.append(mark)
        return
    scene.acknowledged[key].append(mark)
    scene.served.set()


async def killed_often(scene: KillScene, rounds: int) -> dict[str, list[str]]:
    """Kills the server so often under load; gives the states in the end."""
    draw = seeds.draw("kills")
    async with asyncio.TaskGroup() as tasks:
        for n in range(CLIENTS):
            tasks.create_task(client(scene, f"c{n}"))
        for _ in range(rounds):
            pid = await scene.start()
            scene.served.clear()
            async with asyncio.timeout(30):
                await scene.served.wait()
            await asyncio.sleep(draw.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
        scene.stop = True
        await scene.start()
    async with LeaseClient(scene.url, CLOCK) as leases:
        found = {key: await leases.read_public(NS, key) for key in scene.keys}
    return {key: [] if seen is None else msgspec.json.decode(seen.data, type=list[str]) for key, seen in found.items()}


def check_states(scene: KillScene, states: dict[str, list[str]], rounds: int) -> None:
    assert sum(map(len, scene.acknowledged.values())) >= rounds
    for key, marks in states.items():
        assert len(marks) == len(set(marks)), f"a commit of {key} happened twice"
        assert set(scene.acknowledged[key]) - set(marks) == set(), f"acknowledged commits of {key} are lost"
        assert set(scene.refused) & set(marks) == set(), f"refused commits of {key} have happened"


async def check_directory(here: Path, rounds: int) -> None:
    place = here / "data"
    async with kill_scene(here / "run", f"file://{place}", DIRECTORY) as scene:
        states = await killed_often(scene, rounds)
    check_states(scene, states, rounds)
    clock = ManualClock(CLOCK.now())
    backend, history = await Directory.open(place, clock), History()
    for _ in range(3):  # what the dead left goes with the sweeps
        clock.advance(timedelta(hours=2))
        swept = Place("directory", place)
        swept.opened.append(backend)
        await swept.sweep(Leases(backend.records, backend.objects, clock))
    history.steps.update({key: {} for key, marks in states.items() if marks})
    await nothing_is_left(backend.records(leases_in(NS)), backend.objects, NS, history)
    await backend.close()


async def check_bucket(server: S3Server, here: Path, rounds: int) -> None:
    address = await S3Place(CLOCK, server).address()
    where = f"s3://{address.bucket}/{address.prefix.rstrip('/')}?endpoint={server.endpoint}"
    known = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
    async with kill_scene(here / "run", where, BUCKET, known) as scene:
        states = await killed_often(scene, rounds)
    check_states(scene, states, rounds)


async def test_no_acknowledged_commit_is_lost_when_the_server_of_a_directory_is_killed(tmp_path: Path) -> None:
    await check_directory(tmp_path, 30)


async def test_no_acknowledged_commit_is_lost_when_the_server_of_a_bucket_is_killed(
    s3: S3Server, tmp_path: Path
) -> None:
    await check_bucket(s3, tmp_path, 30)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_two_hundred_kills_over_a_directory(tmp_path: Path) -> None:
    await check_directory(tmp_path, 200)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_two_hundred_kills_over_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    await check_bucket(s3, tmp_path, 200)
