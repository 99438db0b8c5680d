"""A server whose replies get lost on the way, once each: clients ask again and are told what happened at first."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.lease_server.leases import LeaseApi
from wrasse.leases.client import LeaseClient
from wrasse.leases.leases import Leases

CLOCK = SystemClock()
NS = "default"


class Deaf:
    """Carries out every call. The reply to the first of two equal ones goes nowhere."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()

    @web.middleware
    async def between(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        call = (request.path_qs, request.headers.get("X-If-State-ETag", ""))
        answer = await handler(request)
        self.seen[call] += 1
        if self.seen[call] % 2 and request.transport is not None:
            request.transport.abort()
        return answer


@contextlib.asynccontextmanager
async def deaf_server() -> AsyncIterator[tuple[Deaf, LeaseClient]]:
    memory, deaf = Memory(CLOCK), Deaf()
    leases = Leases(memory.records, memory.objects, CLOCK)
    app = web.Application(middlewares=[deaf.between])
    app.add_routes(LeaseApi(leases, CLOCK).routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with LeaseClient(f"http://127.0.0.1:{runner.addresses[0][1]}", CLOCK) as client:
        try:
            yield deaf, client
        finally:
            await runner.cleanup()
            await leases.close()


async def test_a_retried_change_is_not_refused_because_of_its_first_try() -> None:
    async with deaf_server() as (deaf, client):
        lease = await client.acquire("a", "me")
        version, first = await client.update(lease.granted, b'{"n":1}', if_version=lease.version)
        again, second = await client.update(lease.granted, b'{"n":2}', if_etag=first.etag)
        seen = await client.read(lease.granted)
        assert seen is not None
        assert (seen.data, seen.etag, version, again) == (b'{"n":2}', second.etag, 1, 1)
        assert await client.remove(lease.granted, if_version=again) == 2
        await client.release(lease.granted)
        assert set(deaf.seen.values()) == {2}
