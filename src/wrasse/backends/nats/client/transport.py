"""One connection to one NATS server: lines of text and counted bytes, any number of requests in flight.

The transport never sends anything twice. When the connection ends, `lost` is called once with the reason; the callers
that wait decide what that means. A server that does not answer two PINGs in a row counts as dead, and the connection
ends.

The server is not trusted: every size, line and INFO field is checked against the limits below, and bytes that break the
protocol end the connection with `ConnectionLost`, as a broken connection does. Before the login nothing is delivered to
subscriptions, and nothing is accepted between INFO and the TLS handshake.

`frames_in` parses messages of consumers in bulk: one regular expression cuts them, and their parts stay raw bytes. The
expression only proposes. A frame counts if the sizes on its line are those of the header and the body that were found.
Where they are not, as with a body that has a line break, the frames end, and the transport reads the next one by its
sizes. A frame is a plain tuple, as the expression returns it: an object per frame would take longer than parsing it.

`sign` makes the login: the server sends a nonce, and the private key that signs it never leaves this process. Files are
read again for every connection, so that renewed credentials are used without a restart. No error contains a seed, a
token or a file's contents.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import msgspec

from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.tcp import ConnectionLost, Silent, TcpConnection, Tls, named, printable, reach
from wrasse.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The start of the line; the number of the subscription; the sequence; the rest of the reply subject (number at the
# consumer, nanoseconds, how many are pending); sizes; header; the milliseconds in it if wrasse wrote it; body.
Frame = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]

# The fastest pattern: everything but a few bytes. No subject goes beyond its line.
_FRAME = re.compile(
    rb"(H?MSG [^ \r]++ ([^ \r]++) \$JS\.ACK\.[^. \r]++\.[^. \r]++\.[^. \r]++\.)"
    rb"(\d{1,20}+)\.(\d{1,20}+\.\d{1,20}+\.\d{1,20}+) ([^\r]++)\r\n"
    rb"(NATS/1\.0\r\n(?:Wrasse:([1-9]\d{0,14}+) \d++ \d++ [^\r]*+\r\n)?+(?:[^\r]++\r\n)*+\r\n)?+([^\r]*+)\r\n"
    rb"|(?s:.+)"  # anything that is no such frame is the end: the rest, whole
)
_COUNT_DIGITS_MAX = 20
_BETWEEN = len(b". \r\n\r\n")

# Receives the messages of a subscription: subject, reply, header and payload, raw.
MessageHandler = Callable[[bytes, bytes, bytes, bytes], None]
# Receives messages of a consumer, all consecutive ones of one subscription at once.
FrameHandler = Callable[[Sequence[Frame]], None]

CONTROL_LINE_MAX = 1 << 16
"""Bytes of one line from a NATS server, INFO included."""
PAYLOAD_MAX = 64 << 20
"""Bytes: the largest max_payload that a NATS server may announce. It is nats-server's own ceiling."""
HEADERS_MAX = 1 << 16
"""Bytes of headers that a NATS message may have beyond its payload: JetStream adds headers to stored messages."""
ANSWER_MAX = 32 << 20
"""Bytes of one message from a NATS server, or twice its max_payload where that is more. JetStream's own answers are not
limited by max_payload: one lists up to 100,000 subjects, another has a stored message in base64."""
CONNECT_URLS_MAX = 1_000
"""Addresses of a cluster that a NATS server may name in INFO."""
STEADY_BYTES = 1 << 16
"""Bytes of an unfinished NATS message that must arrive between two PINGs, or the server counts as not answering."""

_DEAF_AFTER = 2
_DIGITS_MAX = 9  # of a size
_WORDS_MAX = 200  # characters of a server's message in an error
_WRITE_HIGH = 1 << 20

_SEED, _USER = 18 << 3, 20 << 3  # the first five bits of an encoded key: S, U
_SEED_BYTES, _CHECK_BYTES = 32, 2
_BLOCK = r"-{3,}BEGIN %s-{3,}\s*(\S+)\s*-{3,}END %s-{3,}"
_JWT = re.compile(_BLOCK % (("NATS USER JWT",) * 2))
_NKEY = re.compile(_BLOCK % (("USER NKEY SEED",) * 2))
_FILE_BYTES_MAX = 1 << 20
CREDS, NKEY = "the file of nats.creds", "the file of nats.nkey"  # their names in errors: a path may be a secret


