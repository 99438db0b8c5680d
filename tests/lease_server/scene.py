"""The lease API on a free loopback port, over any backend, and a client that remembers nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import ClientSession, web

from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock, SystemClock
from wrasse.lease_server.leases import LeaseApi
from wrasse.leases.leases import Leases


@dataclass
class Served:
    """A server under test."""

    api: LeaseApi
    leases: Leases
    url: str
    client: ClientSession


@contextlib.asynccontextmanager
async def served(leases: Leases | None = None, clock: Clock | None = None) -> AsyncIterator[Served]:
    """A server, on memory unless something else is given."""
    clock = clock or SystemClock()
    if leases is None:
        memory = Memory(clock)
        leases = Leases(memory.records, memory.objects, clock)
    api = LeaseApi(leases, clock)
    app = web.Application(client_max_size=0)
    app.add_routes(api.routes())
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ClientSession(url) as client:
        try:
            yield Served(api, leases, url, client)
        finally:
            await runner.cleanup()
            await leases.close()
