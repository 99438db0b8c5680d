"""The due index in a bucket: one small object per record and due bucket, and the list of buckets there are.

An entry is there before the record that it is for, and goes after it. Nobody can be alone with a record here, so an
entry is deleted only by the tag it was seen with, and only by the process that wrote it and the record after it, or
once it is too old for a writer to be still on its way. A stale entry costs a look; a missing one would be a record that
nobody finds. A due bucket leaves the list when a listing shows it empty, and comes back if a second one does not;
whoever writes into a bucket that is over looks at the list afterwards. A slow look at the folders themselves finds
what a crash in between has left out.
"""

from __future__ import annotations

import secrets
from asyncio import sleep
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.backends.bucket.calendar import Calendar
from wrasse.backends.s3.client import ABSENT, Client, Condition
from wrasse.backends.s3.listing import Lister
from wrasse.backends.s3.replies import Listed
from wrasse.backends.s3.wire import TRIES, NoAnswer, pause
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.records import Collection

FRESH = timedelta(minutes=2)  # how long an entry of ours may wait for its record before it is written again
STALE = timedelta(minutes=10)  # from when on no writer can be on its way to the record of an entry
RETIRED_AFTER = timedelta(minutes=5)  # how long a bucket must be over before it may leave the list
DISCOVERED_EVERY = timedelta(hours=1)
ENTRIES_KNOWN_MAX = 10_000

