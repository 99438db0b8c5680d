"""Records as objects on S3: `<data>/<stored name>`, found when due through `<index>/<bucket>/<stored name>`.

The port's promises hold between processes on any hosts and through lost replies. A retried write gets its first answer
for as long as the record exists, and for an hour after it was deleted.

Each object has a record's value, version, due time and last writes, and is changed conditionally by its tag.

    create, put   the entry of the due index; the record, under the condition; then the old entry is removed
    delete        the record is marked `gone`, so that a retry is answered; an hour later the due
                  index leads to it and it is deleted. Where no write had a name there are no retries, and it is
                  deleted at once.

The version is made here and is part of the bytes, so a write whose reply was lost is recognised when it is read back,
also after later writes. What this process last saw of a record is cached, so that a put is one request; if it is
outdated, the condition fails and the record is read.

The due index has one small object per record and due bucket, and the list of existing buckets. An entry is stored
before its record, and deleted after it. There are no locks here, so an entry is deleted only by the tag it was seen
with, and only by the process that wrote it and the record after it, or once it is too old for any writer to need it. A
stale entry costs one read; a missing one would be a record that is never found. A due bucket leaves the list when a
listing shows it empty, and returns if a second one does not; a writer to a bucket that has passed checks the list
afterwards. A slow scan of the folders themselves finds what a crash in between has left out.
"""

from __future__ import annotations

import secrets
from asyncio import sleep
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.record_files import (
    CORRUPT,
    Answer,
    DueBucketRecords,
    DueBuckets,
    DueCursor,
    LastWrites,
    RecordChange,
    StoredRecord,
    listed,
    pack,
    unpack,
)
from wrasse.backends.s3.client import ABSENT, Client, Condition, gather_bounded, together
from wrasse.backends.s3.object_listing import Lister, nameable
from wrasse.backends.s3.transport import TRIES, NoAnswer, pause
from wrasse.backends.s3.xml import ListedObject
from wrasse.errors import StoreBroken, StoreUnavailable, UsageError, unsettled
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import META, Collection, Record, Written, namespace_of, page_of
from wrasse.ports.rules.conditional_records import RecordWrite

FRESH = timedelta(minutes=2)  # how long an entry may wait for its record before it is written again
STALE = timedelta(minutes=10)  # the age at which no writer can still need an unused entry
RETIRED_AFTER = timedelta(minutes=5)  # how long a bucket must have passed before it may leave the list
DISCOVERED_EVERY = timedelta(hours=1)
ENTRIES_KNOWN_MAX = 10_000
RECORDS_KNOWN_MAX = 2_000
GONE_KEPT = timedelta(hours=1)
_NAMESPACES_KEPT = timedelta(minutes=1)
_JSON = {"content-type": "application/json"}
_DOTS = {b".": b".%", b"..": b"..%"}  # some stores take these for folders; no stored name ends in a bare %
_UNDOTTED = {name: stored for stored, name in _DOTS.items()}
_Place = tuple[str, bytes]  # a due bucket, and the name of an entry in it


class S3Records(DueBucketRecords):
    """The records of one collection, as the port has them."""

    def __init__(self, client: Client, prefix: bytes, collection: Collection) -> None:
        records = RecordObjects(client, Lister(client), prefix, collection)
        super().__init__(records, collection.width, lambda: client.wire.time.now())
        self._client = client

    async def write(self, asked: RecordWrite) -> Written:
        await self._client.probed()
        return await super().write(asked)

    def _check_name(self, name: bytes) -> None:
        if not self._client.conditions.raw_keys and not nameable(name) and name not in (b".", b".."):
            raise UsageError(
                f"{self._client.where} does not keep keys like this one unchanged",
                do="use no backslash, and at most 255 bytes, counting % and / three times",
            )

    def _record(self, name: bytes, kept: StoredRecord) -> Record:
        return super()._record(stored_of(name), kept)


@dataclass(frozen=True, slots=True)
class TaggedRecord:
    """A record and the tag of its object."""

    etag: str
    kept: StoredRecord


