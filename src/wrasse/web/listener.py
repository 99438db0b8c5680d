"""Listens for HTTP, with limits that hold before a caller has shown anything: connections, heads, bytes, time.

A connection that has not sent the head of its request in time is closed. Beyond the cap of connections, of all or of
one address, the one that has been idle longest makes room for the new one; where every one is in the middle of a
request, the new one is closed. The caps leave descriptors of the process to its other work. An error from before
routing is answered in the form that the application gives to its errors.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import StreamReader, web

from wrasse.clock import Clock
from wrasse.config.addresses import Address
from wrasse.errors import ConfigError

HEAD_SECONDS_MAX = 10.0
"""How long the head of a request may take from its first byte, a TLS handshake, and a new connection's first byte."""
KEEP_ALIVE_SECONDS_MAX = 120.0
"""How long a connection stays open between requests."""
SEND_SECONDS_MAX = 60.0
"""How long a client may leave an answer unread, without taking a single byte of it."""
LINGER_SECONDS_MAX = 5.0
"""How long the rest of a refused body is read and dropped, so that the client sees the answer."""
LINE_BYTES_MAX = 8 << 10
"""Longest request line, and longest header."""
HEADERS_MAX = 100
"""Most headers of a request."""
UNREAD_BYTES_MAX = 512 << 10
"""Most bytes of one connection that belong to no request under way: a head, or pipelined requests."""
DESCRIPTORS_SHARE = 4
"""One server uses at most this part of the process's limit of open files: a quarter."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BACKLOG = 256
_CHECK_SECONDS = 1.0
_log = logging.getLogger("wrasse.http")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections one server has at once, in all and from one address."""

    connections: int
    per_address: int


