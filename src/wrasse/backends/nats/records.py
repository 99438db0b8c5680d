"""Records on NATS: messages of a JetStream key-value bucket, `<root>`, by collection and key. Each holds its value,
version, due time and last writes, and is changed only while it is still the last of its subject.

    create, put   the entry of the due index; the record, under the condition; then the old entry is removed
    delete        the record is marked `gone`, so that a retry is answered; an hour later the due
                  index leads to it and it is deleted. Where no write had a name there are no retries, and it is
                  deleted at once, unless another message has followed.

The version is made here and is part of the bytes, so a write whose reply was lost is recognised when it is read back,
also after later writes. What this process last saw of a record is cached, so that a put is one request; if it is
outdated, the condition fails and the record is read. A retried write gets its first answer for as long as the record
exists, and for an hour after it was deleted.

`due` reads buckets that have passed, so its cost follows what is due and a record shows at most one bucket width late;
within one bucket records come in the order of their names. The server does not sort names: the first page of a listing
reads all names of the collection, and later pages of the same listing use that result.

The bytes of a record are one line of JSON about it, then its raw value. The line has the version, the due time with the
mark of its entry, entries that are left for `leave`, and the last writes, which answer retries after a lost reply. A
deleted record stays for a while, marked `gone`. A value that would make the message too long for the server is
compressed.
"""

from __future__ import annotations

import secrets
import zlib
from asyncio import gather, sleep
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from wrasse.backends.nats.due_index import (
    LISTING_KEPT,
    LISTING_LONG,
    DueEntry,
    KvDueIndex,
    KvNames,
    namespace_subject,
    text_of,
)
from wrasse.backends.nats.kv_store import KvBucket, KvMessage, Overtaken, StaleServer
from wrasse.backends.record_files import CORRUPT, DueCursor, LastWrites, Write
from wrasse.bounded import decoded
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import StoreBroken, StoreFull, StoreUnavailable, TooLarge, unsettled
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import META, VALUE_BYTES_MAX, Collection, Record, Written, namespace_of, page_of, stored_name
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite

GONE_KEPT = timedelta(hours=1)
LEFT_MAX = 8  # entries that wait for `leave`; older ones are deleted when they are stale
KNOWN_MAX = 2_000
TRIES = 8
PAGE_BYTES_MAX = 32 << 20  # values in one page, unless a single one is longer
LOADED_AT_ONCE = 64
_PAUSE, _PAUSE_MAX = 0.05, 1.0  # seconds, doubled each time: electing a leader takes a few


@dataclass(frozen=True, slots=True)
class CachedRecord:
    """A record, the sequence of its message, and the connection over which it was read."""

    seq: int
    seen: int
    stored: KvRecord


class _PageAllowance:
    """How many more bytes and records a page may have."""

    def __init__(self, limit: int) -> None:
        self._records, self._bytes, self._empty = limit, PAGE_BYTES_MAX, True

    def admits(self, stored: KvRecord) -> bool:
        """Whether one more fits."""
        self._bytes -= len(stored.value)
        self._records -= 1
        fits = self._records >= 0 and (self._bytes >= 0 or self._empty)
        self._empty = False
        return fits