class ProtocolError(ValueError):
    """Bytes that violate the NATS protocol."""


class NatsDenied(Exception):
    """The server refused the connection or the login; the text is the server's message."""


_Text = Annotated[str, msgspec.Meta(max_length=512)]


class ServerInfo(msgspec.Struct, frozen=True):
    """What a server says about itself, by the names of INFO."""

    version: Annotated[str, msgspec.Meta(max_length=64)] = "0"
    max_payload: Annotated[int, msgspec.Meta(ge=1, le=PAYLOAD_MAX)] = 1 << 20
    headers: bool = False
    name: _Text = msgspec.field(default="", name="server_name")
    id: _Text = msgspec.field(default="", name="server_id")
    nonce: _Text = ""
    tls_required: bool = False
    connect_urls: Annotated[list[_Text], msgspec.Meta(max_length=CONNECT_URLS_MAX)] | None = None
    leaving: bool = msgspec.field(default=False, name="ldm")  # lame duck mode: it is about to stop

    def at_least(self, *wanted: int) -> bool:
        """Whether the server has this version or a newer one."""
        return self.numbers >= wanted

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version in numbers; parsing ends at the first part that is not a number, as in 2.11.0-beta."""
        parts = self.version.partition("-")[0].split(".")
        return tuple(int(part) for part in parts if part.isdecimal())

    @classmethod
    def parse(cls, line: bytes) -> ServerInfo:
        """Reads the JSON of an INFO line; ValueError if a field that we use has another type or is out of range."""
        try:
            told = _decode_info(line)
        except RecursionError as error:
            raise ValueError("INFO is nested too deeply") from error
        return msgspec.structs.replace(told, version=printable(told.version))


_decode_info = msgspec.json.Decoder(ServerInfo).decode


class NatsTransport(TcpConnection):
    """An open connection. Made by `dial`."""

    __slots__ = (
        "_buffer", "_encrypts", "_largest", "_need", "_out", "_owes_pong", "_pongs", "_scheduled", "_silent",
        "_steady", "_timer", "frame_handlers", "greeted", "handlers", "info", "lost", "on_refusal", "retired",
    )  # fmt: skip

    def __init__(self, on_refusal: Callable[[str], None], *, encrypts: bool = False) -> None:
        super().__init__()
        self._buffer = bytearray()  # of an incomplete message
        self._need = 0  # bytes that must be there before it is complete
        self._steady = 0  # bytes of it that were there at the last PING
        self._largest = ANSWER_MAX + HEADERS_MAX
        self._encrypts = encrypts  # INFO is followed by the TLS handshake
        self._out: list[bytes] = []
        self._scheduled = False
        self._pongs: list[asyncio.Future[None]] = []
        self._owes_pong = False
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self.handlers: dict[bytes, MessageHandler] = {}  # by the number of the subscription; empty before the login
        self.frame_handlers: dict[bytes, FrameHandler] = {}  # for subscriptions with very many messages
        self.on_refusal = on_refusal
        self.lost: Callable[[str], None] | None = None
        self.greeted: asyncio.Future[ServerInfo] = self._loop.create_future()
        self.info: ServerInfo | None = None
        self.retired = False  # whether the server asked its clients to reconnect elsewhere

    def send(self, data: bytes) -> None:
        """Sends; everything sent within one turn of the event loop goes out together."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(self._why)
        self._out.append(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def send_now(self, data: bytes) -> None:
        """Sends at once, so that the server begins while the next bytes are prepared."""
        self.send(data)
        self._flush()

    def ping(self) -> asyncio.Future[None]:
        """Sends PING: its PONG proves that everything sent before was read."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self.send(b"PING\r\n")
        return pong

    def watch(self, seconds: float) -> None:
        """Ends the connection when two PINGs in a row, `seconds` apart, stay unanswered."""
        self._timer = self._loop.call_later(seconds, self._tick, seconds)

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
        # An incomplete message counts as activity only if it grows fast enough: a slow one would block all behind it.
        moves = len(self._buffer) - self._steady >= STEADY_BYTES
        self._silent = 0 if moves else self._silent + 1
        self._steady = len(self._buffer)
        self.ping()
        self._timer = self._loop.call_later(seconds, self._tick, seconds)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        super().connection_made(transport)
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=_WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        """Bytes from the server."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return
            data = bytes(self._buffer)
            self._buffer = bytearray()
        try:
            used, self._need = self._read(data)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            what = str(error) if isinstance(error, ProtocolError) else type(error).__name__
            kind = named(data) if self.info is None and not data.startswith(b"INFO") else ""
            self._abort(f"the server does not speak the protocol of NATS: {kind or what}")
            return
        if used:
            self._silent = self._steady = 0
        if used < len(data):
            self._buffer += memoryview(data)[used:]

    def _abort(self, why: str) -> None:
        self.end(why)
        self._buffer, self._need = bytearray(), 0

    def _read(self, data: bytes) -> tuple[int, int]:
        """Reads all complete messages; returns how many bytes were used, and how many must be there to continue."""
        at, size, heard, taken = 0, len(data), self.handlers, self.frame_handlers
        while True:
            end = data.find(b"\r\n", at)
            if (size if end < 0 else end) - at > CONTROL_LINE_MAX:
                raise ProtocolError("a line without an end")
            if end < 0:
                return at, 0
            kind = data[at : at + 4]
            if kind != b"MSG " and kind != b"HMSG":
                self._told(data[at:end], last=end + 2 == size)
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
                taken = {}  # the writer of such a message may have written more of them: the rest is read by its sizes
            digits, body = words[-1], end + 2
            if not digits.isdigit() or len(digits) > _DIGITS_MAX:
                raise ProtocolError("a size that is not a number")
            stop = body + int(digits)
            if stop + 2 > size:
                self._wait_for(stop + 2 - at)
                return at, stop + 2 - at
            split = body
            if kind == b"HMSG":
                digits = words.pop(-2)
                split += int(digits) if digits.isdigit() and len(digits) <= _DIGITS_MAX else size
            if split > stop or not 4 <= len(words) <= 5 or data[stop : stop + 2] != b"\r\n":
                raise ProtocolError("a message that does not have the sizes of its line")
            hear = heard.get(words[2])
            if hear is None:
                self._ignore()
            else:
                hear(words[1], words[3] if len(words) == 5 else b"", data[body:split], data[split:stop])
            at = stop + 2
            if at == size:
                return at, 0

    def _wait_for(self, size: int) -> None:
        """Waits for the rest of a message, if its size is allowed."""
        if size > self._largest:
            raise ProtocolError(f"a message of {size} bytes, and the limit is {self._largest}")

    def _ignore(self) -> None:
        if self.info is None:
            raise ProtocolError("it does not begin with INFO")

    def _take(self, frames: list[Frame]) -> None:
        number, begin = frames[0][1], 0
        if [frame[1] for frame in frames].count(number) < len(frames):  # of several subscriptions, one after the other
            for place, frame in enumerate(frames):
                if frame[1] != number:
                    self.frame_handlers[number](frames[begin:place])
                    number, begin = frame[1], place
        self.frame_handlers[number](frames[begin:] if begin else frames)

    def _told(self, line: bytes, *, last: bool) -> None:
        word = line[:4].upper()
        if self.info is None and word not in (b"INFO", b"-ERR"):
            raise ProtocolError("it does not begin with INFO")
        if word == b"PING":
            self._answer_ping()
        elif word == b"PONG":
            if not self._pongs:
                self._ignore()
            elif not (pong := self._pongs.pop(0)).done():
                pong.set_result(None)
        elif word == b"INFO":
            self._informed(ServerInfo.parse(line[4:]), last=last)
        elif word == b"-ERR":
            self._refused(printable(line[4:].strip().strip(b"'").decode("utf-8", "replace"), _WORDS_MAX))
        elif word[:3] == b"+OK" or not line:
            return
        else:
            raise ProtocolError("an unknown word")

    def _informed(self, info: ServerInfo, *, last: bool) -> None:
        first, self.info = self.info is None, info
        self._largest = max(ANSWER_MAX, 2 * info.max_payload) + HEADERS_MAX
        self.retired = self.retired or info.leaving
        if first and (self._encrypts or info.tls_required) and not self.encrypted:
            # Bytes that an attacker inserts behind INFO would otherwise be read as if they had been encrypted.
            if not last:
                raise ProtocolError("bytes between INFO and the TLS handshake")
            if self._transport is not None:
                self._transport.pause_reading()  # the handshake reads from now on
        if not self.greeted.done():
            self.greeted.set_result(info)

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is not None

    def _answer_ping(self) -> None:
        """One PONG answers all PINGs that arrive while the server does not read: answers would pile up here."""
        if self._room is not None:
            self._owes_pong = True
        elif self.open:
            self.send(b"PONG\r\n")

    def _refused(self, words: str) -> None:
        self._why = words
        waiting: list[asyncio.Future[ServerInfo] | asyncio.Future[None]] = [self.greeted, *self._pongs]
        logging_in = self._timer is None
        for future in waiting:
            if logging_in and not future.done():
                future.set_exception(NatsDenied(words))
        self.on_refusal(words)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._owes_pong and self.open:
            self._owes_pong = False
            self.send(b"PONG\r\n")

    def _lose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        pongs, self._pongs = self._pongs, []
        waiting: list[asyncio.Future[ServerInfo] | asyncio.Future[None]] = [self.greeted, *pongs]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionLost(self._why))
                future.exception()  # marks the exception as retrieved, whether or not a caller waits for it
        lost, self.lost = self.lost, None
        if lost is not None:
            lost(self._why)