def caps_within(connections: int, per_address: int, descriptors: int | None = None) -> ConnectionLimits:
    """These caps, lowered to the server's share of the files that this process may open."""
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    share = connections if descriptors == resource.RLIM_INFINITY else max(8, descriptors // DESCRIPTORS_SHARE)
    return ConnectionLimits(min(connections, share), min(per_address, share))


Failure = Callable[[int], web.Response]
"""Makes the answer to an error from outside the application's handlers, by its status."""


class Listener:
    """One application on one address. `failure` makes answers to what no handler sees; without it they are text.
    `cancel`: the handler of a client that has gone is cancelled."""

    def __init__(
        self,
        app: web.Application,
        caps: ConnectionLimits,
        clock: Clock,
        *,
        setting: str,
        failure: Failure | None = None,
        tls: ssl.SSLContext | None = None,
        cancel: bool = False,
        shutdown_seconds: float = 1.0,
    ) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=cancel, shutdown_timeout=shutdown_seconds
        )
        self._caps, self.clock, self._setting, self._tls = caps, clock, setting, tls
        self.failure = failure or _text
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.open: dict[HttpConnection, None] = {}  # the oldest first
        self._check: asyncio.TimerHandle | None = None

    async def start(self, address: Address) -> Address:
        """Starts listening; gives the address it got."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "a runner that is set up has a server"
        make = server.request_factory

        def factory(message: Any, payload: StreamReader, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            protocol.begins(payload)
            return make(message, payload, protocol, writer, task)

        server.request_factory = factory
        try:
            self._sockets = await _bound(address)
        except OSError as why:
            raise ConfigError(
                f"cannot listen on {address}: {os.strerror(why.errno) if why.errno and why.errno > 0 else why}",
                do=f"stop the program that uses it, or set {self._setting} to another address",
            ) from why
        for each in self._sockets:
            self._run(self._accept(each, server))
        self._watch()
        return Address(address.host, int(self._sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Stops listening, then ends the connections."""
        if self._check is not None:
            self._check.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        await self._runner.cleanup()

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _log.warning("cannot accept connections: %s; trying again", os.strerror(error.errno))
                    await asyncio.sleep(_CHECK_SECONDS)
                continue
            host = str(peer[0])
            if self._make_room(host):
                connection = HttpConnection(self, server, loop, host)
                self.open[connection] = None
                connection.opening = self._run(self._open(connection, sock))
            else:
                sock.close()
            await asyncio.sleep(0)  # an accept that succeeds at once does not yield

    def _make_room(self, host: str) -> bool:
        """Closes the connection that has been idle longest where a cap is reached; False if there is none."""
        same = [each for each in self.open if each.host == host]
        if len(same) < self._caps.per_address:
            if len(self.open) < self._caps.connections:
                return True
            same = list(self.open)
        idle = [each for each in same if not each.serving]
        if not idle:
            return False
        min(idle, key=lambda each: (each.served, each.since)).abandon()
        return True

    async def _open(self, connection: HttpConnection, sock: socket.socket) -> None:
        """Hands the socket over, after the TLS handshake if there is one."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=HEAD_SECONDS_MAX if self._tls is not None else None,
            )
        except BaseException as error:
            self.open.pop(connection, None)
            sock.close()
            if not isinstance(error, OSError | TimeoutError | asyncio.CancelledError):
                raise

    def _watch(self) -> None:
        """Closes connections that are too slow, once a second."""
        now = self.clock.monotonic()
        for each in [each for each in self.open if each.too_slow(now)]:
            each.abandon()
        self._check = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._watch)


class HttpConnection(web.RequestHandler):
    """One connection: aiohttp's, which also knows whether a request is under way."""

    __slots__ = (
        "_body", "_clock", "_listener", "_stuck", "_stuck_since", "_unread", "head_since", "host", "opening", "served",
        "serving", "since",
    )  # fmt: skip

    def __init__(self, listener: Listener, server: web.Server, loop: asyncio.AbstractEventLoop, host: str) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEP_ALIVE_SECONDS_MAX,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to say that there is none
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
            lingering_time=LINGER_SECONDS_MAX,
            auto_decompress=False,
        )
        self._listener, self._clock, self.host = listener, listener.clock, host
        self.opening: asyncio.Task[None] | None = None
        self.serving, self.served = False, False
        self.since = self._clock.monotonic()
        self.head_since: float | None = self.since  # the first head is waited for from the start
        self._body: StreamReader | None = None
        self._unread = 0
        self._stuck, self._stuck_since = 0, 0.0

    def begins(self, body: StreamReader) -> None:
        """A request is complete up to its body."""
        self.serving, self.head_since, self._body, self._unread = True, None, body, 0

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        """The answer is written."""
        self.serving, self.served, self._body = False, True, None
        self.since = self._clock.monotonic()

    def data_received(self, data: bytes) -> None:
        """Counts bytes that no request takes."""
        if self._body is None or self._body.is_eof():
            if not self.serving and self.head_since is None:
                self.head_since = self._clock.monotonic()
            self._unread += len(data)
            if self._unread > UNREAD_BYTES_MAX:
                self.abandon()
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Leaves its place to another."""
        self._listener.open.pop(self, None)
        super().connection_lost(exc)

    def too_slow(self, now: float) -> bool:
        """Whether the head has not come in time, or an answer is not read."""
        if self.head_since is not None and now - self.head_since > HEAD_SECONDS_MAX:
            return True
        if self.transport is None:
            return False
        pending = self.transport.get_write_buffer_size()
        if not pending or pending != self._stuck:
            self._stuck, self._stuck_since = pending, now
        return now - self._stuck_since > SEND_SECONDS_MAX

    def abandon(self) -> None:
        """Closes it at once."""
        self._listener.open.pop(self, None)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to bytes that are no HTTP, and to a handler that broke; says nothing of what was sent."""
        if status >= 500:
            _log.error("a request could not be answered", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: there is no other way to say that it broke than to hang up")
        response = self._listener.failure(status)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Answers of the framework (404, 405, 417) take the application's form."""
        if isinstance(resp, web.HTTPException) and self._listener.failure is not _text:
            allow = resp.headers.get("Allow")
            resp = self._listener.failure(resp.status)
            if allow:
                resp.headers["Allow"] = allow
        return await super().finish_response(request, resp, start_time)


def _text(status: int) -> web.Response:
    return web.Response(status=status, text=f"{status}: the request cannot be answered\n")


async def _bound(address: Address) -> list[socket.socket]:
    """Listening sockets on every address that the host has."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
        try:
            sockets.append(socket.create_server(where, family=family, backlog=_BACKLOG))
        except OSError as error:
            if sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # localhost has two addresses, and this machine only one of them
            for sock in sockets:
                sock.close()
            raise
    for sock in sockets:
        sock.setblocking(False)
    return sockets
