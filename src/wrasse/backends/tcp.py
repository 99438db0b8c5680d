"""Common parts of our own clients of Redis and NATS: addresses, TLS, and a connection below any protocol."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from wrasse.errors import ConfigError

Address = tuple[str, int]
ENDED, BROKE = "the connection ended", "the connection broke"
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # alert, handshake
_FIRST_BYTES = (
    (b"HTTP/", "an HTTP server answers there"),
    (b"INFO {", "a NATS server answers there"),
    (b"SSH-", "an SSH server answers there"),
    (b"-ERR Protocol error", "a Redis answers there"),
    (b"-ERR unknown command", "a Redis answers there"),
)


class ConnectionLost(Exception):
    """The connection ended before the answer came: the request may have been executed, or not."""


class Silent(ConnectionLost):
    """The server accepted the connection and did not send the beginning of its protocol in time."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption: whose certificates are trusted (empty: the system's), and our own certificate if one is required.
    `first`: the server expects the handshake before it sends anything (NATS: `handshake_first`)."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True
    first: bool = False

    def context(self, section: str) -> ssl.SSLContext:
        """The SSL context; `section` is the name of the settings in errors."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # ssl.SSLError is one, too
            what = "has no certificate" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
            raise ConfigError(
                f"a file of {section} {what}", do=f"correct {section}.ca, .cert or .key: PEM files that we may read"
            ) from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def query(self) -> list[tuple[str, str]]:
        """The options for the query of a URL."""
        files = ("ca", self.ca), ("cert", self.cert), ("key", self.key)
        flags = ("verify", "" if self.verify else "false"), ("tls_first", "true" if self.first else "")
        return [(name, text) for name, text in (*files, *flags) if text]


class TcpConnection(asyncio.Protocol, ABC):
    """A connection whose protocol a subclass implements."""

    __slots__ = ("_loop", "_room", "_transport", "_why")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._room: asyncio.Future[None] | None = None
        self._why = ENDED

    @property
    def open(self) -> bool:
        """Whether it can still be written to."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def crowded(self) -> bool:
        """Whether the write buffer is full because the server does not read."""
        return self._room is not None

    async def room(self, within: float) -> None:
        """Waits while the server does not read; after `within` seconds the connection ends."""
        if self._room is not None:
            try:
                async with asyncio.timeout(within):
                    await asyncio.shield(self._room)
            except TimeoutError:
                self.end("the server does not read")

    def end(self, why: str) -> None:
        """Ends the connection at once."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Starts TLS."""
        assert self._transport is not None, "the connection stands"
        changed = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if changed is None:
            raise ConnectionLost("the server ended the connection during the TLS handshake")
        self._transport = changed

    @abstractmethod
    def _lose(self) -> None:
        """Fails everything that waits; may be called more than once."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        """The server does not read."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if error is not None:
            self._why = f"{BROKE}: {error.strerror if isinstance(error, OSError) else error}"
        self._lose()


_C = TypeVar("_C", bound=TcpConnection)


class Connecting(Generic[_C]):
    """One caller connects, the others wait for the result: a dead server does not get one attempt per caller."""

    __slots__ = ("_failure", "_lock", "attempts")

    def __init__(self) -> None:
        self.attempts = 0
        self._failure: Exception | None = None
        self._lock = asyncio.Lock()

    async def once(self, there: Callable[[], _C | None], connect: Callable[[], Awaitable[_C]]) -> _C:
        """The existing connection, or a new one."""
        seen = self.attempts
        async with self._lock:
            if (wire := there()) is not None:
                return wire
            if self.attempts != seen and self._failure is not None:
                raise self._failure
            self.attempts += 1
            self._failure = None
            try:
                return await connect()
            except Exception as error:
                self._failure = error
                raise


async def reach(host: str, port: int, make: Callable[[], _C], context: ssl.SSLContext | None = None) -> _C:
    """An established connection; `context` encrypts it from its first byte."""
    try:
        transport, made = await asyncio.get_running_loop().create_connection(
            make, host, port, ssl=context, server_hostname=host if context else None
        )
    except ValueError as error:  # an invalid name; another server may have announced it
        raise ConnectionLost("the host has no valid name") from error
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return made


def parse_address(text: str, port: int, what: str) -> Address:
    """`host:port`, `[host]:port`, or a host alone, which then has this port. `what` names it in errors: a Redis."""
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, number = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or "@" in host or "/" in host:
        raise ConfigError(f"the address of {what} is not host:port", do=f"write host:{port}")
    found = parse_number("the port", number, what)
    if not 1 <= found <= 65_535:
        raise ConfigError(f"{number} is not a port", do=f"write one from 1 to 65535, such as {port}")
    return host, found


def parse_number(name: str, text: str, what: str) -> int:
    """A number in the URL of `what`."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ConfigError(f"{name} of {what} is not a number", do="write digits only")
    return int(text)


def shown_addresses(nodes: tuple[Address, ...]) -> str:
    """The addresses as text."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)


def named(first: bytes) -> str:
    """The protocol of a server that does not speak ours, guessed from the first bytes it sent; empty if they do not
    tell."""
    if first.startswith(_TLS_RECORDS):
        return "it answers in TLS"
    return next((kind for begins, kind in _FIRST_BYTES if first.startswith(begins)), "")


def printable(text: str, longest: int = 512) -> str:
    """A server's message without control characters, cut to a length."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:longest])