async def dial(
    host: str,
    port: int,
    options: NatsOptions,
    heard: dict[bytes, MessageHandler],
    on_refusal: Callable[[str], None],
    taken: dict[bytes, FrameHandler] | None = None,
) -> NatsTransport:
    """An open connection, logged in. Raises OSError, ssl.SSLError, TimeoutError, ConnectionLost or NatsDenied."""
    wire: NatsTransport | None = None
    try:
        async with asyncio.timeout(options.dial_timeout.total_seconds()):
            first = options.tls is not None and options.tls.first
            wire = await reach(
                host, port, lambda: NatsTransport(on_refusal, encrypts=options.tls is not None and not first),
                options.tls.context("nats.tls") if options.tls is not None and first else None,
            )  # fmt: skip
            info = await wire.greeted
            encrypted = options.tls is not None or info.tls_required
            if encrypted and not wire.encrypted:
                await wire.encrypt((options.tls or Tls()).context("nats.tls"), host)
            await _log_in(wire, info, options, encrypted=encrypted)
    except TimeoutError:
        if wire is None:
            raise
        wire.end("logging in failed")
        if wire.info is not None:
            raise
        raise Silent("no answer in time: it accepts connections and sends no INFO; is it a NATS server?") from None
    except BaseException:
        if wire is not None:
            wire.end("logging in failed")
        raise
    wire.handlers, wire.frame_handlers = heard, {} if taken is None else taken
    wire.watch(options.ping_interval.total_seconds())
    return wire


