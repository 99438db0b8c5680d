"""Holding a lease around a body: renewed by itself, and the body ends when the lease does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta

import pytest

from faults import LOST_REQUEST, FaultyRecords, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import LeaseLost, StoreBroken
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KeyRefused
from wrasse.leases.lease_scope import LeaseOptions, RenewedLease, lease_key, renewing
from wrasse.leases.leases import Leases
from wrasse.leases.manager import LeaseManager
from wrasse.leases.store import ATTEMPTS_MAX

TTL = timedelta(milliseconds=60)  # of waiting; the lease itself ends only when the clock is told to move
ENOUGH = 30.0


class Scene:
    """A store on a clock that stands still, so that only what a test does can end a lease."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.records = self.memory.records(leases_in("default"))
        self.network = Network(Script({}))
        self.leases = self.behind(self.network)

    def behind(self, network: Network) -> Leases:
        return Leases(lambda where: FaultyRecords(self.memory.records(where), network), self.memory.objects, self.clock)

    def hold(self, wait: timedelta | None = None) -> lease_key:
        return lease_key(self.leases, "k", LeaseOptions("me", TTL, wait=wait), self.clock)

    async def free(self) -> bool:
        """Whether somebody else gets the key."""
        with contextlib.suppress(KeyRefused):
            await self.leases.acquire("k", "you", ttl=TTL)
            return True
        return False


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def _until(so: Callable[[], bool], pause: float = 0.005) -> None:
    async with asyncio.timeout(ENOUGH):
        while not so():  # noqa: ASYNC110  a lease has no event to wait for
            await asyncio.sleep(pause)


async def _renewals(holding: RenewedLease, count: int) -> None:
    """Until the lease was renewed so many times."""
    seen = [holding.lease]

    def so() -> bool:
        if holding.lease is not seen[-1]:
            seen.append(holding.lease)
        return len(seen) > count

    await _until(so)


async def test_a_key_is_leased_inside_and_free_outside(scene: Scene) -> None:
    async with scene.hold() as holding:
        assert not await scene.free()
        assert (holding.owner, holding.key, holding.alive) == ("me", "k", True)
    assert await scene.free()


async def test_a_lease_is_renewed_by_itself_under_the_same_token(scene: Scene) -> None:
    async with scene.hold() as holding:
        token = holding.token
        await _renewals(holding, 3)
        assert holding.token == token


async def test_a_body_whose_lease_ended_is_cancelled_and_told(scene: Scene) -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        async with asyncio.timeout(ENOUGH), scene.hold():
            scene.clock.advance(TTL)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    with pytest.raises(LeaseLost, match="'k'"):
        await work()
    assert cancelled.is_set()


async def test_a_body_whose_lease_changed_hands_is_told(scene: Scene) -> None:
    async def work() -> None:
        async with asyncio.timeout(ENOUGH), scene.hold() as holding:
            await scene.leases.release(holding.lease)
            assert await scene.free()
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        await work()


async def test_an_outage_shorter_than_the_term_goes_unnoticed(scene: Scene) -> None:
    calls = Script(dict.fromkeys(range(ATTEMPTS_MAX), LOST_REQUEST), only="put")
    options = LeaseOptions("me", timedelta(seconds=1))
    async with lease_key(scene.behind(Network(calls)), "k", options, scene.clock) as holding:
        await _renewals(holding, 1)
        assert (holding.alive, len(calls.calls)) == (True, ATTEMPTS_MAX + 1)


async def test_an_outage_longer_than_the_term_ends_the_body(scene: Scene) -> None:
    async def work() -> None:
        async with asyncio.timeout(ENOUGH), scene.hold():
            scene.network.down = True
            scene.clock.advance(TTL)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        await work()


async def test_a_body_that_would_not_hear_of_it_is_told_at_its_end(scene: Scene) -> None:
    async def work() -> None:
        async with scene.hold() as holding:
            scene.clock.advance(TTL)
            with contextlib.suppress(asyncio.CancelledError):
                await _until(lambda: holding.lost)

    with pytest.raises(LeaseLost):
        await work()
    await asyncio.sleep(0)  # and no cancellation is left over for what comes next


async def test_a_cancellation_from_outside_is_not_taken_for_a_lost_lease(scene: Scene) -> None:
    async def work() -> None:
        async with scene.hold() as holding:
            scene.clock.advance(TTL)
            try:
                await _until(lambda: holding.lost)
            finally:
                task.cancel()
                await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.wait([task], timeout=ENOUGH)
    assert task.cancelled()


async def test_the_bodys_own_error_comes_through_and_the_lease_is_given_back(scene: Scene) -> None:
    with pytest.raises(KeyError):
        async with scene.hold():
            raise KeyError("mine")
    assert await scene.free()


async def test_a_cancellation_from_outside_stays_one_and_gives_the_lease_back(scene: Scene) -> None:
    inside = asyncio.Event()

    async def body() -> None:
        async with scene.hold():
            inside.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body())
        await inside.wait()
        task.cancel()
    assert task.cancelled()
    assert await scene.free()


async def test_a_key_that_stays_leased_is_not_waited_for_longer_than_requested(scene: Scene) -> None:
    assert await scene.free()
    with pytest.raises(LeaseLost, match="another holder"):
        async with scene.hold(wait=timedelta(0)):
            raise AssertionError("nobody gets here")


async def test_a_store_that_cannot_be_reached_at_the_end_does_not_spoil_the_work(scene: Scene) -> None:
    async with scene.hold():
        scene.network.down = True
    scene.network.down = False
    assert not await scene.free()  # it ends by itself


async def test_a_record_that_another_process_overwrote_ends_the_body(scene: Scene) -> None:
    async def work() -> None:
        async with asyncio.timeout(ENOUGH), scene.hold():
            record = await scene.records.get("k")
            assert record is not None
            await scene.records.put("k", b"not ours", at=record.version)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost) as caught:
        await work()
    assert isinstance(caught.value.__cause__, StoreBroken)


async def test_a_body_that_checks_alive_itself_is_not_cancelled(scene: Scene) -> None:
    manager = LeaseManager(scene.memory.records(leases_in(".wrasse")), scene.clock)
    lease = await manager.acquire("k", "me", TTL)
    assert lease is not None
    async with renewing(RenewedLease(manager, lease, TTL, scene.clock)) as holding:
        await _renewals(holding, 1)
        scene.clock.advance(TTL)
        assert not holding.alive
        await _until(lambda: holding.lost)