class NatsRecords(ConditionalRecords):
    """One collection of records."""

    def __init__(self, bucket: KvBucket, collection: Collection, clock: Clock) -> None:
        self._kv = bucket
        self.resolution = collection.width
        self._clock = clock
        self._names = KvNames(bucket.root, collection.data)
        self._tended = collection.tended
        self._known: OrderedDict[str, CachedRecord] = OrderedDict()
        self._index = KvDueIndex(bucket, self._names, collection, clock)
        self._namespace = namespace_of(collection.data)  # its message is written before the first key
        self._listing: tuple[float, str, list[str]] | None = None

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        if entering is None:
            stored = _there(await self._load(key))
        else:  # an entry for an announced write is made concurrently
            reading, announcing = await gather(
                self._load(key), self._index.announce(key, entering), return_exceptions=True
            )
            for answer in (reading, announcing):
                if isinstance(answer, BaseException):
                    raise answer
            assert not isinstance(reading, BaseException), "errors were raised"
            stored = _there(reading)
        return None if stored is None else _record(key, stored)

    async def write(self, asked: RecordWrite) -> Written:
        if asked.at is None and self._namespace is not None:
            await self._kv.set(namespace_subject(self._kv.root, self._namespace))
            self._namespace = None
        outcome, version = await self._write(asked.key, asked)
        return Written(outcome, version, await self._kv.time.now())

    async def _write(self, key: str, change: RecordWrite) -> tuple[Outcome, str | None]:
        version = secrets.token_hex(12)
        before = self._known.get(key)
        if before is None or before.stored.gone or before.stored.version != change.at:
            before = None if change.at is None and before is None else await self._load(key)
        unknown: StoreUnavailable | None = None
        for attempt in range(TRIES):
            writes = LastWrites() if before is None else before.stored.writes
            if _made(before, version):
                return Outcome.DONE, version if change.value is not None else None
            # A write of ours whose outcome is unknown may be among the dropped ones.
            nonce = change.nonce if unknown is None or change.nonce is not None else version
            answer = writes.answer(nonce, change.at, _version(before))
            if answer is not None:
                return answer
            least = 0
            try:
                await self._send(key, change, version, before)
                return Outcome.DONE, version if change.value is not None else None
            except Overtaken as overtaken:
                least = overtaken.seq
            except StoreFull:
                raise
            except StoreUnavailable as why:
                unknown = why
                await sleep(min(_PAUSE * 2**attempt, _PAUSE_MAX))
            try:
                before = await self._load(key, least)
            except StaleServer as why:
                unknown = why
            if unknown is not None and before is None and change.at is not None:
                return Outcome.UNKNOWN, None  # deleted, after our write or before it; by this process or another
        raise unknown if unknown is not None else unsettled(self._kv.where)

    async def leave(self, key: str, due_at: datetime) -> None:
        # Deletes the entries that changes left in a bucket, unless the record needs them.
        cached = self._known.get(key) or await self._load(key)
        bucket = self._index.due_buckets.due_bucket(due_at)
        left = [entry for entry in (cached.stored.left if cached else ()) if entry.due_bucket == bucket]
        if left:
            await self._index.leave(key, left)
            return
        current = cached.stored.entry if cached else None
        found = [entry for _, entry in await self._index.entries(bucket, key) if entry != current]
        await self._index.leave_stale(key, found)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit, "records")
        keys, at = await self._listed(prefix, after)
        found, more, allowance = list[Record](), False, _PageAllowance(limit)
        async for key, cached in self._loaded(keys, limit):
            stored = _there(cached)
            if stored is None:
                continue
            if not allowance.admits(stored):
                more = True
                break
            found.append(_record(key, stored))
        return Page(tuple(found), tuple(stored_name(each.key) for each in found), at, more)

    async def _listed(self, prefix: str, after: str | None) -> tuple[list[str], datetime]:
        """The keys of a listing after the cursor, in the order of stored names; a long one is cached, and read to its
        end."""
        known = self._listing
        fresh = known is not None and known[1] == prefix and self._clock.monotonic() - known[0] < LISTING_KEPT
        if after is not None and known is not None and fresh:
            return _behind(known[2], after), await self._kv.time.now()
        subjects, at = await self._kv.subjects(self._names.records)
        every = [key for subject in subjects if (key := self._names.key(subject)) is not None]
        keys = sorted((key for key in every if key.startswith(prefix)), key=lambda key: stored_name(key).encode())
        self._listing = (self._clock.monotonic(), prefix, keys) if len(keys) > LISTING_LONG else None
        return (keys if after is None else _behind(keys, after)), at

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        check_limit(limit, "records")
        cursor = None if after is None else DueCursor.parse(after)
        found, more, at = await self._due(before, cursor, limit)
        return Page(tuple(record for _, record in found), tuple(str(cursor) for cursor, _ in found), at, more)

    async def _due(
        self, horizon: datetime | None, after: DueCursor | None, limit: int
    ) -> tuple[list[tuple[DueCursor, Record]], bool, datetime]:
        """Records whose bucket has passed at the horizon, earliest first; whether there are more; the time."""
        found: list[tuple[DueCursor, Record]] = []
        allowance = _PageAllowance(limit)
        buckets, at = await self._index.over(horizon, "" if after is None else after.due_bucket)
        for bucket in buckets:
            goes_on = after is not None and after.due_bucket == bucket
            entries = await self._index.listing(bucket, goes_on=goes_on)
            if not entries:
                await self._index.retire(bucket)
                continue
            start = after.stored if after is not None and goes_on else b""
            keys = [key for key in dict.fromkeys(key for key, _ in entries) if stored_name(key).encode() > start]
            of_key = _by_key(entries)
            async for key, cached in self._loaded(keys, limit):
                stored = await self._due_record(key, bucket, of_key[key], cached)
                if stored is None:
                    continue
                if not allowance.admits(stored):
                    return found, True, at
                found.append((DueCursor(bucket, stored_name(key).encode()), _record(key, stored)))
        return found, False, at

    async def _due_record(
        self, key: str, bucket: str, entries: list[DueEntry], cached: CachedRecord | None
    ) -> KvRecord | None:
        """The record of a key's entries in a bucket; unused entries are deleted, and so is a record that was deleted
        long enough ago."""
        current = None if cached is None else cached.stored.entry
        stale = [entry for entry in entries if entry != current]
        there = _there(cached)
        kept = there is not None and (self._tended or there.version == CORRUPT)
        if there is not None and kept and current not in entries:
            return replace(there, due_at=self._index.due_buckets.begin(bucket))
        if stale and not kept:
            await self._index.leave(
                key, [entry for entry in stale if cached is not None and entry in cached.stored.left]
            )
            await self._index.leave_stale(key, stale)
        if current is None or current not in entries:
            return None
        if cached is not None and there is None:
            self._known.pop(key, None)
            if await self._kv.purge(self._names.record(key), cached.seq, cached.seen):
                await self._index.leave(key, [current])
        return there

    async def _send(self, key: str, change: RecordWrite, version: str, before: CachedRecord | None) -> None:
        writes = LastWrites() if before is None else before.stored.writes
        if change.value is None:
            assert before is not None, "a delete names the version of a record"
            named = change.nonce is not None or any(nonce is not None for nonce, _ in writes.kept)
            if not named:
                await self._remove(key, before)
                return
            due_at = await self._kv.time.now() + GONE_KEPT
            after = KvRecord(b"", version, due_at, writes.and_then(change.nonce, None), gone=True)
            await self._store(key, before, after, entry_stays=False)
            return
        after = KvRecord(bytes(change.value), version, change.due_at, writes.and_then(change.nonce, version))
        await self._store(key, before, after, entry_stays=change.entry_stays)

    async def _remove(self, key: str, before: CachedRecord) -> None:
        if not await self._kv.purge(self._names.record(key), before.seq, before.seen):
            raise Overtaken(0)
        self._known.pop(key, None)
        if before.stored.entry is not None:
            await self._index.leave(key, [before.stored.entry])

    async def _store(self, key: str, before: CachedRecord | None, after: KvRecord, *, entry_stays: bool) -> None:
        old = None if before is None else before.stored.entry
        after = await self._entered(key, before, after, entry_stays)
        data = pack(after, self._kv.bytes_max)
        try:
            at = before or _NOTHING
            seq, seen = await self._kv.write(
                self._names.record(key), data, after=at.seq, seen=at.seen, name=after.version
            )
        except (Overtaken, TooLarge):
            if after.entry is not None and after.entry != old:
                self._index.reuse(key, after.entry)
            raise
        self._note(key, CachedRecord(seq, seen, after))
        if old is not None and old != after.entry and old not in after.left:
            await self._index.leave(key, [old])

    async def _entered(self, key: str, before: CachedRecord | None, after: KvRecord, entry_stays: bool) -> KvRecord:
        """The record with its entry, which is in the index from now on."""
        old = None if before is None else before.stored.entry
        if after.due_at is None:
            entry = None
        elif old is not None and old.due_bucket == self._index.due_buckets.due_bucket(after.due_at):
            entry = old
        else:
            entry = await self._index.enter(key, after.due_at)
        left = () if before is None else before.stored.left
        left = (*left, old) if entry_stays and old is not None and old != entry else left
        return replace(after, entry=entry, left=left[-LEFT_MAX:])

    async def _load(self, key: str, at_least: int = 0) -> CachedRecord | None:
        seen = await self._kv.connection()
        return self._cached(key, seen, await self._kv.get(self._names.record(key), at_least))

    async def _loaded(self, keys: Sequence[str], limit: int) -> AsyncIterator[tuple[str, CachedRecord | None]]:
        """The records of these keys, as many at a time as a page may need. A message that is not a record is returned
        with its bytes as the value, under a version that no write matches: a listing skips it."""
        step = min(limit + 1, LOADED_AT_ONCE)
        for begin in range(0, len(keys), step):
            part = keys[begin : begin + step]
            seen = await self._kv.connection()
            found = await self._kv.get_many([self._names.record(key) for key in part])
            for key, message in zip(part, found, strict=True):
                try:
                    cached = self._cached(key, seen, message)
                except StoreBroken:
                    assert message is not None, "an absent message was handled above"
                    self._known.pop(key, None)
                    cached = CachedRecord(
                        message.seq, seen, KvRecord(message.data, CORRUPT, None, LastWrites(whole=False))
                    )
                yield key, cached

    def _cached(self, key: str, seen: int, message: KvMessage | None) -> CachedRecord | None:
        if message is None:
            self._known.pop(key, None)
            return None
        try:
            cached = CachedRecord(message.seq, seen, unpack(message.data))
        except ValueError:
            raise StoreBroken(
                f"the record of {key!r} in {self._kv.where} is corrupt or foreign",
                do="restore it from a backup, or delete it: "
                f"nats stream purge {self._kv.stream} --subject='{self._names.record(key)}'",
            ) from None
        self._note(key, cached)
        return cached

    def _note(self, key: str, cached: CachedRecord) -> None:
        # Without its value: only what the next write needs.
        self._known[key] = CachedRecord(cached.seq, cached.seen, replace(cached.stored, value=b""))
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _by_key(entries: Sequence[tuple[str, DueEntry]]) -> Mapping[str, list[DueEntry]]:
    found: dict[str, list[DueEntry]] = {}
    for key, entry in entries:
        found.setdefault(key, []).append(entry)
    return found


