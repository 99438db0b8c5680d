"""Holding a key with its state: in this process and over HTTP alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from lease_server.scene import Served, served
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock, SystemClock
from wrasse.errors import LeaseLost
from wrasse.leases.client import LeaseClient
from wrasse.leases.lease_scope import LeaseOptions, Operations, lease_key
from wrasse.leases.leases import LeasePolicy, Leases

CLOCK = SystemClock()
TTL = timedelta(seconds=20)


@pytest.fixture(params=["here", "over HTTP"])
async def operations(request: pytest.FixtureRequest) -> AsyncIterator[Operations]:
    async with served() as server:
        if request.param == "here":
            yield server.leases
            return
        async with LeaseClient(server.url, CLOCK) as client:
            yield client


def held(operations: Operations, key: str = "orders/42", wait: timedelta | None = None) -> lease_key:
    return lease_key(operations, key, LeaseOptions("me", TTL, wait=wait), CLOCK)


async def until(so: Callable[[], bool]) -> None:
    while True:
        if so():
            return
        await asyncio.sleep(0.01)


async def test_what_was_saved_is_there_for_the_next_holder(operations: Operations) -> None:
    async with held(operations) as lease:
        await lease.save({"paid": True})
    async with held(operations) as lease:
        assert lease.state == {"paid": True}


async def test_no_other_reader_sees_what_is_saved_before_the_block_ends(operations: Operations) -> None:
    async with held(operations) as lease:
        await lease.save({"paid": True})
        assert await operations.read_public("default", "orders/42") is None


async def test_a_body_that_raises_changes_nothing(operations: Operations) -> None:
    async def body() -> None:
        async with held(operations) as lease:
            await lease.save({"paid": True})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    async with held(operations) as lease:
        assert lease.state is None


async def test_a_removed_state_is_gone(operations: Operations) -> None:
    async with held(operations) as lease:
        await lease.save([1])
    async with held(operations) as lease:
        await lease.remove()
    assert await operations.read_public("default", "orders/42") is None


async def test_the_next_holder_has_a_higher_token(operations: Operations) -> None:
    tokens = []
    for _ in range(3):
        async with held(operations) as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


async def test_who_waits_too_long_is_told(operations: Operations) -> None:
    async with held(operations):
        with pytest.raises(LeaseLost):
            async with held(operations, wait=timedelta(milliseconds=50)):
                raise AssertionError("nobody gets a key that is held")


async def test_a_waiter_gets_the_key_when_it_is_free(operations: Operations) -> None:
    order = []

    async def work(name: str) -> None:
        async with held(operations):
            order.append(name)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group, held(operations):
        for name in ("a", "b", "c"):
            group.create_task(work(name))
            await asyncio.sleep(0.05)  # so that they stand in line in this order
    assert order == ["a", "b", "c"]


async def test_who_waited_longer_than_its_lease_lasts_has_all_of_it_all_the_same() -> None:
    clock = ManualClock()
    async with served(clock=clock) as server, LeaseClient(server.url, clock) as client:
        first = await client.acquire("orders/42", "me", ttl=timedelta(minutes=5))
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            waiting = group.create_task(client.acquire("orders/42", "you", ttl=TTL, wait=None))
            await until(lambda: server.api.waiting == 1)
            clock.advance(3 * TTL)
            await client.release(first.granted)
        assert client.term(waiting.result().granted) - clock.monotonic() == pytest.approx(TTL.total_seconds(), abs=0.01)


@pytest.mark.parametrize("where", ["here", "over HTTP"])
async def test_a_lease_that_is_shorter_than_was_asked_for_is_renewed_in_time(where: str) -> None:
    memory = Memory(CLOCK)
    leases = Leases(memory.records, memory.objects, CLOCK, LeasePolicy(ttl_max=timedelta(seconds=3)))
    async with served(leases) as server, LeaseClient(server.url, CLOCK) as client, asyncio.timeout(20):
        asked = server.leases if where == "here" else client
        async with lease_key(asked, "orders/42", LeaseOptions("me", timedelta(minutes=5)), CLOCK) as lease:
            first = lease.expires_at
            await until(lambda: lease.expires_at > first)


async def test_a_commit_that_came_too_late_is_told_and_changes_nothing() -> None:
    async def body(server: Served) -> None:
        async with held(server.leases) as lease:
            await lease.save({"paid": True})
            await rob(server)

    async with served() as server:
        with pytest.raises(LeaseLost):
            await body(server)
        assert await server.leases.read_public("default", "orders/42") is None


async def rob(server: Served) -> None:
    """Takes the key away behind its holder's back, as a sweep would after its time."""
    keys = server.leases.keys("default")
    kept = await keys.read("orders/42")
    assert kept is not None
    await keys.clear("orders/42", kept, await keys.now())


async def test_a_key_that_begins_like_its_namespace_is_one_key_here_and_there() -> None:
    async with served() as server, LeaseClient(server.url, CLOCK) as client:
        leased = await client.acquire("default/default/x", "me", ttl=timedelta(seconds=30))
        await client.update(leased.granted, b"1")
        await client.release(leased.granted)
        assert leased.granted.key == "default/x"
        seen = await client.read_public("default", "default/x")
        assert seen is not None
        assert seen.data == b"1"
        assert await client.read_public("default", "x") is None
