"""Appending: every entry names the one it follows, so that ids only grow even with several writers.

Appends of one process to one stream are sent one batch after another, and drafts that wait are sent together. If a
batch ends before it is confirmed, its entries are looked up, and only missing ones are sent again: a late arrival fails
its condition. Entries with a key are sent one by one.

The single writer of a stream may send long batches as chains (`publish_batches.py`). Its name is in the note about the
stream. Each process believes a note it has read for at most a second. A process that
changes the note waits longer than that before it relies on the change: a new single writer before its first chain, and
another writer before its first append. A stream that two processes have written to is shared for good. Programs that do
not know the note are noticed when their entries come between ours.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import TypeVar
from urllib.parse import quote

from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.client.jetstream import NO_BATCHES, JsError, ServerTime
from wrasse.backends.nats.client.transport import HEADERS_MAX
from wrasse.backends.nats.message_codec import written_fields
from wrasse.backends.nats.publish_batches import (
    STEP_MAX,
    AppendConflict,
    NotConfirmed,
    PublishBatch,
    PublishQueue,
    SentBatch,
    StreamVanished,
)
from wrasse.backends.nats.stream_map import (
    DEDUP_SECONDS,
    NOTE_SECONDS,
    StreamMap,
    SubjectNote,
    SubjectStream,
    WaitingDrafts,
)
from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable, TooLarge, WrasseError
from wrasse.ports.streams import Draft, EntryId, draft_bytes

SHARED = "*"
CHAIN_MIN = 64  # shorter batches are not worth becoming the single writer
_OTHERS_KNOW = NOTE_SECONDS * 1.5
_HEADER_BYTES = 512  # at most, fields and key apart
_TRIES_MAX = 1_000  # each failed try means that another writer's batch was stored
_UNKNOWN_MAX = 2  # times that an answer may be lost
_PATIENCE = 4  # tries before the first pause
_PAUSE_MAX = 0.02
_REMEMBERED = 20_000  # keys
_NEVER = str(1 << 62)
T = TypeVar("T")


class Appender:
    """Appends for one backend."""

    def __init__(self, stream_map: StreamMap, time: ServerTime, clock: Clock, *, atomic: bool | None = None) -> None:
        self._stream_map = stream_map
        self._time = time
        self._connection: NatsConnection = stream_map.js.connection
        self._batches = count(1)
        self._salt = b"%x." % random.getrandbits(40)
        self._keys = KeyMemory(stream_map, time)
        self._writers = SingleWriters(stream_map, clock)
        self._queue = PublishQueue(stream_map, time, atomic=atomic)

    async def append(self, drafts: Sequence[Draft]) -> tuple[EntryId, ...]:
        """Appends, in order; a draft whose key is known answers with the first entry's id."""
        self._fits(drafts)
        if len(drafts) <= STEP_MAX and len({draft.subject for draft in drafts}) == 1 and not _keyed(drafts):
            return tuple(await self._plain(drafts[0].subject, drafts))
        by_subject: dict[str, list[int]] = {}
        for place, draft in enumerate(drafts):
            by_subject.setdefault(draft.subject, []).append(place)
        ids: list[EntryId | None] = [None] * len(drafts)
        for subject, places in by_subject.items():
            for place, id in zip(places, await self._write(subject, [drafts[p] for p in places]), strict=True):
                ids[place] = id
        return tuple(id for id in ids if id is not None)

    def _fits(self, drafts: Sequence[Draft]) -> None:
        most = self._connection.server.max_payload
        for draft in drafts:
            header = _HEADER_BYTES + (len(written_fields(draft.fields)) if draft.fields else 0)
            if header > HEADERS_MAX:
                raise TooLarge(
                    f"fields beside an entry for {draft.subject!r} that take {header} bytes of headers, and a NATS "
                    f"server keeps {HEADERS_MAX}",
                    do="put the data into the body",
                )
            if len(draft.body) + header > most:
                raise TooLarge(
                    f"an entry of {draft_bytes(draft)} bytes for {draft.subject!r}, and the server takes {most}",
                    do="raise max_payload of the NATS server, or put the data elsewhere and send its name",
                )

    async def _write(self, subject: str, drafts: Sequence[Draft]) -> list[EntryId]:
        if not _keyed(drafts):
            return await self._plain(subject, drafts)
        ids: list[EntryId] = []
        for keyed, run in groupby(drafts, key=lambda draft: bool(draft.key)):
            if keyed:
                ids += [await self._keyed(subject, draft) for draft in run]
            else:
                ids += await self._plain(subject, list(run))
        return ids

    async def _plain(self, subject: str, drafts: Sequence[Draft]) -> list[EntryId]:
        """Entries without keys. Drafts of callers that wait at the same time are sent together."""
        subject_stream = await self._stream_map.make(subject)
        mine = WaitingDrafts(drafts)
        subject_stream.waiting.append(mine)
        together: list[WaitingDrafts] = []
        try:
            async with subject_stream.turn:
                if mine in subject_stream.waiting:  # no other caller has sent it
                    together, batch = self._next_batch(subject_stream)
                    sent = await self._share_outcome(together, self._alone(subject, batch))
                    if sent is None:
                        await self._share_outcome(together, self._in_batches(subject, batch), answers=True)
            if together and sent is not None:
                # The next caller sends its batch while the server still works on this one.
                await self._share_outcome(together, self._finished(subject, subject_stream, batch, sent), answers=True)
        except BaseException:
            if mine in subject_stream.waiting:
                subject_stream.waiting.remove(mine)
            raise
        return await mine.future

    def _next_batch(self, subject_stream: SubjectStream) -> tuple[list[WaitingDrafts], PublishBatch]:
        """The waiting drafts, as many as fit in one batch and at least the first caller's."""
        together = [subject_stream.waiting.pop(0)]
        size = len(together[0].drafts)
        while subject_stream.waiting and size + len(subject_stream.waiting[0].drafts) <= STEP_MAX:
            together.append(subject_stream.waiting.pop(0))
            size += len(together[-1].drafts)
        drafts = together[0].drafts if len(together) == 1 else [draft for each in together for draft in each.drafts]
        return together, PublishBatch(drafts, self._salt + b"%x" % next(self._batches))

    async def _share_outcome(
        self, together: Sequence[WaitingDrafts], work: Awaitable[T], *, answers: bool = False
    ) -> T:
        """Passes the outcome to all callers whose drafts were sent."""
        try:
            done = await work
        except BaseException as error:
            told = error if isinstance(error, WrasseError) else _unknown()
            for each in together:
                if not each.future.done():
                    each.future.set_exception(told)
                    each.future.exception()  # its caller may be the one that was cancelled
            raise
        if answers:
            assert isinstance(done, list), "ids"
            at = 0
            for each in together:
                if not each.future.done():
                    each.future.set_result(done[at : at + len(each.drafts)])
                at += len(each.drafts)
        return done

    async def _alone(self, subject: str, batch: PublishBatch) -> SentBatch | None:
        """Sends drafts as one batch if they fit and this process is the single writer; None otherwise."""
        if not CHAIN_MIN <= len(batch.drafts) <= STEP_MAX:
            return None
        subject_stream = await self._ready(subject, 0)
        if not await self._writers.mine(subject, subject_stream, len(batch.drafts)) or subject_stream.tip is None:
            return None
        batch.since = subject_stream.tip.seq
        try:
            return await self._queue.begin(subject_stream, batch, range(len(batch.drafts)), alone=True)
        except NotConfirmed:
            subject_stream.tip = None
            await self._queue.find(subject, subject_stream, batch)
            return None

    async def _finished(
        self, subject: str, subject_stream: SubjectStream, batch: PublishBatch, sent: SentBatch
    ) -> list[EntryId]:
        try:
            batch.stored(range(len(batch.drafts)), await self._queue.end(sent))
            return batch.whole()
        except (AppendConflict, StreamVanished, NotConfirmed) as failure:
            async with subject_stream.turn:
                subject_stream.tip = None
                if isinstance(failure, StreamVanished):
                    self._stream_map.forget(subject)
                    batch.since = None
                else:
                    if isinstance(failure, AppendConflict):
                        await self._writers.share(subject, subject_stream)
                    await self._queue.find(subject, subject_stream, batch)
                return await self._in_batches(subject, batch)

    async def _in_batches(self, subject: str, batch: PublishBatch) -> list[EntryId]:
        drafts, unknown = batch.drafts, 0
        for attempt in range(_TRIES_MAX + len(drafts) // STEP_MAX):
            places = batch.left(STEP_MAX)
            if not places:
                return batch.whole()
            subject_stream = await self._ready(subject, attempt if batch.untouched else 0)
            assert subject_stream.tip is not None, "the stream's tip is known"
            batch.since = subject_stream.tip.seq if batch.since is None else batch.since
            alone = await self._writers.mine(subject, subject_stream, len(places))
            try:
                batch.stored(places, await self._queue.send(subject_stream, batch, places, alone=alone))
                continue
            except AppendConflict:
                if alone:
                    await self._writers.share(subject, subject_stream)
            except StreamVanished:
                self._stream_map.forget(subject)
                batch.since = None
                continue
            except JsError as refused:
                if refused.code != NO_BATCHES:
                    raise
                subject_stream.batches = False
                continue
            except NotConfirmed as lost:
                unknown += 1
                if unknown > _UNKNOWN_MAX:
                    raise lost.error from lost
            await self._queue.find(subject, subject_stream, batch)
        raise _crowded(subject)

    async def _keyed(self, subject: str, draft: Draft) -> EntryId:
        subject_stream = await self._stream_map.make(subject)
        async with subject_stream.turn:
            for attempt in range(_TRIES_MAX):
                subject_stream = await self._ready(subject, attempt)
                known = await self._keys.known(subject, subject_stream, draft.key, probe=attempt > 0)
                if known is not None:
                    return known
                one = PublishBatch([draft], self._salt + b"%x" % next(self._batches))
                try:
                    ids = await self._queue.send(
                        subject_stream, one, [0], msg_id=self._keys.header(subject, subject_stream, draft.key)
                    )
                except AppendConflict:
                    continue
                except StreamVanished:
                    self._stream_map.forget(subject)
                    continue
                except NotConfirmed as lost:  # under the same key it is stored once, however often it is sent
                    if attempt > _UNKNOWN_MAX:
                        raise lost.error from lost
                    continue
                (id,) = ids
                if not one.duplicate:
                    self._keys.note(subject, draft.key, id)
                    return id
                first = await self._keys.first(subject, subject_stream, draft.key, id.seq)
                if first is not None:
                    return first
                # By our clock its window has passed: stored again, under another message id.
        raise _crowded(subject)

    async def _ready(self, subject: str, attempt: int) -> SubjectStream:
        """The stream's state, with a known tip."""
        if attempt > _PATIENCE:
            await asyncio.sleep(random.random() * min(_PAUSE_MAX, 0.001 * attempt))
        subject_stream = await self._stream_map.make(subject)
        await self._time.now()
        await self._writers.end_other_writer(subject, subject_stream)
        if subject_stream.tip is None:
            subject_stream.tip = await self._stream_map.tip_of(subject, subject_stream, leader=attempt > 0)
        return subject_stream


def _keyed(drafts: Sequence[Draft]) -> bool:
    return any(draft.key for draft in drafts)


def _unknown() -> StoreUnavailable:
    return StoreUnavailable("an append ended before it was confirmed", do="check whether it was stored")


def _crowded(subject: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"other writers of {subject!r} were faster {_TRIES_MAX} times",
        do="write in larger batches, or from fewer processes",
    )


class SingleWriters:
    """The streams of which this process is the single writer."""

    def __init__(self, stream_map: StreamMap, clock: Clock) -> None:
        self._stream_map = stream_map
        self._clock = clock
        self._name = secrets.token_hex(8)
        self._since: dict[str, float] = {}  # by subject: when this process became its single writer

    async def mine(self, subject: str, subject_stream: SubjectStream, count: int) -> bool:
        """Whether this process is the single writer; becomes it for a long batch if the stream has none."""
        if not subject_stream.own or count < CHAIN_MIN:
            return False
        writer = (await self._stream_map.note(subject, subject_stream)).writer
        if not writer:
            writer = (await self._stream_map.change(subject, subject_stream, self._name_writer)).writer
            self._since[subject] = self._clock.monotonic()
        if writer != self._name:
            return False
        return self._clock.monotonic() - self._since.get(subject, self._clock.monotonic()) > _OTHERS_KNOW

    async def end_other_writer(self, subject: str, subject_stream: SubjectStream) -> None:
        """Before any write: ends another process's exclusive right, and waits until that process has noticed."""
        writer = (await self._stream_map.note(subject, subject_stream)).writer
        if writer not in ("", SHARED, self._name):
            await self.share(subject, subject_stream)
            await asyncio.sleep(_OTHERS_KNOW)
            subject_stream.tip = None

    def _name_writer(self, note: SubjectNote) -> SubjectNote:
        return note if note.writer else replace(note, writer=self._name)

    async def share(self, subject: str, subject_stream: SubjectStream) -> None:
        """Marks the stream as shared between several writers."""
        await self._stream_map.change(subject, subject_stream, lambda note: replace(note, writer=SHARED))


class KeyMemory:
    """Idempotency keys: the server remembers them for two minutes (`Nats-Msg-Id`), and this maps them to entries.

    The window is measured by the server's clock. If the server still knows a key whose window has passed, the key is
    sent once more with the sequence of its earlier entry appended to its name.
    """

    def __init__(self, stream_map: StreamMap, time: ServerTime) -> None:
        self._stream_map = stream_map
        self._time = time
        self._ids: OrderedDict[tuple[str, str], EntryId] = OrderedDict()
        self._again: OrderedDict[tuple[str, str], int] = OrderedDict()  # keys whose window has passed: their entry

    def header(self, subject: str, subject_stream: SubjectStream, key: str) -> bytes:
        """The header with the key as message id."""
        return b"Nats-Msg-Id:%b\r\n" % self._name(subject, subject_stream, key).encode()

    def note(self, subject: str, key: str, id: EntryId) -> None:
        """Notes the entry of a key."""
        _put(self._ids, (subject, key), id)

    async def known(
        self, subject: str, subject_stream: SubjectStream, key: str, *, probe: bool = True
    ) -> EntryId | None:
        """The entry of a key, without storing anything: the server checks message ids first, and the condition of this
        request never holds."""
        id = self._ids.get((subject, key))
        if id is not None and not self._over(id, await self._time.millis()):
            return id
        if not probe:
            return None
        headers = {"Nats-Msg-Id": self._name(subject, subject_stream, key), "Nats-Expected-Last-Sequence": _NEVER}
        try:
            seq = await self._stream_map.js.store(subject_stream.subject, b"", headers)
        except JsError as refused:
            if refused.wrong_sequence:
                return None
            raise
        return await self.first(subject, subject_stream, key, seq)

    async def first(self, subject: str, subject_stream: SubjectStream, key: str, seq: int) -> EntryId | None:
        """The entry at this sequence, which has this key; None if its window has passed."""
        id = self._ids.get((subject, key))
        if id is None or id.seq != seq:
            message = await self._stream_map.reader.one(subject_stream.stream, {"seq": seq}, leader=True)
            # Trimmed meanwhile: the key still counts.
            id = EntryId((await self._time.millis()) if message is None else message.ms, seq)
        if self._over(id, await self._time.millis()):
            _put(self._again, (subject, key), seq)
            return None
        self.note(subject, key, id)
        return id

    def _name(self, subject: str, subject_stream: SubjectStream, key: str) -> str:
        again = self._again.get((subject, key))
        named = quote(key, safe="") if subject_stream.own else quote(f"{subject} {key}", safe="")
        return named if again is None else f"{named}@{again}"

    def _over(self, id: EntryId, ms: int) -> bool:
        return ms - id.ms >= DEDUP_SECONDS * 1_000


def _put(kept: OrderedDict[tuple[str, str], T], key: tuple[str, str], value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)
