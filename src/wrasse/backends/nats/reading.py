"""Reading a stream of JetStream: a page in one question, one message in one question.

From 2.11 the server sends a page of messages for one question. Older servers are read by a consumer that lives for one
page, which costs two questions more. A replica may be behind: whoever must know asks the leader.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping

from wrasse.backends.nats.js import MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, JetStream, JsError
from wrasse.backends.nats.link import NoResponders, field_of, packed, status_of
from wrasse.backends.nats.stored import Stored, stored
from wrasse.errors import StoreUnavailable

_PAGE_MAX = 1_000
_PAGE_BYTES_MAX = 8 << 20
_CONSUMER_LIFE = 30_000_000_000  # nanoseconds that a consumer for one page may be forgotten


class Reader:
    """Reads what streams hold."""

    __slots__ = ("_batches", "_js", "_link")

    def __init__(self, js: JetStream, *, batches: bool | None = None) -> None:
        self._js = js
        self._link = js.link
        self._batches = batches  # None: as the server's version says

    async def page(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Stored], bool]:
        """Up to `limit` messages of the subject beyond this sequence, and whether there are more."""
        found: list[Stored] = []
        more = True
        while more and len(found) < limit:
            wanted = min(limit - len(found), _PAGE_MAX)
            piece, more = await self._piece(stream, subject, found[-1].seq if found else after, wanted)
            if not piece:
                break
            found += piece
        return found, more and bool(found)

    async def one(self, stream: str, asked: Mapping[str, object], *, leader: bool = False) -> Stored | None:
        """One message: `{"seq": n}`, `{"last_by_subj": s}` or `{"seq": n, "next_by_subj": s}`."""
        if leader:
            return await self._from_leader(stream, asked)
        body = json.dumps(asked, separators=(",", ":")).encode()
        try:
            answer = await self._link.request(f"{self._js.api}.DIRECT.GET.{stream}", body)
        except NoResponders:
            # No such stream, or one that another program made without direct reads.
            return await self._from_leader(stream, asked)
        if answer.status:
            return None
        return _direct(answer.header, answer.payload)

    async def _from_leader(self, stream: str, asked: Mapping[str, object]) -> Stored | None:
        try:
            answer = await self._js.call(f"STREAM.MSG.GET.{stream}", asked)
        except JsError as refused:
            if refused.code in (MESSAGE_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise
        message = answer["message"]
        header, body = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
        return stored(int(message["seq"]), header, body, str(message["time"]).encode())

    async def _piece(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Stored], bool]:
        batches = self._link.server.at_least(2, 11) if self._batches is None else self._batches
        if batches:
            try:
                return await self._batch(stream, subject, after, limit)
            except NoResponders:
                pass  # not made for direct reads
        try:
            return await self._by_consumer(stream, subject, after, limit)
        except JsError as refused:
            if refused.code == STREAM_NOT_FOUND:
                return [], False
            raise

    async def _batch(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Stored], bool]:
        asked = {"seq": after + 1, "next_by_subj": subject, "batch": limit, "max_bytes": _PAGE_BYTES_MAX}
        found: list[Stored] = []
        ended = _Ending()

        def heard(_: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
            status = status_of(header) if header.startswith(b"NATS/1.0 ") else 0
            if not status:
                found.append(_direct(header, payload))
            elif status == 503:
                ended.fail(NoResponders(f"there is no stream {stream!r} to read", do="make it first"))
            else:
                ended.end(int(field_of(header, b"Nats-Num-Pending") or 0) > 0)

        inbox = self._link.open_inbox(heard, ended.cut)
        try:
            subject_ = f"{self._js.api}.DIRECT.GET.{stream}".encode()
            await self._link.send(packed(subject_, json.dumps(asked, separators=(",", ":")).encode(), inbox))
            more = await ended.wait(self._link.options.read_timeout.total_seconds(), self._link.options.where)
        finally:
            self._link.close_inbox(inbox)
        return found, more

    async def _by_consumer(self, stream: str, subject: str, after: int, limit: int) -> tuple[list[Stored], bool]:
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "filter_subject": subject,
            "inactive_threshold": _CONSUMER_LIFE,
            "mem_storage": True,
            "num_replicas": 1,
        }
        made = await self._js.call(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        pending = int(made.get("num_pending", 0))
        name = str(made["name"])
        try:
            return await self._pulled(stream, name, min(limit, pending)), pending > limit
        finally:
            await self._link.publish(f"{self._js.api}.CONSUMER.DELETE.{stream}.{name}", b"")

    async def _pulled(self, stream: str, name: str, wanted: int) -> list[Stored]:
        found: list[Stored] = []
        ended = _Ending()
        if not wanted:
            return found

        def heard(_: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
            if header.startswith(b"NATS/1.0 "):
                ended.end(False)  # less was there than it said
                return
            words = reply.split(b".")  # $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer's>.<ns>.<pending>
            seq, nanos = int(words[-4]), int(words[-2])
            message = stored(seq, header, payload, b"")
            if not message.number:
                message = Stored(seq, nanos // 1_000_000, 0, 0, header, payload)
            found.append(message)
            if len(found) >= wanted:
                ended.end(False)

        inbox = self._link.open_inbox(lambda *_: None, ended.cut)
        listening = await self._link.listen(inbox + b".page", heard)
        try:
            subject = f"{self._js.api}.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
            await self._link.send(packed(subject, b'{"batch":%d,"no_wait":true}' % wanted, inbox + b".page"))
            await ended.wait(self._link.options.read_timeout.total_seconds(), self._link.options.where)
        finally:
            listening.end()
            self._link.close_inbox(inbox)
        return found


class _Ending:
    """The end of an answer in many pieces."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, more: bool) -> None:
        if not self._future.done():
            self._future.set_result(more)

    def fail(self, error: StoreUnavailable) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def cut(self, why: str) -> None:
        self.fail(StoreUnavailable(f"the connection ended in the middle of a page: {why}", do="read it again"))

    async def wait(self, seconds: float, where: str) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._future
        except TimeoutError:
            raise StoreUnavailable(
                f"{where} did not send a whole page in {seconds:g}s", do="check that the server is up and not busy"
            ) from None


_SEQUENCE = b"\r\nNats-Sequence: "


def _direct(header: bytes, payload: bytes) -> Stored:
    at = header.rfind(_SEQUENCE) + len(_SEQUENCE)  # the last one is the server's own
    return stored(int(header[at : header.find(b"\r\n", at)]), header, payload)
