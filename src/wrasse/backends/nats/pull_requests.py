"""Pull requests: one question for up to so many messages of a durable, answered as soon as there is one.

A question with `no_wait` and `expires` is a one-shot long poll: the server answers with what there is, or waits for the
first message. Where the questions that wait ask for more than there is (the durable is paused, or its MaxAckPending
reached), it refuses another one at once: that then waits for a single message, in its turn.

Each question has an inbox with a subscription of its own, which the next question uses again. One that is given up
(cancelled, or without an answer) loses its subscription: the server then drops the question, and what was under way is
given back by a nak.
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
_BYTES_MAX = 8 << 20  # of one question
_UNASKED_MAX = 64 << 20  # if all messages are the largest: below, no limit of bytes is asked for, which costs a message
_ENVELOPE = 64 << 10  # what a message may take beyond its payload
_GRACE = 2.0  # seconds beyond the wait, for a server that is busy
_FREE_MAX = 64
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """One message as it was delivered; `reply` is where its answer goes."""

    reply: bytes
    header: bytes
    body: bytes


class _Pull:
    """One question."""

    __slots__ = ("budget", "ended", "found", "outnumbered", "wanted")

    def __init__(self, wanted: int, size: int) -> None:
        self.found: list[PulledMessage] = []
        self.wanted = wanted
        self.outnumbered = False  # others wait already for more than there is
        self.budget = PageBudget(wanted, size)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: StoreUnavailable | None = None) -> None:
        """Whole, or at its end: what came counts, whatever ended it."""
        if self.ended.done():
            return
        if error is None or self.found:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def cut(self, why: str) -> None:
        """The connection ended."""
        self.end(StoreUnavailable(f"the connection ended while messages were asked for: {why}", do="ask again"))


class _Inbox:
    """Where the answers of one question after another come to."""

    __slots__ = ("_pulls", "asked", "count", "reply", "subject", "subscription")

    def __init__(self, pulls: Pulls, subject: bytes) -> None:
        self._pulls = pulls
        self.subject = subject
        self.subscription: Subscription | None = None
        self.asked: _Pull | None = None
        self.count = 0  # of questions
        self.reply = b""

    def ask(self, asked: _Pull) -> bytes:
        """Where the statuses of this question go: what ends an earlier one may come late."""
        self.asked = asked
        self.count += 1
        self.reply = b"%b.%d" % (self.subject, self.count)
        return self.reply

    def heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A message, or the status that ends a question."""
        asked = self.asked
        status = status_of(header) if header.startswith(b"NATS/1.0 ") else 0
        if not status and asked is None:
            self._pulls.give_back([reply])  # the question was given up while it was on its way
        elif asked is None or status == 100 or (status and subject != self.reply):
            return
        elif not status:
            asked.budget.spend(len(header) + len(payload))
            asked.found.append(PulledMessage(reply, header, payload))
            if len(asked.found) >= asked.wanted:
                asked.end()
        elif status == 503:
            asked.end(NoResponders("nobody answers for a consumer", do="try again, or join its group"))
        elif status == 400 or header[13:].startswith(b"Exceeded "):  # refused: asked again at once, it would be again
            why = header[13:].split(b"\r\n", 1)[0].decode(errors="replace")
            asked.end(StoreUnavailable(f"NATS refused a pull request: {why}", do="look at the consumer's limits"))
        else:  # 404, 408, 409: there is no more for this question
            asked.outnumbered = status == 408 and header[13:].startswith(b"Requests Pending")
            asked.end()


class Pulls:
    """Asks durables for messages."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._connection = js.connection
        self._free: list[_Inbox] = []
        self._numbers = count(1)
        self._base = js.connection.open_inbox(lambda *_: None, lambda _: None)
        js.connection.close_inbox(self._base)

    async def ask(self, stream: str, name: str, limit: int, wait: timedelta) -> list[PulledMessage]:
        """Up to `limit` messages, waiting for the first for as long as `wait`. NoResponders: the durable is gone, or
        has no leader now."""
        found = await self._once(stream, name, limit, wait, b',"no_wait":true')
        if found is None:
            found = await self._once(stream, name, 1, wait, b"")
        return found or []

    async def _once(
        self, stream: str, name: str, limit: int, wait: timedelta, how: bytes
    ) -> list[PulledMessage] | None:
        """One question; None if the server did not let it wait behind those who wait already."""
        inbox = self._free.pop() if self._free else await self._open()
        largest = self._connection.server.max_payload + _ENVELOPE
        size = max(_BYTES_MAX, largest)
        asked = _Pull(limit, _UNASKED_MAX + size + ANSWER_MAX)
        reply = inbox.ask(asked)
        watch = self._connection.open_inbox(lambda *_: None, asked.cut)
        expires = b',"expires":%d' % (wait // _MICROSECOND * 1_000) if wait > timedelta(0) else b""
        if limit * largest > _UNASKED_MAX:
            expires += b',"max_bytes":%d' % size
        question = b'{"batch":%d%b%b}' % (limit, how, expires)
        subject = f"{self._js.api}.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        whole = False
        try:
            await self._connection.send(packed(subject, question, reply), now=True)
            whole = await self._ended(asked, wait)
            return None if asked.outnumbered and wait > timedelta(0) else asked.found
        except BaseException:
            self.give_back([each.reply for each in asked.found])
            raise
        finally:
            self._connection.close_inbox(watch)
            inbox.asked = None
            self._put_away(inbox, whole=whole)

    async def _ended(self, asked: _Pull, wait: timedelta) -> bool:
        """Whether the server ended it; False if the time was over before."""
        seconds = (
            wait.total_seconds() + _GRACE
            if wait > timedelta(0)
            else self._connection.options.read_timeout.total_seconds()
        )
        try:
            async with asyncio.timeout(seconds):
                await asked.ended
        except TimeoutError:
            if wait > timedelta(0) or asked.found:
                return False  # a leader that went away with the question
            raise StoreUnavailable(
                f"{self._connection.options.where} did not answer in {seconds:g}s", do="check that the server is up"
            ) from None
        return True

    def give_back(self, replies: Sequence[bytes]) -> None:
        """Has messages delivered again at once, if the connection stands and is read: else at their deadline."""
        self._connection.post(b"".join(packed(reply, NAK) for reply in replies))

    async def _open(self) -> _Inbox:
        inbox = _Inbox(self, self._base + b".%d" % next(self._numbers))
        inbox.subscription = await self._connection.listen(inbox.subject + b".*", inbox.heard)
        return inbox

    def _put_away(self, inbox: _Inbox, *, whole: bool) -> None:
        if whole and len(self._free) < _FREE_MAX:
            self._free.append(inbox)
        elif inbox.subscription is not None:
            inbox.subscription.drain()
