"""One batch of an append: some entries after the tip of a stream, and the sequences they get.

There are two ways. With an atomic batch (2.12) all or none are stored; a server with one copy on disk takes 5 ms for
each. In a chain each entry is sent on condition that the one before it is the last; that costs the server hardly more
than plain publishing, but a chain may be cut off, and if another writer gets in between, a later part may be stored
first. So chains are for long batches of a stream's single writer (`append.py`), and for servers without batches. A
stream with several subjects gets batches, or single entries on an older server.

One answer confirms all entries of an atomic batch. Every entry of a chain is answered, and each named the sequence it
was for: if none was refused, they are stored without gaps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wrasse.backends.nats.client.connection import NatsConnection, status_of
from wrasse.backends.nats.client.jetstream import STORE_FAILED, JsError, ServerTime, number, parsed, refusal
from wrasse.backends.nats.client.transport import NatsTransport
from wrasse.backends.nats.message_codec import name_of, written_fields
from wrasse.backends.nats.stream_map import StreamMap, SubjectStream, Tip
from wrasse.backends.tcp import ConnectionLost
from wrasse.errors import StoreFull, StoreUnavailable, WrasseError
from wrasse.ports.streams import Draft, EntryId, draft_bytes

STEP_MAX = 1_000  # the server's limit of entries in one atomic batch
_PIECE = 200  # entries sent while the next are prepared
_COMMIT = b"Nats-Batch-Commit:1\r\n"
_POLLS = 100
_POLL_SECONDS = 0.02
_PAGE = 1_000


class AppendConflict(Exception):
    """Another entry was stored first; nothing of this batch was stored, or only a part."""


class StreamVanished(Exception):
    """The stream does not exist any more."""


class NotConfirmed(Exception):
    """The answer was lost: the entries may be stored or not. `error` is raised if that stays unknown."""

    def __init__(self, error: StoreUnavailable) -> None:
        super().__init__(error.message)
        self.error = error


class Acks:
    """The acks of one batch."""

    __slots__ = (
        "_answers",
        "_connection",
        "_entries",
        "_failure",
        "_future",
        "_last",
        "_ms",
        "_wanted",
        "duplicate",
        "inbox",
    )  # fmt: skip

    def __init__(self, connection: NatsConnection, subject: str, ms: int, entries: int, wanted: int) -> None:
        self._connection = connection
        self._ms = ms
        self._entries = entries
        self._wanted = wanted
        self._answers = 0
        self._last = b""
        self._failure: Exception | None = None
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.duplicate = False
        self.inbox = connection.open_inbox(self._heard, self._cut, subject, self._denied)

    async def wait(self) -> list[EntryId]:
        """The ids. Raises AppendConflict, Vanished, StoreFull, ConfigError without the permission, or NotConfirmed if
        the outcome is unknown."""
        seconds, seen = self._connection.options.read_timeout.total_seconds(), -1
        while not self._future.done():
            if seen == self._answers:  # no answer within the timeout
                where = self._connection.options.where
                raise NotConfirmed(StoreUnavailable(f"{where} did not confirm an append in time", do="look for it"))
            seen = self._answers
            await asyncio.wait([self._future], timeout=seconds)
        if self._failure is not None:
            raise self._failure
        told = parsed(self._last, self._connection.options.where)
        self.duplicate = bool(told.get("duplicate", False))
        last = number(told["seq"])
        return [EntryId(self._ms, seq) for seq in range(last - self._entries + 1, last + 1)]

    def close(self) -> None:
        """Hears nothing more."""
        self._connection.close_inbox(self.inbox)

    def _heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self._answers += 1
        self._last = payload
        if header or b'"error"' in payload:
            self._refused(header, payload)
        if self._answers >= self._wanted and not self._future.done():
            self._future.set_result(None)

    def _refused(self, header: bytes, payload: bytes) -> None:
        """Notes a refusal; a chain is read to its end, since any part of it may be stored."""
        if header and status_of(header) == 503:
            self._failure = StreamVanished()
            return
        try:
            refused: JsError | None = refusal(payload, self._connection.options.where)
        except StoreUnavailable as unreadable:
            self._failure = NotConfirmed(unreadable)
            return
        if refused is None or refused.wrong_sequence:
            self._failure = self._failure or AppendConflict()
        elif refused.code == STORE_FAILED:
            self._failure = StoreFull(refused.message, do="trim the stream, or raise its limit")
        else:
            self._failure = refused

    def _denied(self, refusal: WrasseError) -> None:
        if not self._future.done():
            self._failure = refusal
            self._future.set_result(None)

    def _cut(self, why: str) -> None:
        if not self._future.done():
            self._failure = NotConfirmed(
                StoreUnavailable(f"the connection ended before an append was confirmed: {why}", do="look for it")
            )
            self._future.set_result(None)


class PublishBatch:
    """Drafts of one append to one stream, the name they have in common, and which are stored."""

    __slots__ = ("_at_once", "_ids", "drafts", "duplicate", "name", "since")

    def __init__(self, drafts: Sequence[Draft], name: bytes) -> None:
        self.drafts = drafts
        self.name = name
        self.since: int | None = None  # all entries up to this sequence are older, or were checked
        self.duplicate = False
        self._ids: dict[int, EntryId] = {}
        self._at_once: list[EntryId] | None = None

    @property
    def untouched(self) -> bool:
        """Whether no draft is known to be stored."""
        return not self._ids and self._at_once is None

    def left(self, limit: int) -> list[int]:
        """The positions of drafts that are not stored yet."""
        if self._at_once is not None:
            return []
        if not self._ids:
            return list(range(min(limit, len(self.drafts))))
        return [place for place in range(len(self.drafts)) if place not in self._ids][:limit]

    def stored(self, places: Sequence[int], ids: Sequence[EntryId]) -> None:
        """Notes the ids of stored drafts."""
        if len(ids) == len(self.drafts) and not self._ids:
            self._at_once = list(ids)  # the common case
        else:
            self._ids.update(zip(places, ids, strict=False))

    def whole(self) -> list[EntryId]:
        """All ids, in the order of the drafts."""
        if self._at_once is not None:
            return self._at_once
        return [self._ids[place] for place in range(len(self.drafts))]


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that was sent, and the tip if it is stored."""

    acks: Acks
    after: Tip