async def _log_in(wire: NatsTransport, info: ServerInfo, options: NatsOptions, *, encrypted: bool) -> None:
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


def frames_in(data: bytes, at: int, known: Container[bytes]) -> tuple[list[Frame], int]:
    """The complete frames of these subscriptions in the data from `at` on, and where they end."""
    found: list[Frame] = _FRAME.findall(data, at)
    for place, (begin, number, seq, rest, sizes, header, _, body) in enumerate(found):
        size = len(header)
        total = size + len(body)
        if sizes != (b"%d %d" % (size, total) if size else b"%d" % total) or number not in known:
            del found[place:]
            break
        at += len(begin) + len(seq) + len(rest) + len(sizes) + total + _BETWEEN
    return found, at


def frame_of(reply: bytes, header: bytes, body: bytes) -> Frame:
    """A message that was read by its sizes. Its reply subject names stream, consumer and a count, and before them, if
    it came from a domain, that and an account."""
    words = reply.split(b".")
    seq, *rest = numbers = words[5:9] if len(words) == 9 else words[7:11]
    if len(numbers) != 4 or not b"".join(numbers).isdigit() or max(map(len, numbers)) > _COUNT_DIGITS_MAX:
        raise ValueError("a reply subject that is not a consumer's")
    return b"", b"", seq, b".".join(rest), b"", header, b"", body


