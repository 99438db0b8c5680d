"""Money between accounts while the lease server is killed again and again: the sum never changes.

Every transfer is one transaction over two accounts, made through the client of the API. An account also lists the
transfers that it has seen, so that what a client was told can be checked against what is there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import seeds
from conformance.object_stores import S3Place
from leases.places import NS, Backend
from leases.test_kills import BUCKET, CLIENTS, CLOCK, KillScene, Terms, kill_scene
from leases.transaction_scene import nothing_is_left, run, settle
from servers.seaweed import S3 as S3Server
from wrasse.backends.directory.connect import Directory
from wrasse.backends.s3.connect import S3
from wrasse.clock import ManualClock
from wrasse.errors import LeaseLost, StoreUnavailable
from wrasse.leases.client import LeaseClient
from wrasse.leases.lease import KeyRefused
from wrasse.leases.lease_scope import LeaseOptions, transact
from wrasse.leases.leases import Leases
from wrasse.leases.names import Xids
from wrasse.leases.transactions.states import TRANSACTIONS
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.open_transactions import OpenTransactions

DIRECTORY = Terms(12, timedelta(seconds=1))
FIRST = 100  # in every account that nobody has touched
XIDS = Xids(CLOCK)


@dataclass
class Transfers:
    """What clients were told."""

    committed: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)
    both: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Account:
    """The state of one account."""

    sum: int = FIRST
    seen: list[str] = field(default_factory=list)


async def client(scene: KillScene, told: Transfers, name: str) -> None:
    """Makes transfers until told to stop."""
    draw = seeds.draw(name)
    async with LeaseClient(scene.url, CLOCK, patience=timedelta(seconds=20)) as leases:
        while not scene.stop:
            one, other = draw.sample(scene.keys, 2)
            with suppress(StoreUnavailable, KeyRefused):
                await transfer(scene, told, leases, one, other, draw.randrange(1, 20))


async def transfer(scene: KillScene, told: Transfers, leases: LeaseClient, one: str, other: str, amount: int) -> None:
    id = XIDS.new()
    told.both[id] = (one, other)
    try:
        async with transact(leases, id, LeaseOptions("teller", scene.ttl, wait=timedelta(seconds=1)), CLOCK) as change:
            held = await change.lease_all(one, other)
            for key, by in zip(held, (-amount, amount), strict=True):
                account = Account() if key.state is None else msgspec.convert(key.state, Account)
                await key.save(Account(account.sum + by, [*account.seen, id]))
    except LeaseLost:
        told.undone.add(id)
        return
    told.committed.add(id)
    scene.served.set()


async def killed_often(scene: KillScene, told: Transfers, rounds: int) -> None:
    draw = seeds.draw("kills")
    async with asyncio.TaskGroup() as tasks:
        for n in range(CLIENTS):
            tasks.create_task(client(scene, told, f"c{n}"))
        for _ in range(rounds):
            pid = await scene.start()
            scene.served.clear()
            async with asyncio.timeout(60):
                await scene.served.wait()
            await asyncio.sleep(draw.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)
        scene.stop = True
        await scene.start()


async def check(leases: Leases, scene: KillScene, told: Transfers, rounds: int) -> None:
    """After everything has come to rest: nothing was made, lost or torn, and everybody was told the truth."""
    seen = {key: await leases.read_public(NS, key) for key in scene.keys}
    accounts = {
        key: Account() if at is None else msgspec.json.decode(at.data, type=Account) for key, at in seen.items()
    }
    assert sum(account.sum for account in accounts.values()) == FIRST * len(scene.keys)
    for id, (one, other) in told.both.items():
        there = [accounts[key].seen.count(id) for key in (one, other)]
        assert there in ([0, 0], [1, 1]), f"{id} is torn: {there}"
        assert id not in told.committed or there == [1, 1], f"{id} was acknowledged, and is not there"
        assert id not in told.undone or there == [0, 0], f"{id} was refused, and has happened"
    assert len(told.committed) >= rounds


async def check_directory(here: Path, rounds: int) -> None:
    place, told = here / "data", Transfers()
    async with kill_scene(here / "run", f"file://{place}", DIRECTORY) as scene:
        await killed_often(scene, told, rounds)
    clock = ManualClock(CLOCK.now())
    backend = await Directory.open(place, clock)
    leases = Leases(backend.records, backend.objects, clock)
    await settle(leases, backend, clock)
    await check(leases, scene, told, rounds)
    await nothing_is_left(backend)
    await backend.close()


async def at_rest(leases: Leases, backend: Backend) -> None:
    """Once every lease of the dead has ended, sweeps have finished every transaction."""
    async with asyncio.timeout(60):
        while len(await backend.records(TRANSACTIONS).page("", None, 10)):
            await run(OpenTransactions(leases))
            await run(ExpiredLeases(leases, backend.namespaces))
            await asyncio.sleep(0.2)


async def check_bucket(server: S3Server, here: Path, rounds: int) -> None:
    address = await S3Place(CLOCK, server).address()
    where = f"s3://{address.bucket}/{address.prefix.rstrip('/')}?endpoint={server.endpoint}"
    known = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
    told = Transfers()
    async with kill_scene(here / "run", where, BUCKET, known) as scene:
        await killed_often(scene, told, rounds)
    backend = await S3.open(address, CLOCK)
    leases = Leases(backend.records, backend.objects, CLOCK)
    await at_rest(leases, backend)
    await check(leases, scene, told, rounds)
    await leases.close()
    await backend.close()


async def test_the_sum_of_accounts_in_a_directory_never_changes_when_the_server_is_killed(tmp_path: Path) -> None:
    await check_directory(tmp_path, 5)


async def test_the_sum_of_accounts_in_a_bucket_never_changes_when_the_server_is_killed(
    s3: S3Server, tmp_path: Path
) -> None:
    await check_bucket(s3, tmp_path, 2)


@pytest.mark.full
@pytest.mark.timeout(1_800)
async def test_a_hundred_kills_amid_transfers_in_a_directory(tmp_path: Path) -> None:
    await check_directory(tmp_path, 100)


@pytest.mark.full
@pytest.mark.timeout(1_800)
async def test_a_hundred_kills_amid_transfers_in_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    await check_bucket(s3, tmp_path, 100)
