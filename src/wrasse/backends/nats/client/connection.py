"""The connection to NATS: publishes, requests and subscriptions; reconnects after a restart or a failover.

A request is sent once. If its answer is lost, `StoreUnavailable` is raised, and the caller finds out whether it was
done. The next request connects again, to any server of the list or of the cluster that the last server named, and all
subscriptions are renewed. Messages sent in between are missed: subscribers request them again.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from wrasse.backends.nats.client.transport import (
    FrameHandler,
    MessageHandler,
    NatsDenied,
    NatsTransport,
    ServerInfo,
    dial,
)
from wrasse.backends.nats.options import NatsOptions, parse_addresses
from wrasse.backends.tcp import Connecting, ConnectionLost, Silent
from wrasse.errors import ConfigError, StoreUnavailable, WrasseError, reason_of

_STATUS = re.compile(rb"NATS/1\.0 +(\d{3})")
_DENIED = re.compile(r'Permissions Violation for (?:Publish|Subscription) to "([^"]+)"', re.IGNORECASE)
_TURNS = 3  # how often the whole list is tried before StoreUnavailable
_PAUSE, _PAUSE_MAX = 0.02, 0.5
_NODES_MAX = 32


class NoResponders(StoreUnavailable):
    """The server has no responder for this subject: no JetStream, or no such stream."""


@dataclass(frozen=True, slots=True)
class NatsAnswer:
    """An answer. `header` is the raw header block, empty without one."""

    payload: bytes
    header: bytes = b""

    @property
    def status(self) -> int:
        """The number on the header's first line, 0 without one."""
        return status_of(self.header)

    def field(self, name: str) -> str:
        """One field of the header, empty without it; the last of that name."""
        return server_field_of(self.header, name.encode()).decode("utf-8", "replace")


def status_of(header: bytes) -> int:
    """The number on a header's first line, 0 without one."""
    found = _STATUS.match(header)
    return int(found[1]) if found else 0


def field_of(header: bytes, name: bytes) -> bytes:
    """One field of a header block, empty without it. Names are case-sensitive."""
    return _field_at(header, name, header.find(b"\r\n" + name + b":"))


def server_field_of(header: bytes, name: bytes) -> bytes:
    """A field that the server adds: the last of that name, since a publisher may have written one of the same name."""
    return _field_at(header, name, header.rfind(b"\r\n" + name + b":"))


def _field_at(header: bytes, name: bytes, at: int) -> bytes:
    if at < 0:
        return b""
    at += len(name) + 3
    return header[at : header.find(b"\r\n", at)].strip()


def packed_header(fields: Mapping[str, str]) -> bytes:
    """A header block in wire format."""
    return b"NATS/1.0\r\n" + b"".join(b"%b:%b\r\n" % (k.encode(), v.encode()) for k, v in fields.items()) + b"\r\n"


def packed(subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> bytes:
    """A publish in wire format."""
    if header:
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            subject, reply, len(header), len(header) + len(payload), header, payload,
        )  # fmt: skip
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


class _PendingRequest:
    __slots__ = ("future", "subject")

    def __init__(self, future: asyncio.Future[NatsAnswer], subject: str) -> None:
        self.future = future
        self.subject = subject


class _AnswerInbox:
    __slots__ = ("asking", "denied", "lost", "on_message")

    def __init__(
        self,
        heard: MessageHandler,
        lost: Callable[[str], None],
        asking: str,
        denied: Callable[[WrasseError], None] | None,
    ) -> None:
        self.on_message = heard
        self.lost = lost
        self.asking = asking
        self.denied = denied


class Subscription:
    """One subscription, until `end`."""

    __slots__ = ("_connection", "number", "subject")

    def __init__(self, connection: NatsConnection, subject: bytes, number: bytes) -> None:
        self._connection = connection
        self.subject = subject
        self.number = number

    def end(self) -> None:
        """Hears nothing more."""
        self._connection._unsubscribe(self)

    def drain(self) -> None:
        """Unsubscribes after the messages that the server has already sent."""
        self._connection._drain(self)


