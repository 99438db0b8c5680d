"""Parts of a large object go up beside each other: bounded, in order, each tried again alone, aborted together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from backends.s3.scene import Scene, once, scene
from servers.strict_s3 import BUSY, DENIED
from wrasse.backends.s3.objects import PART_BYTES, PARTS_AT_ONCE
from wrasse.errors import StoreUnavailable
from wrasse.ports.outcome import Outcome

PARTS = 7


async def large(parts: int = PARTS) -> AsyncIterator[bytes]:
    for number in range(parts):
        yield bytes([number]) * PART_BYTES


@asynccontextmanager
async def held_back(now: Scene, until: Callable[[list[int], int], bool]) -> AsyncIterator[list[int]]:
    """A part is answered once `until(in flight, its number)`; gives the largest number that was in flight."""
    honest, flying, most, changed = now.server._handle, list[int](), [0], asyncio.Condition()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if "partNumber" not in request.query:
            return await honest(request)
        number = int(request.query["partNumber"])
        async with changed:
            flying.append(number)
            most[0] = max(most[0], len(flying))
            changed.notify_all()
            await changed.wait_for(lambda: until(flying, number))
        try:
            return await honest(request)
        finally:
            async with changed:
                flying.remove(number)
                changed.notify_all()

    await now.server.close()
    now.server._handle = handle  # type: ignore[method-assign]
    await now.server.start()
    yield most


async def test_parts_are_in_flight_together_and_never_more_than_the_bound() -> None:
    begun = 0

    def until(flying: list[int], number: int) -> bool:
        nonlocal begun
        begun = max(begun, len(flying))
        return begun >= min(PARTS_AT_ONCE, PARTS)  # the first is answered once as many as may be are there

    async with scene() as now, held_back(now, until) as most:
        stored = await now.backend.objects.create("big", large())
        assert (stored.outcome, most[0]) == (Outcome.DONE, PARTS_AT_ONCE)


async def test_the_object_has_its_parts_in_order_whichever_is_answered_first() -> None:
    async with scene() as now, held_back(now, lambda flying, number: number == max(flying)):
        await now.backend.objects.create("big", large(PARTS_AT_ONCE))
        found = now.server.things[b"here/big"].data
        assert found == b"".join([each async for each in large(PARTS_AT_ONCE)])


async def test_a_part_that_the_store_was_too_busy_for_is_sent_again_alone() -> None:
    async with scene() as now:
        now.server.plan = once(BUSY, "PUT", part=b"big", times=2)
        await now.backend.objects.create("big", large())
        sent = [path for method, path in now.server.requests if method == "PUT" and "big?partNumber" in path]
        assert (len(sent), len(set(sent))) == (PARTS + 2, PARTS)


async def test_a_part_that_is_refused_ends_the_upload_and_leaves_nothing() -> None:
    async with scene() as now:
        now.server.plan = once(DENIED, "PUT", part=b"big")
        with pytest.raises(StoreUnavailable, match="denies"):
            await now.backend.objects.create("big", large())
        assert (now.server.uploads, now.server.keys) == ({}, [])


async def test_a_source_that_fails_ends_the_upload_with_its_own_error() -> None:
    async def failing() -> AsyncIterator[bytes]:
        async for part in large(3):
            yield part
        raise RuntimeError("the source")

    async with scene() as now:
        with pytest.raises(RuntimeError, match="the source"):
            await now.backend.objects.create("big", failing())
        assert (now.server.uploads, now.server.keys) == ({}, [])
