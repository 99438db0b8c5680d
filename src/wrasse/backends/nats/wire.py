"""One connection to one NATS server: lines of text and counted bytes, any number of questions under way.

Nothing is ever sent twice from here. When the connection ends, `lost` is called once with why; whoever waits for an
answer decides what that means. A server that does not answer two PINGs in a row is deaf, and the connection ends.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from wrasse.backends.nats.credentials import sign, tls_context
from wrasse.backends.nats.frames import Frame, frames_in
from wrasse.backends.nats.options import NatsOptions, Tls

# What hears the messages of a subscription: subject, reply, header and payload, as they came.
Heard = Callable[[bytes, bytes, bytes, bytes], None]
# What takes messages of a consumer, as many of one subscription as came one after the other.
Taken = Callable[[Sequence[Frame]], None]

_DEAF_AFTER = 2
_LINE_BYTES_MAX = 1 << 16
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_WRITE_HIGH = 1 << 20


class Cut(Exception):
    """The connection ended: what was sent may have been done, or not."""


class Denied(Exception):
    """The server refused the connection or the login; its own words."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself."""

    name: str
    version: str
    max_payload: int
    headers: bool
    jetstream: bool
    id: str = ""
    nonce: str = ""
    tls_required: bool = False
    connect_urls: tuple[str, ...] = ()
    leaving: bool = False  # it is about to stop, and asks its clients to go elsewhere

    def at_least(self, *wanted: int) -> bool:
        """Whether the server is of this version or newer."""
        return self.numbers >= wanted

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version in numbers; what is no number ends it, as in 2.11.0-beta."""
        parts = self.version.partition("-")[0].split(".")
        return tuple(int(part) for part in parts if part.isdecimal())

    @classmethod
    def parse(cls, line: bytes) -> ServerInfo:
        """Reads the JSON of an INFO line."""
        told = json.loads(line)
        return cls(
            name=str(told.get("server_name", "")),
            version=str(told.get("version", "0")),
            max_payload=int(told.get("max_payload", 1 << 20)),
            headers=bool(told.get("headers", False)),
            jetstream=bool(told.get("jetstream", False)),
            id=str(told.get("server_id", "")),
            nonce=str(told.get("nonce", "")),
            tls_required=bool(told.get("tls_required", False)),
            connect_urls=tuple(str(url) for url in told.get("connect_urls") or ()),
            leaving=bool(told.get("ldm", False)),
        )


class Wire(asyncio.Protocol):
    """An open connection. Make it with `dial`."""

    __slots__ = (
        "_have", "_loop", "_need", "_out", "_pieces", "_pongs", "_room", "_scheduled", "_silent", "_timer",
        "_transport", "_why", "complained", "greeted", "heard", "info", "lost", "retired", "taken",
    )  # fmt: skip

    def __init__(
        self, heard: dict[bytes, Heard], complained: Callable[[str], None], taken: dict[bytes, Taken] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._have = self._need = 0
        self._out: list[bytes] = []
        self._scheduled = False
        self._room: asyncio.Future[None] | None = None
        self._pongs: list[asyncio.Future[None]] = []
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._why = "the connection ended"
        self.heard = heard  # by the number of the subscription
        self.taken = {} if taken is None else taken  # for those that are heard by the thousand
        self.complained = complained
        self.lost: Callable[[str], None] | None = None
        self.greeted: asyncio.Future[ServerInfo] = self._loop.create_future()
        self.info: ServerInfo | None = None
        self.retired = False  # asked by the server to go elsewhere

    @property
    def open(self) -> bool:
        """Whether it can still be written to."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Sends; what is sent within one turn of the event loop goes out together."""
        if self._transport is None or self._transport.is_closing():
            raise Cut(self._why)
        self._out.append(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def send_now(self, data: bytes) -> None:
        """Sends at once, so that the server begins while the rest is made."""
        self.send(data)
        self._flush()

    @property
    def crowded(self) -> bool:
        """Whether the server is behind with reading."""
        return self._room is not None

    async def room(self) -> None:
        """Waits while the server does not read what was sent."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def ping(self) -> asyncio.Future[None]:
        """Asks for a PONG: when it comes, everything sent before has been read."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self.send(b"PING\r\n")
        return pong

    def watch(self, seconds: float) -> None:
        """From now on ends the connection when the server has been deaf for two such spans."""
        self._timer = self._loop.call_later(seconds, self._tick, seconds)

    def end(self, why: str) -> None:
        """Ends the connection at once."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    async def encrypt(self, tls: Tls, host: str) -> None:
        """Goes on in TLS."""
        assert self._transport is not None, "the connection stands"
        name = host if tls.verify else None
        changed = await self._loop.start_tls(self._transport, self, tls_context(tls), server_hostname=name or host)
        assert changed is not None, "the handshake ended well"
        self._transport = changed

    def _flush(self) -> None:
        self._scheduled = False
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _tick(self, seconds: float) -> None:
        if not self.open:
            return
        if self._silent >= _DEAF_AFTER:
            self.end(f"no answer to a PING within {seconds * _DEAF_AFTER:g}s")
            return
        self._silent += 1
        self.send(b"PING\r\n")
        self._timer = self._loop.call_later(seconds, self._tick, seconds)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        """Bytes from the server."""
        self._silent = 0  # whatever it says, it lives
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
            self._pieces = []
        try:
            used, self._need = self._read(data)
        except (ValueError, IndexError, KeyError) as error:
            self.end(f"the server does not speak the protocol of NATS: {type(error).__name__}")
            return
        if used < len(data):
            self._pieces = [data[used:]]
            self._have = len(data) - used

    def _read(self, data: bytes) -> tuple[int, int]:
        """Takes all whole messages; gives how much was used, and how much there must be before it goes on."""
        at, size, heard, taken = 0, len(data), self.heard, self.taken
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                if size - at > _LINE_BYTES_MAX:
                    raise ValueError("a line without an end")
                return at, 0
            kind = data[at : at + 4]
            if kind != b"MSG " and kind != b"HMSG":
                self._told(data[at:end])
                at = end + 2
                continue
            words = data[at:end].split(b" ")
            if words[2] in taken:
                frames, at = frames_in(data, at, taken)
                if frames:
                    self._take(frames)
                    if at == size:
                        return at, 0
                    continue
                taken = {}  # who writes such a message may have written more: the rest is read by its sizes
            body = end + 2
            stop = body + int(words[-1])
            if stop + 2 > size:
                return at, stop + 2 - at
            hear = heard.get(words[2])
            if hear is not None and kind == b"MSG ":
                hear(words[1], words[3] if len(words) == 5 else b"", b"", data[body:stop])
            elif hear is not None:
                split = body + int(words[-2])
                hear(words[1], words[3] if len(words) == 6 else b"", data[body:split], data[split:stop])
            at = stop + 2
            if at == size:
                return at, 0

    def _take(self, frames: list[Frame]) -> None:
        number, begin = frames[0][1], 0
        if [frame[1] for frame in frames].count(number) < len(frames):  # of several, one after the other
            for place, frame in enumerate(frames):
                if frame[1] != number:
                    self.taken[number](frames[begin:place])
                    number, begin = frame[1], place
        self.taken[number](frames[begin:] if begin else frames)

    def _told(self, line: bytes) -> None:
        word = line[:5].upper()
        if word.startswith(b"PING"):
            if self.open:
                self.send(b"PONG\r\n")
        elif word.startswith(b"PONG"):
            if self._pongs and not (pong := self._pongs.pop(0)).done():
                pong.set_result(None)
        elif word.startswith(b"INFO"):
            self.info = ServerInfo.parse(line[5:])
            self.retired = self.retired or self.info.leaving
            if not self.greeted.done():
                self.greeted.set_result(self.info)
        elif word.startswith(b"-ERR"):
            self._refused(line[5:].strip().strip(b"'").decode("utf-8", "replace"))
        elif word.startswith(b"+OK") or not line:
            return
        else:
            raise ValueError("an unknown word")

    def _refused(self, words: str) -> None:
        self._why = words
        waiting: list[asyncio.Future[ServerInfo] | asyncio.Future[None]] = [self.greeted, *self._pongs]
        logging_in = self._timer is None
        for future in waiting:
            if logging_in and not future.done():
                future.set_exception(Denied(words))
        self.complained(words)

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
        if isinstance(error, OSError):
            self._why = f"the connection broke: {error.strerror}"
        self._lose()

    def _lose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        pongs, self._pongs = self._pongs, []
        waiting: list[asyncio.Future[ServerInfo] | asyncio.Future[None]] = [self.greeted, *pongs]
        for future in waiting:
            if not future.done():
                future.set_exception(Cut(self._why))
                future.exception()  # whoever waits for it gets it; nobody has to
        lost, self.lost = self.lost, None
        if lost is not None:
            lost(self._why)


async def dial(
    host: str,
    port: int,
    options: NatsOptions,
    heard: dict[bytes, Heard],
    complained: Callable[[str], None],
    taken: dict[bytes, Taken] | None = None,
) -> Wire:
    """An open connection, logged in. Raises OSError, ssl.SSLError, TimeoutError, Cut or Denied."""
    loop = asyncio.get_running_loop()
    first = options.tls is not None and options.tls.first
    context = tls_context(options.tls) if options.tls is not None and first else None
    async with asyncio.timeout(options.dial_timeout.total_seconds()):
        _, wire = await loop.create_connection(
            lambda: Wire(heard, complained, taken), host, port, ssl=context, server_hostname=host if context else None
        )
        try:
            _set_up(wire)
            info = await wire.greeted
            if not first and (options.tls is not None or info.tls_required):
                await wire.encrypt(options.tls or Tls(), host)
            await _log_in(wire, info, options, encrypted=options.tls is not None or info.tls_required)
        except BaseException:
            wire.end("logging in failed")
            raise
    wire.watch(options.ping_interval.total_seconds())
    return wire


async def _log_in(wire: Wire, info: ServerInfo, options: NatsOptions, *, encrypted: bool) -> None:
    told = {
        "verbose": False,
        "pedantic": False,
        "echo": True,
        "headers": True,
        "no_responders": True,
        "protocol": 1,
        "lang": "python-wrasse",
        "version": "1",
        "name": options.name,
        "tls_required": encrypted,
        **sign(options, info.nonce).fields(),
    }
    wire.send(b"CONNECT " + json.dumps(told, separators=(",", ":")).encode() + b"\r\n")
    await wire.ping()


def _set_up(wire: Wire) -> None:
    assert wire._transport is not None, "the connection stands"
    sock = wire._transport.get_extra_info("socket")
    if sock is None:
        return
    # Two writes in a row would otherwise wait 40 ms for each other.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