def place_of(frame: Frame) -> tuple[int, int]:
    """Its number at the consumer, which has no gaps, and how many are pending there after it."""
    number, _, pending = frame[3].split(b".")
    return int(number), int(pending)


@dataclass(frozen=True, slots=True)
class Login:
    """The fields of CONNECT that identify the user; empty ones are left out."""

    user: str = ""
    password: str = field(default="", repr=False)
    auth_token: str = field(default="", repr=False)
    nkey: str = ""
    jwt: str = field(default="", repr=False)
    sig: str = field(default="", repr=False)

    def fields(self) -> dict[str, str]:
        """The fields by their names in CONNECT."""
        named = {
            "user": self.user,
            "pass": self.password,
            "auth_token": self.auth_token,
            "nkey": self.nkey,
            "jwt": self.jwt,
            "sig": self.sig,
        }
        return {name: text for name, text in named.items() if text}


def sign(options: NatsOptions, nonce: str) -> Login:
    """The login for one connection; `nonce` is from the server's INFO, empty if it sent none."""
    if options.creds:
        jwt, seed = _creds(options.creds)
        return Login(jwt=jwt, sig=_signed(seed, nonce, CREDS))
    if options.nkey:
        seed = _seed_in(_read(options.nkey, NKEY), NKEY)
        return Login(nkey=public_key(seed, NKEY), sig=_signed(seed, nonce, NKEY))
    return Login(user=options.username, password=options.password, auth_token=options.token)


def public_key(seed: str, where: str = "the seed") -> str:
    """The public key of a user's seed, as servers name users: `U…`."""
    key = _private(seed, where).public_key().public_bytes_raw()
    return encoded(bytes([_USER]) + key)


def encoded(key: bytes) -> str:
    """A key with its prefix and checksum, in the base32 text of NATS."""
    check = binascii.crc_hqx(key, 0).to_bytes(_CHECK_BYTES, "little")
    return base64.b32encode(key + check).decode().rstrip("=")


def _signed(seed: str, nonce: str, where: str) -> str:
    if not nonce:
        return ""  # a server without a nonce accepts any user, or refuses the login itself
    return base64.urlsafe_b64encode(_private(seed, where).sign(nonce.encode())).decode().rstrip("=")


def _private(seed: str, where: str) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"signing in to NATS with a key needs the package {missing.name}", do="pip install 'wrasse[nats]'"
        ) from missing
    return Ed25519PrivateKey.from_private_bytes(_raw(seed, where))


def _raw(seed: str, where: str) -> bytes:
    """The 32 bytes of a user's seed."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        raw = b""
    whole = len(raw) == 2 + _SEED_BYTES + _CHECK_BYTES
    if not whole or binascii.crc_hqx(raw[:-_CHECK_BYTES], 0).to_bytes(_CHECK_BYTES, "little") != raw[-_CHECK_BYTES:]:
        raise ConfigError(f"{where} has no seed of a NATS key", do="use the file that nsc or nk made for this user")
    if raw[0] & 0xF8 != _SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != _USER:
        raise ConfigError(f"{where} has the seed of a key that is not a user's", do="use a user's: it begins with SU")
    return raw[2 : 2 + _SEED_BYTES]


def _creds(path: str) -> tuple[str, str]:
    text = _read(path, CREDS)
    jwt = _JWT.search(text)
    if jwt is None:
        raise ConfigError(f"{CREDS} has no JWT of a NATS user", do="use the .creds file that nsc made for this user")
    return jwt[1], _seed_in(text, CREDS)


def _seed_in(text: str, where: str) -> str:
    block = _NKEY.search(text)
    if block is not None:
        return block[1]
    bare = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(bare) == 1 and bare[0].startswith("S"):
        return bare[0]
    raise ConfigError(f"{where} has no seed of a NATS key", do="use the file that nsc or nk made for this user")


def _read(path: str, where: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        what = f"{where} cannot be read: {error.strerror}"
        raise ConfigError(what, do="check its path and its permissions") from error
