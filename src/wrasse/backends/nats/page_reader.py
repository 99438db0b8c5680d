"""Reads a stream of JetStream: one request per page, or one per message.

From 2.11 the server answers one request with a page of messages. Older servers are read through a consumer (`Puller`),
and so are newer ones by a reader that continues where the last long page ended. A replica may be behind: reads that
must be exact go to the leader.

That consumer is ephemeral: it acks nothing, keeps nothing, and the server drops it when unused. The server numbers its
messages. If a number is missing the page fails, and the reader begins anew where the last page ended.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence

from wrasse.backends.nats.client.connection import (
    NatsConnection,
    NoResponders,
    Subscription,
    field_of,
    packed,
    status_of,
)
from wrasse.backends.nats.client.jetstream import MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, JetStream, JsError, number
from wrasse.backends.nats.client.transport import ANSWER_MAX, Frame, frame_of, place_of
from wrasse.backends.nats.message_codec import StoredMessage, stored, stored_of
from wrasse.errors import StoreUnavailable

_IDLE_MAX = 30_000_000_000  # nanoseconds without a pull after which the server drops it
_PULL_BYTES_MAX = 8 << 20
_ENVELOPE = 64 << 10  # of a message beyond its payload
_PAGE_MAX = 1_000
_PAGE_BYTES_MAX = 8 << 20
_LONG_PAGE = 100  # entries of a page after which its reader is expected to continue
_PULLERS_MAX = 100
_STOPPED_MAX = 1_000
_DIGITS_MAX = 20
_SEQUENCE = b"\r\nNats-Sequence: "
_OF_QUEUES = (10084, 10099, 10100)  # a work queue needs explicit acks, and one consumer per message


class PageReader:
    """Reads messages of streams."""

    __slots__ = ("_batches", "_connection", "_direct", "_js", "_pullers", "_queues", "_stopped")

    def __init__(self, js: JetStream, *, batches: bool | None = None) -> None:
        self._js = js
        self._connection = js.connection
        self._batches = batches  # None: by the server's version
        self._direct: dict[str, bool] = {}
        self._pullers: dict[tuple[str, str], Puller] = {}
        self._stopped: dict[tuple[str, str], int] = {}  # where long pages ended
        self._queues: set[str] = set()  # work queue streams, which cannot have reading consumers

    async def page(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[StoredMessage], bool]:
        """Up to `limit` messages of the subject beyond this sequence, and whether there are more."""
        found, more = await self.frames(stream, subject, after, limit)
        return [*map(stored_of, found)], more

    async def frames(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Frame], bool]:
        """The same as raw frames, for callers that need no value of each."""
        found: list[Frame] = []
        more = True
        while more and len(found) < limit:
            wanted = min(limit - len(found), _PAGE_MAX)
            piece, more = await self._piece(stream, subject, int(found[-1][2]) if found else after, wanted)
            if not piece:
                break
            found += piece
            self._note(stream, subject, piece)
        return found, more and bool(found)

    def _note(self, stream: str, subject: str, piece: list[Frame]) -> None:
        if len(piece) >= _LONG_PAGE:
            self._stopped[stream, subject] = int(piece[-1][2])
            if len(self._stopped) > _STOPPED_MAX:
                self._stopped.pop(next(iter(self._stopped)))

    async def one(self, stream: str, asked: Mapping[str, object], *, leader: bool = False) -> StoredMessage | None:
        """One message: `{"seq": n}`, `{"last_by_subj": s}` or `{"seq": n, "next_by_subj": s}`."""
        if leader or not await self._answers_directly(stream):
            return await self._from_leader(stream, asked)
        body = json.dumps(asked, separators=(",", ":")).encode()
        try:
            answer = await self._connection.request(f"{self._js.api}.DIRECT.GET.{stream}", body)
        except NoResponders:
            # No such stream, or one that another program made without direct reads.
            return await self._from_leader(stream, asked)
        if answer.status:
            return None
        try:
            return _direct(answer.header, answer.payload)
        except ValueError as error:
            raise StoreUnavailable(
                f"{self._connection.options.where} answered with something that is not a message",
                do="look at the server's log",
            ) from error

    async def _answers_directly(self, stream: str) -> bool:
        """Whether a direct read is answered at all. Old servers do not answer for a stream without direct reads, so its
        configuration is read once."""
        if self._connection.server.at_least(2, 11):
            return True
        known = self._direct.get(stream)
        if known is None:
            try:
                info = await self._js.call(f"STREAM.INFO.{stream}")
            except JsError as refused:
                if refused.code == STREAM_NOT_FOUND:
                    return False  # not noted: the stream may be made later, with direct reads
                raise
            known = self._direct[stream] = bool(info.get("config", {}).get("allow_direct"))
            if len(self._direct) > _STOPPED_MAX:
                self._direct.pop(next(iter(self._direct)))
        return known

    async def _from_leader(self, stream: str, asked: Mapping[str, object]) -> StoredMessage | None:
        try:
            answer = await self._js.call(f"STREAM.MSG.GET.{stream}", asked)
        except JsError as refused:
            if refused.code in (MESSAGE_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise
        message = answer["message"]
        try:
            header, body = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreUnavailable(
                f"{self._connection.options.where} answered with something that is not a message",
                do="look at the server's log",
            ) from error
        return stored(number(message["seq"]), header, body, str(message["time"]).encode("utf-8", "replace"))

    async def _piece(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Frame], bool]:
        batches = self._connection.server.at_least(2, 11) if self._batches is None else self._batches
        puller = self._pullers.get((stream, subject))
        reads_on = limit >= _LONG_PAGE and after and self._stopped.get((stream, subject)) == after
        if stream in self._queues and not batches:
            return await self._one_by_one(stream, subject, after, limit)
        if batches and reads_on and stream not in self._queues:
            # The reader continues page after page: a consumer costs the server a fifth of a batched read.
            batches = False
        elif batches and puller is not None and puller.position != after:
            await self._pullers.pop((stream, subject)).end()
        if batches:
            try:
                return await self._batch(stream, subject, after, limit)
            except NoResponders:
                pass  # the stream has no direct reads
        try:
            return await self._by_consumer(stream, subject, after, limit)
        except JsError as refused:
            if refused.code == STREAM_NOT_FOUND:
                return [], False
            if refused.code not in _OF_QUEUES:
                raise
            self._queues = {stream, *self._queues} if len(self._queues) < _STOPPED_MAX else {stream}
            return await self._one_by_one(stream, subject, after, limit)

    async def _one_by_one(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Frame], bool]:
        """One request per message: a work queue allows no consumer besides those of its workers."""
        found: list[Frame] = []
        while len(found) < limit:
            message = await self.one(stream, {"seq": after + 1, "next_by_subj": subject}, leader=True)
            if message is None:
                return found, False
            after = message.seq
            # In the format of a consumer: the number there, nanoseconds, what is pending.
            rest = b"0.%d.0" % (message.ms * 1_000_000)
            found.append((b"", b"", b"%d" % message.seq, rest, b"", message.header, b"", message.body))
        return found, True

    async def _batch(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Frame], bool]:
        asked = {"seq": after + 1, "next_by_subj": subject, "batch": limit, "max_bytes": _PAGE_BYTES_MAX}
        found: list[Frame] = []
        ended = PageEnd()
        budget = PageBudget(limit, _PAGE_BYTES_MAX + ANSWER_MAX)

        def heard(_: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
            status = status_of(header) if header.startswith(b"NATS/1.0 ") else 0
            if not status:
                budget.spend(len(header) + len(payload))
                found.append((b"", b"", _sequence(header), b"", b"", header, b"", payload))
            elif status == 503:
                ended.fail(NoResponders(f"there is no stream {stream!r} to read", do="make it first"))
            else:
                ended.end(field_of(header, b"Nats-Num-Pending").strip(b"0") != b"")

        inbox = self._connection.open_inbox(heard, ended.cut)
        try:
            subject_ = f"{self._js.api}.DIRECT.GET.{stream}".encode()
            await self._connection.send(packed(subject_, json.dumps(asked, separators=(",", ":")).encode(), inbox))
            more = await ended.wait(self._connection)
        finally:
            self._connection.close_inbox(inbox)
        return found, more

    async def _by_consumer(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Frame], bool]:
        """By a consumer that is kept as long as the reader continues where it stopped."""
        puller = self._pullers.pop((stream, subject), None)
        if puller is not None and puller.position != after:
            await puller.end()
            puller = None
        known = puller is not None
        puller = puller or await Puller.open(self._js, stream, subject, after)
        try:
            found, more = await puller.pull(limit)
        except BaseException as error:
            puller.listening.end()
            if known and isinstance(error, NoResponders):  # dropped by the server between two pages
                return await self._by_consumer(stream, subject, after, limit)
            raise
        if found:
            self._pullers[stream, subject] = puller
            if len(self._pullers) > _PULLERS_MAX:
                await self._pullers.pop(next(iter(self._pullers))).end()
        else:
            await puller.end()
        return found, more


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

    async def wait(self, connection: NatsConnection) -> bool:
        """Waits for the end; whether there are more."""
        seconds = connection.options.read_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await self._future
        except TimeoutError:
            raise StoreUnavailable(
                f"{connection.options.where} did not send a whole page in {seconds:g}s",
                do="check that the server is up and not busy",
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
        self._bytes = max(_PULL_BYTES_MAX, js.connection.server.max_payload + _ENVELOPE)
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
            "inactive_threshold": _IDLE_MAX,
            "mem_storage": True,
            "num_replicas": 1,
        }
        made = await js.call(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        inbox = js.connection.open_inbox(lambda *_: None, lambda _: None)
        js.connection.close_inbox(inbox)
        puller = cls(js, stream, str(made["name"]), after, inbox + b".page")
        puller.listening = await js.connection.listen(puller._inbox, puller._receive, puller._accept)
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
            more = await ending.wait(self._connection)
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

    def _receive(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not header.startswith(b"NATS/1.0 "):
            self._accept([frame_of(reply, header, payload)])
        elif self._ending is not None:
            status = status_of(header)
            if status in (404, 408):
                self._ending.end(False)  # no more messages
            elif status == 409 and self._found:
                self._ending.end(True)  # the byte limit of one pull is reached
            else:
                self._ending.fail(self._gone())

    def _accept(self, frames: Sequence[Frame]) -> None:
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


def _direct(header: bytes, payload: bytes) -> StoredMessage:
    return stored(int(_sequence(header)), header, payload)


def _sequence(header: bytes) -> bytes:
    at = header.rfind(_SEQUENCE) + len(_SEQUENCE)  # the last one is the server's
    found = header[at : header.find(b"\r\n", at)]
    if not found.isdigit() or len(found) > _DIGITS_MAX:
        raise ValueError("a message without its sequence")
    return found
