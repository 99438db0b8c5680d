"""An HTTP listener with limits that apply before authentication: connections, headers, bytes, time.

A connection that does not send the head of its request in time is closed. Beyond the maximum number of connections, in
total or from one address, the connection that has been idle longest is closed; if none is idle, the new one is closed.
The limits leave file descriptors for other work of the process. Errors before routing are answered in the application's
error format.
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
from wrasse.config.urls import Address
from wrasse.errors import ConfigError

HEAD_SECONDS_MAX = 10.0
"""Seconds for the head of a request from its first byte, for a TLS handshake, and for a connection's first byte."""
KEEP_ALIVE_SECONDS_MAX = 120.0
"""Seconds that a connection stays open between requests."""
SEND_SECONDS_MAX = 60.0
"""Seconds that a client may leave an answer unread, without reading a single byte."""
LINGER_SECONDS_MAX = 5.0
"""Seconds for which the rest of a refused body is read and dropped, so that the client gets the answer."""
LINE_BYTES_MAX = 8 << 10
"""Maximum bytes of the request line and of a header."""
HEADERS_MAX = 100
"""Maximum number of headers of a request."""
UNREAD_BYTES_MAX = 512 << 10
"""Maximum bytes of one connection outside a running request: a head, or pipelined requests."""
DESCRIPTORS_SHARE = 4
"""One server uses at most this fraction of the process's limit of open files: a quarter."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BACKLOG = 256
_CHECK_SECONDS = 1.0
_log = logging.getLogger("wrasse.http")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum connections of one server, in total and from one address."""

    connections: int
    per_address: int


def caps_within(connections: int, per_address: int, descriptors: int | None = None) -> ConnectionLimits:
    """These limits, lowered to the server's share of the process's limit of open files."""
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    share = connections if descriptors == resource.RLIM_INFINITY else max(8, descriptors // DESCRIPTORS_SHARE)
    return ConnectionLimits(min(connections, share), min(per_address, share))


Failure = Callable[[int], web.Response]
"""Makes the answer to an error from outside the application's handlers, by its status."""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """`setting` names the address. `failure` makes answers to errors outside handlers; without it they are text.
    `cancel`: cancels the handler of a client that has disconnected."""

    setting: str
    failure: Failure | None = None
    tls: ssl.SSLContext | None = None
    cancel: bool = False
    shutdown_seconds: float = 1.0


class Listener:
    """One application on one address."""

    def __init__(self, app: web.Application, caps: ConnectionLimits, clock: Clock, options: ListenerOptions) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=options.cancel, shutdown_timeout=options.shutdown_seconds
        )
        self._caps, self.clock, self._options = caps, clock, options
        self.failure = options.failure or _text
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.open: dict[HttpConnection, None] = {}  # oldest first
        self._check: asyncio.TimerHandle | None = None

    async def start(self, address: Address) -> Address:
        """Starts listening; returns the actual address."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "a runner has a server after setup"
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
                do=f"stop the program that uses it, or set {self._options.setting} to another address",
            ) from why
        for each in self._sockets:
            self._run(self._accept(each, server))
        self._watch()
        return Address(address.host, int(self._sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Stops listening, then closes the connections."""
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
        """Closes the connection that has been idle longest if a limit is reached; False if none is idle."""
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
        """Passes the socket on, after the TLS handshake if there is one."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._options.tls,
                ssl_handshake_timeout=HEAD_SECONDS_MAX if self._options.tls is not None else None,
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
    """A connection of aiohttp that also knows whether a request is running."""

    __slots__ = (
        "_body", "_clock", "_listener", "_stuck", "_stuck_since", "_unread", "head_since", "host", "opening", "served",
        "serving", "since",
    )  # fmt: skip

    def __init__(self, listener: Listener, server: web.Server, loop: asyncio.AbstractEventLoop, host: str) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEP_ALIVE_SECONDS_MAX,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's value for none
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
        self.head_since: float | None = self.since  # the wait for the first head begins now
        self._body: StreamReader | None = None
        self._unread = 0
        self._stuck, self._stuck_since = 0, 0.0

    def begins(self, body: StreamReader) -> None:
        """The head of a request is complete."""
        self.serving, self.head_since, self._body, self._unread = True, None, body, 0

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        """The answer is written."""
        self.serving, self.served, self._body = False, True, None
        self.since = self._clock.monotonic()

    def data_received(self, data: bytes) -> None:
        """Counts bytes that belong to no request."""
        if self._body is None or self._body.is_eof():
            if not self.serving and self.head_since is None:
                self.head_since = self._clock.monotonic()
            self._unread += len(data)
            if self._unread > UNREAD_BYTES_MAX:
                self.abandon()
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Removes the connection from the open ones."""
        self._listener.open.pop(self, None)
        super().connection_lost(exc)

    def too_slow(self, now: float) -> bool:
        """Whether the head is overdue, or an answer is not read."""
        if self.head_since is not None and now - self.head_since > HEAD_SECONDS_MAX:
            return True
        if self.transport is None:
            return False
        pending = self.transport.get_write_buffer_size()
        if not pending or pending != self._stuck:
            self._stuck, self._stuck_since = pending, now
        return now - self._stuck_since > SEND_SECONDS_MAX

    def abandon(self) -> None:
        """Closes the connection at once."""
        self._listener.open.pop(self, None)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to invalid HTTP, or to a failed handler; without details of the request."""
        if status >= 500:
            _log.error("a request could not be answered", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: an error can only be signalled by closing the connection")
        response = self._listener.failure(status)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Answers of the framework (404, 405, 417) get the application's format."""
        if isinstance(resp, web.HTTPException) and self._listener.failure is not _text:
            allow = resp.headers.get("Allow")
            resp = self._listener.failure(resp.status)
            if allow:
                resp.headers["Allow"] = allow
        return await super().finish_response(request, resp, start_time)


def _text(status: int) -> web.Response:
    return web.Response(status=status, text=f"{status}: the request cannot be answered\n")


async def _bound(address: Address) -> list[socket.socket]:
    """Listening sockets on every address of the host."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
        try:
            sockets.append(socket.create_server(where, family=family, backlog=_BACKLOG))
        except OSError as error:
            if sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # localhost has two addresses, of which this machine may have only one
            for sock in sockets:
                sock.close()
            raise
    for sock in sockets:
        sock.setblocking(False)
    return sockets