class NatsConnection:
    """Made by `open`. It serves the event loop that opened it, until `close`."""

    __slots__ = (
        "_closed",
        "_connecting",
        "_heard",
        "_inbox",
        "_inboxes",
        "_nodes",
        "_numbers",
        "_pending",
        "_subscriptions",
        "_taken",
        "_tokens",
        "_wire",
        "connections",
        "options",
        "server",
    )  # fmt: skip

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.server = ServerInfo()
        self.connections = 0  # how many there have been: after a change, messages may have been missed
        self._wire: NatsTransport | None = None
        self._nodes: list[tuple[str, int]] = list(options.nodes)
        self._connecting: Connecting[NatsTransport] = Connecting()
        self._closed = False
        self._inbox = b"_INBOX.%032x." % random.getrandbits(128)
        self._tokens = count(1)
        self._numbers = count(2)
        self._pending: dict[bytes, _PendingRequest] = {}
        self._inboxes: dict[bytes, _AnswerInbox] = {}
        self._heard: dict[bytes, MessageHandler] = {b"1": self._answered}
        self._subscriptions: dict[bytes, bytes] = {b"1": self._inbox + b"*"}
        self._taken: dict[bytes, FrameHandler] = {}

    @classmethod
    async def open(cls, options: NatsOptions) -> NatsConnection:
        """A connection that was established once."""
        connection = cls(options)
        await connection.ready()
        return connection

    async def request(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> NatsAnswer:
        """One request. Raises NoResponders if the subject has none, StoreUnavailable if no answer came: the request may
        have been done."""
        wire = await self.ready()
        token = b"%d" % next(self._tokens)
        future: asyncio.Future[NatsAnswer] = asyncio.get_running_loop().create_future()
        self._pending[token] = _PendingRequest(future, subject)
        seconds = self.options.read_timeout.total_seconds()
        try:
            header = packed_header(headers) if headers else b""
            wire.send(packed(subject.encode(), payload, self._inbox + token, header))
            async with asyncio.timeout(seconds):
                answer = await future
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.options.where} did not answer in {seconds:g}s", do="check that the server is up and not busy"
            ) from None
        except ConnectionLost as cut:
            raise self._unavailable(str(cut)) from cut
        finally:
            del self._pending[token]
        if answer.header and answer.status == 503:
            raise NoResponders(
                f"no responder for {subject!r} on {self.options.where}",
                do="check that JetStream is on (nats-server -js) and that the stream exists",
            )
        return answer

    async def listen(self, subject: bytes, heard: MessageHandler, taken: FrameHandler | None = None) -> Subscription:
        """Calls back with every message of the subject from now on, also after a reconnect; `taken` is called first,
        for subscriptions with very many messages."""
        wire = await self.ready()
        number = b"%d" % next(self._numbers)
        self._heard[number] = heard
        self._subscriptions[number] = subject
        try:
            wire.send(b"SUB %b %b\r\n" % (subject, number))
        except ConnectionLost as cut:
            del self._heard[number], self._subscriptions[number]
            raise self._unavailable(str(cut)) from cut
        if taken is not None:
            self._taken[number] = taken
        return Subscription(self, subject, number)

    def open_inbox(
        self,
        heard: MessageHandler,
        lost: Callable[[str], None],
        asking: str = "",
        denied: Callable[[WrasseError], None] | None = None,
    ) -> bytes:
        """A subject for several answers to one request; `lost` is called when the connection ends, `denied` if the
        server does not let us publish to the subject `asking`. Close it with `close_inbox`."""
        token = b"%d" % next(self._tokens)
        self._inboxes[token] = _AnswerInbox(heard, lost, asking, denied)
        return self._inbox + token

    def close_inbox(self, subject: bytes) -> None:
        """Drops later answers."""
        self._inboxes.pop(subject[len(self._inbox) :], None)

    async def send(self, data: bytes, *, now: bool = False) -> None:
        """Sends packed publishes, and waits while the server does not read. `now`: at once, not at the next loop
        turn."""
        wire = await self.ready()
        try:
            wire.send_now(data) if now else wire.send(data)
        except ConnectionLost as cut:
            raise self._unavailable(str(cut)) from cut

    def post(self, data: bytes) -> None:
        """Sends packed publishes if connected and writable; whether they arrived stays unknown."""
        if data and self._wire is not None and self._wire.open and not self._wire.crowded:
            self._wire.send(data)

    async def close(self) -> None:
        """Ends the connection. Requests that wait for an answer fail with StoreUnavailable."""
        self._closed = True
        if self._wire is not None:
            self._wire.end("this process closed the connection")
            self._wire = None

    async def ready(self) -> NatsTransport:
        """The connection, reconnected if needed, with room to write."""
        wire = self._standing() or await self._connecting.once(self._standing, self._connect)
        if wire.crowded:
            await wire.room(self.options.read_timeout.total_seconds())
        return wire

    def _standing(self) -> NatsTransport | None:
        wire = self._wire
        return wire if wire is not None and wire.open and not wire.retired else None

    def _unsubscribe(self, subscription: Subscription) -> None:
        if self._heard.pop(subscription.number, None) is None:
            return
        self._subscriptions.pop(subscription.number, None)
        self._taken.pop(subscription.number, None)
        if self._wire is not None and self._wire.open:
            self._wire.send(b"UNSUB %b\r\n" % subscription.number)

    def _drain(self, subscription: Subscription) -> None:
        wire = self._wire
        if wire is None or not wire.open or self._subscriptions.pop(subscription.number, None) is None:
            self._unsubscribe(subscription)
            return

        def ended(pong: asyncio.Future[None]) -> None:
            if not pong.cancelled():
                pong.exception()
            self._heard.pop(subscription.number, None)
            self._taken.pop(subscription.number, None)

        wire.send(b"UNSUB %b\r\n" % subscription.number)
        wire.ping().add_done_callback(ended)

    def _answered(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        token = subject[len(self._inbox) :]
        inbox = self._inboxes.get(token)
        if inbox is not None:
            inbox.on_message(subject, reply, header, payload)
            return
        pending = self._pending.get(token)
        if pending is not None and not pending.future.done():
            pending.future.set_result(NatsAnswer(payload, header))

    def _refused_operation(self, words: str) -> None:
        """Handles a refusal that does not end the connection; the refused request would get no other answer."""
        denied = _DENIED.search(words)
        if denied is None:
            return
        refusal = ConfigError(
            f"{self.options.where} does not let us use {denied[1]!r}", do="give this user the permission for it"
        )
        for pending in self._pending.values():
            if pending.subject == denied[1] and not pending.future.done():
                pending.future.set_exception(refusal)
        for inbox in list(self._inboxes.values()):
            if inbox.denied is not None and inbox.asking == denied[1]:
                inbox.denied(refusal)

    def _lost(self, why: str) -> None:
        for pending in list(self._pending.values()):
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(why))
        for inbox in list(self._inboxes.values()):
            inbox.lost(why)

    async def _connect(self) -> NatsTransport:
        old, self._wire = self._wire, None
        if old is not None:
            old.end("the connection moves to another server")
        why = "no server is known"
        for turn in range(_TURNS):
            quick = False
            for host, port in self._order():
                if self._closed:
                    raise StoreUnavailable(f"the connection to {self.options.where} is closed", do="open it again")
                try:
                    return self._begin(
                        await dial(host, port, self.options, self._heard, self._refused_operation, self._taken)
                    )
                except NatsDenied as denied:
                    raise self._denied(str(denied)) from denied
                except (OSError, ssl.SSLError, TimeoutError, ConnectionLost) as error:
                    why = _reason(error)
                    quick = quick or not isinstance(error, TimeoutError | Silent)
            if not quick:
                break  # every server has used its whole timeout: another turn would end the same
            if turn < _TURNS - 1:
                await asyncio.sleep(_pause(turn))
        raise self._unavailable(why)

    def _begin(self, wire: NatsTransport) -> NatsTransport:
        assert wire.info is not None, "a server greets first"
        if not wire.info.headers:
            wire.end("it has no headers")
            raise ConfigError(f"{self.options.where} has no headers", do="use NATS 2.9 or newer, with headers on")
        self.server = wire.info
        self._learn(wire.info.connect_urls or ())
        wire.lost = self._lost
        wire.send(b"".join([b"SUB %b %b\r\n" % (s, number) for number, s in self._subscriptions.items()]))
        self._wire = wire
        self.connections += 1
        return wire

    def _learn(self, urls: Sequence[str]) -> None:
        """Adds servers of the cluster that the list does not name."""
        for url in urls:
            try:
                (node,) = parse_addresses(url)
            except (ConfigError, ValueError):
                continue
            if node not in self._nodes and len(self._nodes) < _NODES_MAX:
                self._nodes.append(node)

    def _order(self) -> list[tuple[str, int]]:
        """Servers of the list first, then those of the cluster; shuffled, so that clients spread."""
        own, learned = list(self.options.nodes), self._nodes[len(self.options.nodes) :]
        random.shuffle(own)
        random.shuffle(learned)
        return own + learned

    def _denied(self, words: str) -> WrasseError:
        if "authorization" in words.lower() or "authentication" in words.lower():
            return ConfigError(
                f"{self.options.where} refuses our login: {words}", do="check the user, password, token, nkey or creds"
            )
        return self._unavailable(words)

    def _unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.options.where} cannot be reached: {why}", do="check the address, and that the server is up"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return reason_of(error) or type(error).__name__
    return str(error) or type(error).__name__


def _pause(attempt: int) -> float:
    """Grows with each attempt, with a random factor so that processes differ."""
    longest: float = min(_PAUSE_MAX, _PAUSE * 4**attempt)
    return longest * (0.5 + random.random() / 2)
