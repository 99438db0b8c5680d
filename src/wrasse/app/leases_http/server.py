"""Listens for calls of the lease API until it is closed.

Closing drains: new leases are refused with a hint to ask elsewhere, calls under way have a moment to end, waiting ones
are told to come back, and what is left to tidy after the last answers is done.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import timedelta

from aiohttp import web

from wrasse.app.addresses import Address
from wrasse.app.leases_http.access import Access, check_access, middleware, tls
from wrasse.app.leases_http.openapi import document
from wrasse.app.leases_http.routes import LeaseApi
from wrasse.app.plain import to_json
from wrasse.clock import Clock
from wrasse.errors import ConfigError
from wrasse.leases.leases import Leases

LINE_BYTES_MAX = 8 << 10
HEAD_SECONDS_MAX = 120.0  # for the head of a call to come; longer than clients keep connections that they do not use
TIDY_SECONDS_MAX = 5.0


class LeaseServer:
    """The API on one address."""

    def __init__(self, leases: Leases, clock: Clock, access: Access) -> None:
        self._leases, self._access = leases, access
        self.api = LeaseApi(leases, clock)
        self._runner: web.AppRunner | None = None

    async def listen(self, address: Address) -> Address:
        """Starts listening; gives the address it got."""
        check_access(address, self._access)
        context = tls(self._access)
        app = web.Application(middlewares=[middleware(self._access, loopback=address.loopback)])
        app.add_routes([*self.api.routes(), web.get("/v1/openapi.json", _openapi), web.get("/healthz", _fine)])
        app.add_routes([web.get("/readyz", self._ready)])
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that goes away no longer waits for a key
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            keepalive_timeout=HEAD_SECONDS_MAX,
            shutdown_timeout=2.0,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, address.host, address.port, ssl_context=context).start()
        except OSError as why:
            raise ConfigError(
                f"cannot listen on {address}: {os.strerror(why.errno) if why.errno else why}",
                do="stop whoever uses it, or set leases.listen to another address",
            ) from why
        return Address(address.host, int(self._runner.addresses[0][1]))

    async def close(self, grace: timedelta = timedelta(0)) -> None:
        """Drains for up to `grace`, then stops."""
        self.api.drain()
        if self._runner is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self.api.quiet()
        await self._runner.cleanup()
        self._runner = None
        with suppress(TimeoutError):  # a sweep finds what is left by its index entries
            async with asyncio.timeout(TIDY_SECONDS_MAX):
                await self.api.finished()
                await self._leases.close()

    async def _ready(self, request: web.Request) -> web.Response:
        if self.api.draining:
            return web.Response(status=503, text="stopping\n")
        return web.Response()


async def _openapi(request: web.Request) -> web.Response:
    return web.Response(text=to_json(document()), content_type="application/json")


async def _fine(request: web.Request) -> web.Response:
    return web.Response()