class PublishQueue:
    """Sends batches for one backend. `atomic`: always, never, or None to decide by cost."""

    def __init__(self, stream_map: StreamMap, time: ServerTime, *, atomic: bool | None = None) -> None:
        self._stream_map = stream_map
        self._connection = stream_map.js.connection
        self._time = time
        self._atomic = atomic

    async def send(
        self,
        subject_stream: SubjectStream,
        batch: PublishBatch,
        places: Sequence[int],
        *,
        alone: bool = False,
        msg_id: bytes = b"",
    ) -> list[EntryId]:
        """Stores drafts after the tip; may stop after some if the stream is shared. Raises AppendConflict, Vanished,
        StoreFull, or NotConfirmed if the outcome is unknown."""
        sent = await self.begin(subject_stream, batch, places, alone=alone, msg_id=msg_id)
        subject_stream.tip = None
        ids = await self.end(sent)
        batch.duplicate = sent.acks.duplicate
        if not batch.duplicate:
            subject_stream.tip = replace(sent.after, seq=ids[-1].seq, expected=ids[-1].seq)
        return ids

    async def begin(
        self,
        subject_stream: SubjectStream,
        batch: PublishBatch,
        places: Sequence[int],
        *,
        alone: bool = False,
        msg_id: bytes = b"",
    ) -> SentBatch:
        """Sends a batch, and assumes that it will be stored."""
        wire = await self._connection.ready()
        tip, subject_stream.tip = subject_stream.tip, None
        assert tip is not None, "the stream's tip is known"
        able = self._connection.server.at_least(2, 12) and self._atomic is not False and subject_stream.batches
        whole = len(places) > 1 and able and (bool(self._atomic) or not subject_stream.own or not alone)
        if not subject_stream.own and not whole:
            places = places[:1]  # the sequence of the next one is not predictable
        stamp = max(self._time.reckoned_millis(), tip.ms)
        acks = Acks(self._connection, subject_stream.subject, stamp, len(places), 1 if whole else len(places))
        try:
            send = self._batch if whole else self._chain
            subject_stream.tip = send(wire, subject_stream, batch, places, tip, stamp, acks.inbox, msg_id)
        except ConnectionLost as cut:
            acks.close()
            raise NotConfirmed(StoreUnavailable(str(cut), do="check whether it was stored")) from cut
        return SentBatch(acks, subject_stream.tip)

    async def end(self, sent: SentBatch) -> list[EntryId]:
        """The ids of a sent batch."""
        try:
            return await sent.acks.wait()
        finally:
            sent.acks.close()

    async def find(self, subject: str, subject_stream: SubjectStream, batch: PublishBatch) -> None:
        """Finds out which entries of a batch are stored, from the leader."""
        assert batch.since is not None, "it was sent after a tip"
        for _ in range(_POLLS):
            tip = await self._stream_map.tip_of(subject, subject_stream, leader=True)
            while True:
                page, more = await self._stream_map.reader.page(
                    subject_stream.stream, subject_stream.subject, batch.since, _PAGE
                )
                for message in page:
                    name, _, place = name_of(message.header).rpartition(b".")
                    if name == batch.name:
                        batch.stored([int(place)], [message.id])
                batch.since = page[-1].seq if page else batch.since
                if not more:
                    break
            if batch.since >= tip.expected or tip.expected == 0 or tip.seq != tip.expected:
                subject_stream.tip = tip
                return
            await asyncio.sleep(_POLL_SECONDS)  # a replica is behind
        raise StoreUnavailable(f"the end of {subject!r} cannot be read", do="check the replicas of its stream")

    def _chain(
        self, wire: NatsTransport, subject_stream: SubjectStream, batch: PublishBatch, places: Sequence[int],
        tip: Tip, ms: int, inbox: bytes, msg_id: bytes,
    ) -> Tip:  # fmt: skip
        """Each on condition that the one before it is the last; all are answered."""
        subject, name, drafts, out = subject_stream.subject.encode(), batch.name, batch.drafts, []
        number, total, expected = tip.number, max(tip.total, 0), tip.expected
        what = b"" if subject_stream.own else b"-Subject"
        for place in places:
            draft = drafts[place]
            body = draft.body
            number += 1
            total += len(body) if draft.fields is None else draft_bytes(draft)
            header = b"NATS/1.0\r\nWrasse:%d %d %d %b.%d\r\nNats-Expected-Last%b-Sequence:%d\r\n%b%b\r\n" % (
                ms, number, total, name, place, what, expected, msg_id, written_fields(draft.fields),
            )  # fmt: skip
            size = len(header)
            out.append(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, inbox, size, size + len(body), header, body))
            expected += 1
            if len(out) == _PIECE:
                wire.send_now(b"".join(out))
                out.clear()
        wire.send_now(b"".join(out))
        return Tip(tip.seq + len(places), ms, number, total, expected)

    def _batch(
        self, wire: NatsTransport, subject_stream: SubjectStream, batch: PublishBatch, places: Sequence[int],
        tip: Tip, ms: int, inbox: bytes, msg_id: bytes,
    ) -> Tip:  # fmt: skip
        """Stores all or none; only the last is answered."""
        assert not msg_id, "an entry with a key is sent alone"
        out: list[bytes] = []
        subject, name = subject_stream.subject.encode(), batch.name
        number, total, last = tip.number, max(tip.total, 0), len(places)
        extra = subject_stream.condition(tip.expected)
        for turn, place in enumerate(places, 1):
            draft = batch.drafts[place]
            number += 1
            total += draft_bytes(draft)
            extra += written_fields(draft.fields) + (_COMMIT if turn == last else b"")
            header = b"NATS/1.0\r\nWrasse:%d %d %d %b.%d\r\nNats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n%b\r\n" % (
                ms, number, total, name, place, inbox.rpartition(b".")[2] + name, turn, extra,
            )  # fmt: skip
            size = len(header) + len(draft.body)
            reply = inbox if turn == last else b""
            out += (b"HPUB %b %b %d %d\r\n" % (subject, reply, len(header), size), header, draft.body, b"\r\n")
            extra = b""
        wire.send_now(b"".join(out))
        return Tip(tip.seq + last, ms, number, total, tip.expected + last)
