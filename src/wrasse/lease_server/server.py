"""The server of the lease API.

Closing drains: new leases are refused with a hint to retry elsewhere, running calls have up to `grace` to end, waiting
callers are refused, and background tasks are completed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from datetime import timedelta

from aiohttp import web

from wrasse.clock import Clock
from wrasse.config.urls import Address
from wrasse.lease_server.access import Access, Call, check_access, in_clear, middleware, tls
from wrasse.lease_server.leases import LeaseApi
from wrasse.lease_server.openapi import document
from wrasse.lease_server.wire import unrouted
from wrasse.leases.leases import Leases
from wrasse.observability.json_format import to_json
from wrasse.web.listener import Listener, ListenerOptions, caps_within

CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX = 1_024, 512
"""Maximum connections of the lease API, in total and from one address; fewer under a low limit of open files."""
CLEANUP_SECONDS_MAX = 5.0
_log = logging.getLogger("wrasse.leases")


class LeaseServer:
    """The API on one address."""

    def __init__(self, leases: Leases, clock: Clock, access: Access) -> None:
        self._leases, self._clock, self._access = leases, clock, access
        self.api = LeaseApi(leases, clock)
        self.calls: Counter[Call] = Counter()
        self._listener: Listener | None = None

    async def listen(self, address: Address) -> Address:
        """Starts listening; returns the actual address."""
        check_access(address, self._access)
        if in_clear(address, self._access):
            _log.warning("tokens for the lease API are sent without TLS, readable on the network (leases.insecure)")
        context = tls(self._access)
        app = web.Application(middlewares=[middleware(self._access, self.calls, loopback=address.loopback)])
        app.add_routes([*self.api.routes(), web.get("/v1/openapi.json", _openapi), web.get("/healthz", _healthy)])
        app.add_routes([web.get("/readyz", self._ready)])
        caps = caps_within(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX)
        options = ListenerOptions(
            "leases.listen",
            failure=unrouted,
            tls=context,
            cancel=True,  # a client that disconnects stops waiting for its key
            shutdown_seconds=2.0,
        )
        self._listener = Listener(app, caps, self._clock, options)
        return await self._listener.start(address)

    async def close(self, grace: timedelta = timedelta(0)) -> None:
        """Drains for up to `grace`, then stops."""
        self.api.drain()
        if self._listener is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self.api.quiet()
        await self._listener.close()
        self._listener = None
        with suppress(TimeoutError):  # a sweep finds the rest by its index entries
            async with asyncio.timeout(CLEANUP_SECONDS_MAX):
                await self.api.finished()
                await self._leases.close()

    async def _ready(self, request: web.Request) -> web.Response:
        if self.api.draining:
            return web.Response(status=503, text="stopping\n")
        return web.Response()


async def _openapi(request: web.Request) -> web.Response:
    return web.Response(text=to_json(document()), content_type="application/json")


async def _healthy(request: web.Request) -> web.Response:
    return web.Response()