_Change = Callable[[list[str]], list[str]]
Place = tuple[str, bytes]  # a due bucket, and the name of an entry in it


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that we wrote or saw. `used` once a record was written after it. `record` is the version that the record
    had when we wrote the entry: whoever takes it away has changed the record since then."""

    etag: str
    at: datetime
    ours: bool = False
    used: bool = False
    record: str | None = None

    def removable(self, now: datetime) -> bool:
        """Whether nobody can be about to rely on it."""
        return (self.ours and self.used) or now - self.at >= STALE


class DueIndex:
    """The due index of one collection."""

    def __init__(self, client: Client, lister: Lister, prefix: bytes, collection: Collection) -> None:
        self._client = client
        self._lister = lister
        self.calendar = Calendar(collection.width)
        self._folder = prefix + collection.index.strip("/").encode() + b"/"
        self._list_key = prefix + collection.buckets.strip("/").encode()
        self._listed: set[str] = set()
        self._unlisted: set[str] = set()  # folders that are not on the list, as a reader found them
        self._entries: OrderedDict[Place, Entry] = OrderedDict()
        self._discovered_at: datetime | None = None

    async def enter(self, name: bytes, bucket: str, record: str | None) -> bool:
        """An entry for this record, unless we wrote one just now and the record has not changed since; whether it was
        written."""
        now = self._client.wire.time.now()
        known = self._entries.get((bucket, name))
        if known is not None and known.ours and known.record == record and now - known.at < FRESH:
            self._note((bucket, name), replace(known, used=False))
            return False
        if bucket not in self._listed:
            await self._list(bucket)
        # Its bytes differ from those of any other entry, so that its tag does, too.
        etag = await self._client.put(self._key(bucket, name), secrets.token_hex(8).encode(), None)
        assert etag is not None, "a write without a condition cannot fail it"
        self._note((bucket, name), Entry(etag, now, ours=True, record=record))
        # A bucket leaves the list when a listing, RETIRED_AFTER its end, shows it empty. Up to FRESH before that a
        # listing is bound to show this entry, which is there by now.
        if self.calendar.is_over(bucket, self._client.wire.time.now() + FRESH - RETIRED_AFTER):
            await self._list(bucket)  # somebody may be taking it off
        return True

    def entered(self, name: bytes, bucket: str, record: str | None) -> None:
        """The record that was read beside the writing of its entry has this version."""
        known = self._entries.get((bucket, name))
        if known is not None and known.ours:
            self._note((bucket, name), replace(known, record=record))

    def use(self, name: bytes, bucket: str) -> None:
        """The record of an entry was written."""
        known = self._entries.get((bucket, name))
        if known is not None:
            self._note((bucket, name), replace(known, used=True))

    async def leave(self, name: bytes, bucket: str) -> None:
        """Takes the entry away, if nobody can need it; else it stays until it is old."""
        known = self._entries.get((bucket, name))
        if known is None or not known.removable(self._client.wire.time.now()):
            return
        self._entries.pop((bucket, name), None)
        try:
            await self._client.delete(self._key(bucket, name), known.etag)
        except (NoAnswer, StoreUnavailable):
            return  # a stale entry is looked at once more

    async def look(self, name: bytes, bucket: str) -> None:
        """Finds out about an entry that we neither wrote nor saw."""
        if (bucket, name) not in self._entries:
            seen = await self._client.head(self._key(bucket, name))
            if seen is not None:
                self._note((bucket, name), Entry(seen.etag, seen.modified_at))

    async def over(self, horizon: datetime, first: str) -> list[str]:
        """Buckets that are over, earliest first, from `first` on."""
        await self._discover()
        listed, _ = await self._load()
        if self._discovered_at is None:
            await self._discover()
            listed, _ = await self._load()
        if self._unlisted:
            listed = sorted({*listed, *self._unlisted})
        return [bucket for bucket in listed if bucket >= first and self.calendar.is_over(bucket, horizon)]

    async def page(self, bucket: str, after: bytes | None, limit: int) -> tuple[list[bytes], bool]:
        """Names of entries in one bucket, in order, and whether there are more."""
        folder = self._key(bucket, b"")
        found, more = await self._lister.page(folder, None if after is None else folder + after, limit)
        return [self._saw(bucket, each, each.key[len(folder) :]) for each in found], more

    async def retire(self, bucket: str) -> None:
        """Takes a bucket off the list that a listing showed empty, if it has been over for a while."""
        if not self.calendar.is_over(bucket, self._client.wire.time.now() - RETIRED_AFTER):
            return
        await self._change(lambda listed: [each for each in listed if each != bucket])
        self._listed.discard(bucket)
        found, _ = await self._lister.page(self._key(bucket, b""), None, 1)
        if found:
            await self._list(bucket)

    async def _list(self, bucket: str) -> None:
        await self._change(lambda listed: listed if bucket in listed else sorted([*listed, bucket]))
        self._listed.add(bucket)

    async def _discover(self) -> None:
        now = self._client.wire.time.now()
        if self._discovered_at is not None and now - self._discovered_at < DISCOVERED_EVERY:
            return
        folders = [folder.decode("utf-8", "replace") for folder in await self._lister.folders(self._folder)]
        found = {folder for folder in folders if self.calendar.is_one(folder)}
        listed, _ = await self._load()
        if self._client.only_reads:
            self._unlisted = found - set(listed)
        elif not found <= set(listed):
            await self._change(lambda listed: sorted({*listed, *found}))
        self._discovered_at = now

    async def _change(self, change: _Change) -> None:
        for attempt in range(1, TRIES * 2):
            listed, condition = await self._load()
            wanted = change(listed)
            if wanted == listed:
                return
            try:
                if await self._client.put(self._list_key, self.calendar.pack(wanted), condition) is not None:
                    return
            except NoAnswer:
                pass  # looked at again: either it is there now, or it is tried again
            await sleep(pause(min(attempt, 3)))
        raise StoreUnavailable(
            f"the list of due buckets in {self._client.where} is always being changed", do="try again later"
        )

    async def _load(self) -> tuple[list[str], Condition]:
        got = await self._client.get(self._list_key)
        if got is None:
            return [], ABSENT
        try:
            listed = self.calendar.parse(got.data)
        except ValueError:
            raise StoreBroken(
                f"the list of due buckets in {self._client.where} is of another width",
                do="delete it: it is made again from the folders beside it",
            ) from None
        if listed is None:  # somebody wrote over it: as good as deleted
            self._discovered_at = None
        return listed or [], Condition(got.etag)

    def _saw(self, bucket: str, each: Listed, name: bytes) -> bytes:
        known = self._entries.get((bucket, name))
        if known is None or known.etag != each.etag:
            self._note((bucket, name), Entry(each.etag, each.modified_at))
        return name

    def _note(self, place: Place, entry: Entry) -> None:
        self._entries[place] = entry
        self._entries.move_to_end(place)
        while len(self._entries) > ENTRIES_KNOWN_MAX:
            self._entries.popitem(last=False)

    def _key(self, bucket: str, name: bytes) -> bytes:
        return self._folder + bucket.encode() + b"/" + name