class RecordObjects:
    """The records of one collection, by stored name."""

    def __init__(self, client: Client, lister: Lister, prefix: bytes, collection: Collection) -> None:
        self._client = client
        self._lister = lister
        self._folder = prefix + collection.data.strip("/").encode() + b"/"
        self._index = S3DueIndex(client, lister, prefix, collection)
        self._tended = collection.tended
        self._known: OrderedDict[bytes, TaggedRecord] = OrderedDict()

    async def get(self, stored: bytes, entering: datetime | None = None) -> StoredRecord | None:
        """The current record; the entry of an announced write is made concurrently."""
        if entering is None:
            return _there(await self._load(_name(stored)))
        name, due_bucket = _name(stored), self._index.due_buckets.due_bucket(entering)
        async with together() as tasks:
            load = tasks.create_task(self._load(name))
            enter = tasks.create_task(self._index.enter(name, due_bucket, _stored_version(self._known.get(name))))
        if enter.result():
            self._index.entered(name, due_bucket, _stored_version(load.result()))
        return _there(load.result())

    async def write(self, change: RecordChange) -> Answer:
        """Makes the change, if its condition holds."""
        name, version = _name(change.stored), secrets.token_hex(12)
        before = self._known.get(name)
        if before is None or before.kept.gone or before.kept.version != change.at:
            before = None if change.at is None and before is None else await self._load(name)
        unknown: NoAnswer | None = None
        for attempt in range(1, TRIES + 1):
            writes = LastWrites() if before is None else before.kept.writes
            if any(made == version for _, made in writes.kept) or _stored_version(before) == version:
                self._wrote(name, before)
                return Outcome.DONE, version if change.value is not None else None
            # A write of ours whose outcome is unknown may be among the dropped ones.
            nonce = change.nonce if unknown is None or change.nonce is not None else version
            answer = writes.answer(nonce, change.at, _version(before))
            if answer is not None:
                return answer
            try:
                done = await self._send(name, change, version, before)
                if done:
                    return Outcome.DONE, version if change.value is not None else None
            except NoAnswer as why:
                unknown = why
            before = await self._load(name)
            if unknown is not None and before is None and change.value is None:
                return Outcome.UNKNOWN, None  # deleted; by this process or another
            await sleep(pause(attempt) if unknown is not None else 0)
        raise unsettled(self._client.where) if unknown is None else unknown.why

    async def leave(self, stored: bytes, due_at: datetime) -> None:
        """Deletes an entry that a change left, unless the record needs it again."""
        name, due_bucket = _name(stored), self._index.due_buckets.due_bucket(due_at)
        await self._index.read_entry(name, due_bucket)
        held = self._known.get(name) or await self._load(name)
        if self._due_bucket_of(held) != due_bucket:
            await self._index.leave(name, due_bucket)

    async def page(
        self, prefix: bytes, after: bytes | None, limit: int
    ) -> tuple[list[tuple[bytes, StoredRecord]], bool]:
        """Records whose stored name starts with `prefix`, in order, each with its name; and whether there are more."""
        found: list[tuple[bytes, StoredRecord]] = []
        start = None if after is None else self._folder + after
        page_loop = PageLoop(self._client.where, "a listing")
        while True:
            page_loop.turn(start)
            listed, more = await self._lister.page(self._folder + prefix, start, limit + 1 - len(found))
            names = [each.key[len(self._folder) :] for each in listed]
            for name, held in zip(names, await gather_bounded(self._listed, names), strict=True):
                if held is None or held.kept.gone:
                    continue
                if len(found) == limit:
                    return found, True
                found.append((name, held.kept))
            if not more:
                return found, False
            start = listed[-1].key

    async def due(
        self, horizon: datetime, after: DueCursor | None, limit: int
    ) -> tuple[list[tuple[DueCursor, StoredRecord]], bool]:
        """Records whose bucket has passed at the horizon, earliest bucket first, and whether there are more."""
        found: list[tuple[DueCursor, StoredRecord]] = []
        for due_bucket in await self._index.over(horizon, "" if after is None else after.due_bucket):
            start = after.stored if after is not None and after.due_bucket == due_bucket else None
            empty, more, page_loop = start is None, True, PageLoop(self._client.where, "a listing")
            while more:
                page_loop.turn(start)
                names, more = await self._index.page(due_bucket, start, limit + 1 - len(found))
                empty = empty and not names
                for name, held in zip(names, await gather_bounded(self._listed, names), strict=True):
                    kept = await self._seen(due_bucket, name, held)
                    if kept is not None and len(found) == limit:
                        return found, True
                    if kept is not None:
                        found.append((DueCursor(due_bucket, name), kept))
                start = names[-1] if names else start
            if empty and not self._client.only_reads:
                await self._index.retire(due_bucket)
        return found, False

    async def _seen(self, due_bucket: str, name: bytes, held: TaggedRecord | None) -> StoredRecord | None:
        """The record of an entry; an unused entry is deleted, and so is a record that was deleted long enough ago."""
        here = self._due_bucket_of(held) == due_bucket
        if held is not None and not held.kept.gone:
            if here:
                return held.kept
            if self._tended or held.kept.version == CORRUPT:
                return replace(held.kept, due_at=self._index.due_buckets.begin(due_bucket))
        if self._client.only_reads:
            return None
        if held is not None and here:
            try:
                await self._client.delete(self._folder + name, held.etag)
            except NoAnswer:
                return None
            self._known.pop(name, None)
        await self._index.leave(name, due_bucket)
        return None

    async def _send(self, name: bytes, change: RecordChange, version: str, before: TaggedRecord | None) -> bool:
        writes = LastWrites() if before is None else before.kept.writes
        if change.value is None:
            assert before is not None, "a delete names the version of a record"
            named = change.nonce is not None or any(nonce is not None for nonce, _ in writes.kept)
            if not named:
                return await self._delete(name, before)
            due_at = self._client.wire.time.now() + GONE_KEPT
            after = StoredRecord(b"", version, due_at, writes.and_then(change.nonce, None), gone=True)
        else:
            after = StoredRecord(change.value, version, change.due_at, writes.and_then(change.nonce, version))
        return await self._store(name, before, after, change.entry_stays)

    async def _store(self, name: bytes, before: TaggedRecord | None, after: StoredRecord, entry_stays: bool) -> bool:
        old, new = self._due_bucket_of(before), self._due_bucket_of(after)
        if new is not None and new != old:
            await self._index.enter(name, new, _stored_version(before))
        condition = ABSENT if before is None else Condition(before.etag)
        etag = await self._client.put(self._folder + name, pack(after), condition, _JSON)
        if etag is None:
            return False
        self._wrote(name, TaggedRecord(etag, after))
        if old is not None and old != new and not entry_stays:
            await self._index.leave(name, old)
        return True

    async def _delete(self, name: bytes, before: TaggedRecord) -> bool:
        old = self._due_bucket_of(before)
        if not await self._client.delete(self._folder + name, before.etag):
            return False
        self._known.pop(name, None)
        if old is not None:
            await self._index.leave(name, old)
        return True

    def _wrote(self, name: bytes, held: TaggedRecord | None) -> None:
        assert held is not None, "an object that was just written exists"
        self._note(name, held)
        due_bucket = self._due_bucket_of(held)
        if due_bucket is not None:
            self._index.use(name, due_bucket)

    def _due_bucket_of(self, held: TaggedRecord | StoredRecord | None) -> str | None:
        kept = held.kept if isinstance(held, TaggedRecord) else held
        return None if kept is None or kept.due_at is None else self._index.due_buckets.due_bucket(kept.due_at)

    async def _listed(self, name: bytes) -> TaggedRecord | None:
        """For a listing, which skips a corrupt record."""
        try:
            return await self._load(name)
        except StoreBroken:
            got = await self._client.get(self._folder + name)
            return None if got is None else TaggedRecord(got.etag, listed(got.data))

    async def _load(self, name: bytes) -> TaggedRecord | None:
        got = await self._client.get(self._folder + name)
        if got is None:
            self._known.pop(name, None)
            return None
        try:
            held = TaggedRecord(got.etag, unpack(got.data))
        except ValueError:
            raise StoreBroken(
                f"a record in {self._client.where} is corrupt or foreign",
                do="restore the object from a backup, or move it out of the folder of the collection",
            ) from None
        self._note(name, held)
        return held

    def _note(self, name: bytes, held: TaggedRecord) -> None:
        # Without its value: only what the next write needs.
        self._known[name] = TaggedRecord(held.etag, replace(held.kept, value=b""))
        self._known.move_to_end(name)
        while len(self._known) > RECORDS_KNOWN_MAX:
            self._known.popitem(last=False)


