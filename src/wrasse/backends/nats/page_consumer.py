"""An ephemeral consumer for reading pages: it acks nothing, keeps nothing, and the server drops it when unused.

The server numbers a consumer's messages. If a number is missing the page fails, and the reader begins anew where the
last page ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wrasse.backends.nats.client.connection import NoResponders, Subscription, packed, status_of
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.client.parser import Frame, frame_of, place_of
from wrasse.backends.nats.client.transport import ANSWER_MAX
from wrasse.errors import StoreUnavailable

_LIFE = 30_000_000_000  # nanoseconds without a pull after which the server drops it
_BYTES_MAX = 8 << 20  # of one pull
_ENVELOPE = 64 << 10  # of a message beyond its payload


class PageEnd:
    """The end of an answer that arrives as many messages, and whether there are more."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, more: bool) -> None:
        """It is whole."""
        if not self._future.done():
            self._future.set_result(more)

    def fail(self, error: StoreUnavailable) -> None:
        """Ends the answer with an error."""
        if not self._future.done():
            self._future.set_exception(error)

    def cut(self, why: str) -> None:
        """The connection ended."""
        self.fail(StoreUnavailable(f"the connection ended in the middle of a page: {why}", do="read it again"))

    async def wait(self, seconds: float, where: str) -> bool:
        """Waits for the end; whether there are more."""
        try:
            async with asyncio.timeout(seconds):
                return await self._future
        except TimeoutError:
            raise StoreUnavailable(
                f"{where} did not send a whole page in {seconds:g}s", do="check that the server is up and not busy"
            ) from None


class PageBudget:
    """The size limits of a page: a server that sends more than was requested violates the protocol."""

    __slots__ = ("_bytes", "_count")

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._bytes = size

    def spend(self, size: int, count: int = 1) -> None:
        """Counts messages; ValueError ends the connection they came over."""
        self._count -= count
        self._bytes -= size
        if self._count < 0 or self._bytes < 0:
            raise ValueError("more messages than requested")


class Puller:
    """One consumer. `position` is the sequence of its last message."""

    def __init__(self, js: JetStream, stream: str, name: str, position: int, inbox: bytes) -> None:
        self._connection = js.connection
        self._next = f"{js.api}.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        self._delete = f"{js.api}.CONSUMER.DELETE.{stream}.{name}".encode()
        self._stream = stream
        self._inbox = inbox
        self._bytes = max(_BYTES_MAX, js.connection.server.max_payload + _ENVELOPE)
        self._found: list[Frame] = []
        self._budget = PageBudget(0, 0)
        self._number = 0  # of the last message at the consumer
        self._ending: PageEnd | None = None
        self._wanted = 0
        self.position = position
        self.listening: Subscription = None  # type: ignore[assignment]  # `open` sets it

    @classmethod
    async def open(cls, js: JetStream, stream: str, subject: str, after: int) -> Puller:
        """A consumer of the messages after this sequence."""
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "filter_subject": subject,
            "inactive_threshold": _LIFE,
            "mem_storage": True,
            "num_replicas": 1,
        }
        made = await js.call(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        inbox = js.connection.open_inbox(lambda *_: None, lambda _: None)
        js.connection.close_inbox(inbox)
        puller = cls(js, stream, str(made["name"]), after, inbox + b".page")
        puller.listening = await js.connection.listen(puller._inbox, puller._heard, puller._took)
        return puller

    async def pull(self, limit: int) -> tuple[list[Frame], bool]:
        """Up to `limit` messages, and whether there are more; fewer if they are large."""
        self._found, self._wanted = [], limit
        self._budget = PageBudget(limit, self._bytes + ANSWER_MAX)
        self._ending = ending = PageEnd()
        watch = self._connection.open_inbox(lambda *_: None, ending.cut)
        try:
            asked = b'{"batch":%d,"no_wait":true,"max_bytes":%d}' % (limit, self._bytes)
            await self._connection.send(packed(self._next, asked, self._inbox), now=True)
            more = await ending.wait(
                self._connection.options.read_timeout.total_seconds(), self._connection.options.where
            )
        finally:
            self._connection.close_inbox(watch)
            self._ending = None
        if self._found:
            self.position = int(self._found[-1][2])
        return self._found, more

    async def end(self) -> None:
        """Deletes the consumer."""
        self.listening.end()
        self._connection.post(packed(self._delete, b""))

    def _heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not header.startswith(b"NATS/1.0 "):
            self._took([frame_of(reply, header, payload)])
        elif self._ending is not None:
            status = status_of(header)
            if status in (404, 408):
                self._ending.end(False)  # no more messages
            elif status == 409 and self._found:
                self._ending.end(True)  # the byte limit of one pull is reached
            else:
                self._ending.fail(self._gone())

    def _took(self, frames: Sequence[Frame]) -> None:
        if self._ending is None:
            return
        number, pending = place_of(frames[-1])
        if number != self._number + len(frames):
            self._ending.fail(self._gone())
            return
        self._number = number
        self._budget.spend(sum([len(frame[7]) for frame in frames]), len(frames))
        self._found += frames
        if len(self._found) >= self._wanted:
            self._ending.end(pending > 0)

    def _gone(self) -> NoResponders:
        return NoResponders(f"the consumer of {self._stream!r} was dropped", do="read it again")
