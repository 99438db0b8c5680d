"""Pull requests: one request for up to `limit` messages of a durable, answered as soon as there is one.

A request with `no_wait` and `expires` is a one-shot long poll: the server answers with the available messages, or waits
for the first one. If the waiting requests already exceed what can be delivered (the durable is paused, or its
MaxAckPending reached), the server refuses another one at once: then a request for a single message waits in line.

Each request uses an inbox with a subscription of its own, which the next request reuses. A request that is given up
(cancelled, or without an answer) loses its subscription: the server then drops the request, and messages on their way
are nacked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from wrasse.backends.nats.client.connection import NoResponders, Subscription, packed, status_of
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.client.transport import ANSWER_MAX
from wrasse.backends.nats.page_consumer import PageBudget
from wrasse.errors import StoreUnavailable

NAK = b"-NAK"
_BYTES_MAX = 8 << 20  # of one request
_UNASKED_MAX = 64 << 20  # below this worst case no byte limit is requested, since one costs an extra message
_ENVELOPE = 64 << 10  # of a message beyond its payload
_GRACE = 2.0  # seconds beyond the wait, for a busy server
_FREE_MAX = 64
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """One message as it was delivered; `reply` is the subject of its ack."""

    reply: bytes
    header: bytes
    body: bytes


class _Pull:
    """One question."""

    __slots__ = ("budget", "ended", "found", "refused_to_wait", "wanted")

    def __init__(self, wanted: int, size: int) -> None:
        self.found: list[PulledMessage] = []
        self.wanted = wanted
        self.refused_to_wait = False  # waiting requests already exceed what can be delivered
        self.budget = PageBudget(wanted, size)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: StoreUnavailable | None = None) -> None:
        """Ends the request, complete or not: messages that arrived count in both cases."""
        if self.ended.done():
            return
        if error is None or self.found:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def cut(self, why: str) -> None:
        """The connection ended."""
        self.end(StoreUnavailable(f"the connection ended during a pull request: {why}", do="ask again"))


class _PullInbox:
    """The inbox for the answers of one request after another."""

    __slots__ = ("_pulls", "count", "pull", "reply", "subject", "subscription")

    def __init__(self, pulls: Pulls, subject: bytes) -> None:
        self._pulls = pulls
        self.subject = subject
        self.subscription: Subscription | None = None
        self.pull: _Pull | None = None
        self.count = 0  # of requests
        self.reply = b""

    def ask(self, pull: _Pull) -> bytes:
        """The reply subject of this request: the end of an earlier one may arrive late."""
        self.pull = pull
        self.count += 1
        self.reply = b"%b.%d" % (self.subject, self.count)
        return self.reply

    def heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A message, or the status that ends a request."""
        pull = self.pull
        status = status_of(header) if header.startswith(b"NATS/1.0 ") else 0
        if not status and pull is None:
            self._pulls.give_back([reply])  # the request was given up while the message was on its way
        elif pull is None or status == 100 or (status and subject != self.reply):
            return
        elif not status:
            pull.budget.spend(len(header) + len(payload))
            pull.found.append(PulledMessage(reply, header, payload))
            if len(pull.found) >= pull.wanted:
                pull.end()
        elif status == 503:
            pull.end(NoResponders("the consumer does not answer", do="try again, or join its group"))
        elif status == 400 or header[13:].startswith(b"Exceeded "):  # refused: a repetition would be refused again
            why = header[13:].split(b"\r\n", 1)[0].decode(errors="replace")
            pull.end(StoreUnavailable(f"NATS refused a pull request: {why}", do="look at the consumer's limits"))
        else:  # 404, 408, 409: no more messages for this request
            pull.refused_to_wait = status == 408 and header[13:].startswith(b"Requests Pending")
            pull.end()


class Pulls:
    """Pulls messages of durables."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._connection = js.connection
        self._free: list[_PullInbox] = []
        self._numbers = count(1)
        self._base = js.connection.open_inbox(lambda *_: None, lambda _: None)
        js.connection.close_inbox(self._base)

    async def ask(self, stream: str, name: str, limit: int, wait: timedelta) -> list[PulledMessage]:
        """Up to `limit` messages, waiting up to `wait` for the first one. NoResponders: the durable does not exist, or
        has no leader now."""
        found = await self._once(stream, name, limit, wait, b',"no_wait":true')
        if found is None:
            found = await self._once(stream, name, 1, wait, b"")
        return found or []

    async def _once(
        self, stream: str, name: str, limit: int, wait: timedelta, how: bytes
    ) -> list[PulledMessage] | None:
        """One request; None if the server refused to let it wait behind others."""
        inbox = self._free.pop() if self._free else await self._open()
        largest = self._connection.server.max_payload + _ENVELOPE
        size = max(_BYTES_MAX, largest)
        pull = _Pull(limit, _UNASKED_MAX + size + ANSWER_MAX)
        reply = inbox.ask(pull)
        watch = self._connection.open_inbox(lambda *_: None, pull.cut)
        expires = b',"expires":%d' % (wait // _MICROSECOND * 1_000) if wait > timedelta(0) else b""
        if limit * largest > _UNASKED_MAX:
            expires += b',"max_bytes":%d' % size
        request = b'{"batch":%d%b%b}' % (limit, how, expires)
        subject = f"{self._js.api}.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        whole = False
        try:
            await self._connection.send(packed(subject, request, reply), now=True)
            whole = await self._ended(pull, wait)
            return None if pull.refused_to_wait and wait > timedelta(0) else pull.found
        except BaseException:
            self.give_back([each.reply for each in pull.found])
            raise
        finally:
            self._connection.close_inbox(watch)
            inbox.pull = None
            self._put_away(inbox, whole=whole)

    async def _ended(self, pull: _Pull, wait: timedelta) -> bool:
        """Whether the server ended it; False if the time was over before."""
        seconds = (
            wait.total_seconds() + _GRACE
            if wait > timedelta(0)
            else self._connection.options.read_timeout.total_seconds()
        )
        try:
            async with asyncio.timeout(seconds):
                await pull.ended
        except TimeoutError:
            if wait > timedelta(0) or pull.found:
                return False  # the leader went away with the request
            raise StoreUnavailable(
                f"{self._connection.options.where} did not answer in {seconds:g}s", do="check that the server is up"
            ) from None
        return True

    def give_back(self, replies: Sequence[bytes]) -> None:
        """Nacks messages if the connection stands and is writable: else they are delivered again at their deadline."""
        self._connection.post(b"".join(packed(reply, NAK) for reply in replies))

    async def _open(self) -> _PullInbox:
        inbox = _PullInbox(self, self._base + b".%d" % next(self._numbers))
        inbox.subscription = await self._connection.listen(inbox.subject + b".*", inbox.heard)
        return inbox

    def _put_away(self, inbox: _PullInbox, *, whole: bool) -> None:
        if whole and len(self._free) < _FREE_MAX:
            self._free.append(inbox)
        elif inbox.subscription is not None:
            inbox.subscription.drain()