def _there(cached: CachedRecord | None) -> KvRecord | None:
    return None if cached is None or cached.stored.gone else cached.stored


def _version(cached: CachedRecord | None) -> str | None:
    return None if cached is None or cached.stored.gone else cached.stored.version


def _made(cached: CachedRecord | None, version: str) -> bool:
    """Whether a write of ours is the record's version, or among its last ones."""
    if cached is None:
        return False
    return cached.stored.version == version or any(made == version for _, made in cached.stored.writes.kept)


def _behind(keys: list[str], after: str) -> list[str]:
    return keys[bisect_right(keys, after.encode(), key=lambda key: stored_name(key).encode()) :]


def _record(key: str, stored: KvRecord) -> Record:
    return Record(key, stored.value, stored.version, stored.due_at)


class _Head(msgspec.Struct, omit_defaults=True):
    version: str
    due: int | None = None
    entry: tuple[str, str] | None = None
    left: list[tuple[str, str]] = []
    writes: list[Write] = []
    whole: bool = False
    gone: bool = False
    packed: bool = False


_decode = msgspec.json.Decoder(_Head).decode


@dataclass(frozen=True, slots=True)
class KvRecord:
    """The content of a record's message."""

    value: bytes
    version: str
    due_at: datetime | None
    writes: LastWrites
    entry: DueEntry | None = None  # in the due index; present exactly if there is a due time
    left: tuple[DueEntry, ...] = ()
    gone: bool = False  # deleted: only its writes count


