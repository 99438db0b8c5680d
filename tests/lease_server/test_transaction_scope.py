"""`app.transaction()` and what is under it, here and over HTTP: both keys or neither, and the caller knows which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

import wrasse
from faults import FaultyRecords, Network, Script
from lease_server.scene import served
from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.errors import LeaseLost, StoreUnavailable, UsageError
from wrasse.leases.client import LeaseClient
from wrasse.leases.lease_scope import LeaseOptions, Operations, transact
from wrasse.leases.leases import Leases
from wrasse.leases.names import Xids
from wrasse.leases.transactions.states import Decision
from wrasse.ports.records import Collection, Records

CLOCK = SystemClock()
TTL = timedelta(seconds=30)
NS = "default"
XIDS = Xids(CLOCK)
SHORT = LeaseOptions("me", timedelta(seconds=0.6), wait=TTL)


@asynccontextmanager
async def operations(kind: str) -> AsyncIterator[Operations]:
    memory = Memory(CLOCK)
    leases = Leases(memory.records, memory.objects, CLOCK)
    if kind == "in the process":
        yield leases
        await leases.close()
        return
    async with served(leases) as server, LeaseClient(server.url, CLOCK) as client:
        yield client


BOTH = pytest.mark.parametrize("kind", ["in the process", "over HTTP"])


def together(leases: Operations, id: str = "", wait: float = 5.0) -> transact:
    return transact(leases, id or XIDS.new(), LeaseOptions("me", TTL, wait=timedelta(seconds=wait)), CLOCK)


async def sums(leases: Operations) -> list[bytes | None]:
    seen = [await leases.read_public(NS, key) for key in ("a", "b")]
    return [None if each is None else each.data for each in seen]


@BOTH
async def test_a_block_that_ends_well_changes_every_key_and_gives_all_of_them_back(kind: str) -> None:
    async with operations(kind) as leases:
        for by in (10, 5):
            async with together(leases) as change:
                b, a = await change.lease_all("b", "a")
                await change.lease("only-held")
                await a.save((a.state or 0) - by)
                await b.save((b.state or 0) + by)
        assert await sums(leases) == [b"-15", b"15"]


@BOTH
async def test_a_block_that_raises_changes_nothing_and_gives_all_keys_back(kind: str) -> None:
    async def body(leases: Operations) -> None:
        async with together(leases) as change:
            a, _ = await change.lease_all("a", "b")
            await a.save(1)
            raise ZeroDivisionError

    async with operations(kind) as leases:
        with pytest.raises(ZeroDivisionError):
            await body(leases)
        async with together(leases, wait=0) as change:
            await change.lease_all("a", "b")
        assert await sums(leases) == [None, None]


@BOTH
async def test_a_commit_after_a_rollback_elsewhere_raises(kind: str) -> None:
    id = XIDS.new()

    async def body(leases: Operations) -> None:
        async with together(leases, id) as change:
            a, b = await change.lease_all("a", "b")
            await a.save(1)
            await b.save(1)
            await leases.decide(id, commit=False)

    async with operations(kind) as leases:
        with pytest.raises(LeaseLost, match="rolled back"):
            await body(leases)
        assert await sums(leases) == [None, None]


@BOTH
async def test_a_key_that_another_holder_keeps_ends_the_block(kind: str) -> None:
    async def body(leases: Operations) -> None:
        async with together(leases, wait=0.1) as change:
            await (await change.lease("a")).save(1)
            await change.lease("b")

    async with operations(kind) as leases:
        await leases.acquire("b", "other", ttl=TTL)
        with pytest.raises(LeaseLost, match="another holder"):
            await body(leases)
        assert await sums(leases) == [None, None]


async def test_a_lost_lease_cancels_the_body_and_undoes_everything() -> None:
    async with operations("in the process") as leases:
        began = asyncio.Event()

        async def body() -> None:
            async with transact(leases, XIDS.new(), SHORT, CLOCK) as change:
                a, _ = await change.lease_all("a", "b")
                await a.save(1)
                held = change._leased[1].lease  # B's lease, as somebody else would see it
                await leases.release(held, commit=False)
                began.set()
                await asyncio.Event().wait()

        with pytest.raises(LeaseLost, match="ended while"):
            await asyncio.wait_for(body(), 20)
        assert (began.is_set(), await sums(leases)) == (True, [None, None])


async def test_a_cancellation_from_outside_stays_one() -> None:
    async with operations("in the process") as leases:
        began = asyncio.Event()

        async def body() -> None:
            async with together(leases) as change:
                await (await change.lease("a")).save(1)
                began.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        assert (task.cancelled(), await sums(leases)) == (True, [None, None])


async def test_an_unknown_end_names_the_transaction_to_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wrasse.leases.lease_scope.DECIDE_MAX", 0.3)
    memory, network = Memory(CLOCK), Network(Script({}))

    def records(collection: Collection) -> Records:
        return FaultyRecords(memory.records(collection), network)

    leases, id = Leases(records, memory.objects, CLOCK), XIDS.new()

    async def body() -> None:
        async with together(leases, id) as change:
            await (await change.lease("a")).save(1)
            network.down = True

    with pytest.raises(StoreUnavailable, match=id):
        await body()
    network.down = False
    assert await leases.decide(id, commit=False) is Decision.ROLLBACK


async def test_no_key_is_leased_after_the_block() -> None:
    async with operations("in the process") as leases:
        async with together(leases) as change:
            pass
        with pytest.raises(UsageError):
            await change.lease("a")


async def test_an_app_has_transactions_and_two_in_opposite_order_do_not_wait_for_each_other_for_ever() -> None:
    async with wrasse.connect("memory:") as app:

        async def move(*keys: str) -> None:
            for _ in range(5):
                async with app.transaction() as change:
                    one, other = await change.lease_all(*keys)
                    await one.save((one.state or 0) - 1)
                    await other.save((other.state or 0) + 1)

        await asyncio.wait_for(asyncio.gather(move("a", "b"), move("b", "a"), move("a", "b")), 30)
        async with app.transaction(namespace="default") as change:
            held = await change.lease_all("a", "b")
            assert [each.state for each in held] == [-5, 5]