def stored_of(name: bytes) -> bytes:
    """The stored name of the record with this object name."""
    return _UNDOTTED.get(name, name)


def _name(stored: bytes) -> bytes:
    return _DOTS.get(stored, stored)


def _there(held: TaggedRecord | None) -> StoredRecord | None:
    return None if held is None or held.kept.gone else held.kept


def _version(held: TaggedRecord | None) -> str | None:
    return None if held is None or held.kept.gone else held.kept.version


def _stored_version(held: TaggedRecord | None) -> str | None:
    return None if held is None else held.kept.version


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """An entry that this process wrote or saw. `used` once a record was written after it. `record` is the version of
    the record when the entry was written: a process that deletes the entry has changed the record since then."""

    etag: str
    at: datetime
    ours: bool = False
    used: bool = False
    record: str | None = None

    def removable(self, now: datetime) -> bool:
        """Whether no writer can still need it."""
        return (self.ours and self.used) or now - self.at >= STALE


class S3DueIndex:
    """The due index of one collection."""

    def __init__(self, client: Client, lister: Lister, prefix: bytes, collection: Collection) -> None:
        self._client = client
        self._lister = lister
        self.due_buckets = DueBuckets(collection.width)
        self._folder = prefix + collection.index.strip("/").encode() + b"/"
        self._list_key = prefix + collection.buckets.strip("/").encode()
        self._listed: set[str] = set()
        self._unlisted: set[str] = set()  # folders that are missing from the list, found by a reader
        self._entries: OrderedDict[_Place, BucketEntry] = OrderedDict()
        self._discovered_at: datetime | None = None

    async def enter(self, name: bytes, due_bucket: str, record: str | None) -> bool:
        """Writes an entry for this record, unless there is a recent one of ours and the record has not changed since;
        returns whether it was written."""
        now = self._client.wire.time.now()
        known = self._entries.get((due_bucket, name))
        if known is not None and known.ours and known.record == record and now - known.at < FRESH:
            self._note((due_bucket, name), replace(known, used=False))
            return False
        if due_bucket not in self._listed:
            await self._list(due_bucket)
        # Its bytes differ from those of any other entry, and so does its tag.
        etag = await self._client.put(self._key(due_bucket, name), secrets.token_hex(8).encode(), None)
        assert etag is not None, "a write without a condition cannot fail it"
        self._note((due_bucket, name), BucketEntry(etag, now, ours=True, record=record))
        # A bucket leaves the list when a listing, RETIRED_AFTER its end, shows it empty. Up to FRESH before that a
        # listing must show this entry, which exists by now.
        if self.due_buckets.is_over(due_bucket, self._client.wire.time.now() + FRESH - RETIRED_AFTER):
            await self._list(due_bucket)  # another process may be removing it from the list
        return True

    def entered(self, name: bytes, due_bucket: str, record: str | None) -> None:
        """Notes the version of the record that was read while its entry was written."""
        known = self._entries.get((due_bucket, name))
        if known is not None and known.ours:
            self._note((due_bucket, name), replace(known, record=record))

    def use(self, name: bytes, due_bucket: str) -> None:
        """Notes that the record of an entry was written."""
        known = self._entries.get((due_bucket, name))
        if known is not None:
            self._note((due_bucket, name), replace(known, used=True))

    async def leave(self, name: bytes, due_bucket: str) -> None:
        """Deletes the entry, if no writer can need it; else it stays until it is old."""
        known = self._entries.get((due_bucket, name))
        if known is None or not known.removable(self._client.wire.time.now()):
            return
        self._entries.pop((due_bucket, name), None)
        try:
            await self._client.delete(self._key(due_bucket, name), known.etag)
        except (NoAnswer, StoreUnavailable):
            return  # a stale entry is read once more

    async def read_entry(self, name: bytes, due_bucket: str) -> None:
        """Reads an entry that this process neither wrote nor saw."""
        if (due_bucket, name) not in self._entries:
            seen = await self._client.head(self._key(due_bucket, name))
            if seen is not None:
                self._note((due_bucket, name), BucketEntry(seen.etag, seen.modified_at))

    async def over(self, horizon: datetime, first: str) -> list[str]:
        """Buckets that have passed, earliest first, from `first` on."""
        await self._discover()
        listed, _ = await self._load()
        if self._discovered_at is None:
            await self._discover()
            listed, _ = await self._load()
        if self._unlisted:
            listed = sorted({*listed, *self._unlisted})
        return [
            due_bucket for due_bucket in listed if due_bucket >= first and self.due_buckets.is_over(due_bucket, horizon)
        ]

    async def page(self, due_bucket: str, after: bytes | None, limit: int) -> tuple[list[bytes], bool]:
        """Names of entries in one bucket, in order, and whether there are more."""
        folder = self._key(due_bucket, b"")
        found, more = await self._lister.page(folder, None if after is None else folder + after, limit)
        return [self._saw(due_bucket, each, each.key[len(folder) :]) for each in found], more

    async def retire(self, due_bucket: str) -> None:
        """Removes a bucket from the list after a listing showed it empty, if it has passed a while ago."""
        if not self.due_buckets.is_over(due_bucket, self._client.wire.time.now() - RETIRED_AFTER):
            return
        await self._change(lambda listed: [each for each in listed if each != due_bucket])
        self._listed.discard(due_bucket)
        found, _ = await self._lister.page(self._key(due_bucket, b""), None, 1)
        if found:
            await self._list(due_bucket)

    async def _list(self, due_bucket: str) -> None:
        await self._change(lambda listed: listed if due_bucket in listed else sorted([*listed, due_bucket]))
        self._listed.add(due_bucket)

    async def _discover(self) -> None:
        now = self._client.wire.time.now()
        if self._discovered_at is not None and now - self._discovered_at < DISCOVERED_EVERY:
            return
        folders = [folder.decode("utf-8", "replace") for folder in await self._lister.folders(self._folder)]
        found = {folder for folder in folders if self.due_buckets.is_one(folder)}
        listed, _ = await self._load()
        if self._client.only_reads:
            self._unlisted = found - set(listed)
        elif not found <= set(listed):
            await self._change(lambda listed: sorted({*listed, *found}))
        self._discovered_at = now

    async def _change(self, change: Callable[[list[str]], list[str]]) -> None:
        for attempt in range(1, TRIES * 2):
            listed, condition = await self._load()
            wanted = change(listed)
            if wanted == listed:
                return
            try:
                if await self._client.put(self._list_key, self.due_buckets.pack(wanted), condition) is not None:
                    return
            except NoAnswer:
                pass  # checked again: either it is listed now, or the write is repeated
            await sleep(pause(min(attempt, 3)))
        raise StoreUnavailable(f"the list of due buckets in {self._client.where} keeps changing", do="try again later")

    async def _load(self) -> tuple[list[str], Condition]:
        got = await self._client.get(self._list_key)
        if got is None:
            return [], ABSENT
        try:
            listed = self.due_buckets.parse(got.data)
        except ValueError:
            raise StoreBroken(
                f"the list of due buckets in {self._client.where} is of another width",
                do="delete it: it is made again from the folders beside it",
            ) from None
        if listed is None:  # another program overwrote it: treated like a deleted one
            self._discovered_at = None
        return listed or [], Condition(got.etag)

    def _saw(self, due_bucket: str, each: ListedObject, name: bytes) -> bytes:
        known = self._entries.get((due_bucket, name))
        if known is None or known.etag != each.etag:
            self._note((due_bucket, name), BucketEntry(each.etag, each.modified_at))
        return name

    def _note(self, place: _Place, entry: BucketEntry) -> None:
        self._entries[place] = entry
        self._entries.move_to_end(place)
        while len(self._entries) > ENTRIES_KNOWN_MAX:
            self._entries.popitem(last=False)

    def _key(self, due_bucket: str, name: bytes) -> bytes:
        return self._folder + due_bucket.encode() + b"/" + name


class S3Namespaces:
    """The top-level folders. Other folders there are listed, too: telling them apart would cost a request each, and
    reading their due index shows soon enough. The pages come from one cached listing, renewed when it is too old."""

    def __init__(self, client: Client, lister: Lister, prefix: bytes) -> None:
        self._client, self._lister, self._prefix = client, lister, prefix
        self._listed: tuple[datetime, Sequence[str]] | None = None

    async def page(self, after: str | None, limit: int) -> Page[str]:
        now = self._client.wire.time.now()
        if after is None or self._listed is None or not timedelta(0) <= now - self._listed[0] < _NAMESPACES_KEPT:
            folders = [folder.decode("utf-8", "replace") for folder in await self._lister.folders(self._prefix)]
            names = [name for name in folders if namespace_of(name + META)]
            now = self._client.wire.time.now()
            self._listed = (now, names)
        return page_of(self._listed[1], after, limit, now)