_NOTHING = CachedRecord(0, 0, KvRecord(b"", "", None, LastWrites()))  # the predecessor of a key's first record


def pack(stored: KvRecord, bytes_max: int) -> bytes:
    """The bytes of the message; its value compressed if they would exceed `bytes_max`."""
    head = _Head(
        stored.version,
        None if stored.due_at is None else to_micros(stored.due_at),
        None if stored.entry is None else (stored.entry.due_bucket, stored.entry.mark),
        [(entry.due_bucket, entry.mark) for entry in stored.left],
        list(stored.writes.kept),
        stored.writes.whole,
        stored.gone,
    )
    line = msgspec.json.encode(head)
    if len(line) + 1 + len(stored.value) <= bytes_max:
        return line + b"\n" + stored.value
    head.packed = True
    return msgspec.json.encode(head) + b"\n" + zlib.compress(stored.value, 1)


def unpack(data: bytes) -> KvRecord:
    """The record in these bytes; ValueError if wrasse did not write them."""
    line, newline, value = data.partition(b"\n")
    if not newline:
        raise ValueError("no line about the record")
    head = decoded(_decode, line)
    return KvRecord(
        _unpacked(value) if head.packed else value,
        head.version,
        None if head.due is None else _instant(head.due),
        LastWrites(tuple(head.writes), head.whole),
        None if head.entry is None else DueEntry(*head.entry),
        tuple(DueEntry(*each) for each in head.left),
        head.gone,
    )


def _instant(micros: int) -> datetime:
    try:
        return from_micros(micros)
    except OverflowError:
        raise ValueError("its due time is outside of the calendar") from None


def _unpacked(value: bytes) -> bytes:
    """The value, decompressed; never longer than a record may be, whatever the bytes say."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(value, VALUE_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError("the value cannot be unpacked") from error
    if len(found) > VALUE_BYTES_MAX or not unpacking.eof:
        raise ValueError("the value is longer than a record may be")
    return found


class NatsNamespaces:
    """The namespaces: a message per namespace, written before its first key, and never deleted."""

    def __init__(self, bucket: KvBucket) -> None:
        self._kv = bucket

    async def page(self, after: str | None, limit: int) -> Page[str]:
        subjects, at = await self._kv.subjects(namespace_subject(self._kv.root, "*"))
        texts = [text_of(each.rpartition(".")[2]) for each in subjects]
        names = [name for name in texts if name is not None and namespace_of(name + META)]
        return page_of(names, after, limit, at)
