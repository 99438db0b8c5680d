"""The due index of a collection on NATS: one small message per record and due bucket, and one per bucket.

An entry is stored before the record that names it, and removed after it. Each has a unique mark, so that deleting one
never deletes another: a writer whose condition fails leaves at worst an unused entry, which costs one read and is
deleted once no writer can still need it. A due bucket's own message is written after an entry in it, and deleted only
up to the sequence seen before the due bucket was found empty: so a listing without one misses no entry.

`KvNames` has the subjects in the JetStream key-value bucket:

    $KV.<root>.<collection>.r.<key>                       a record
    $KV.<root>.<collection>.due.<bucket>.<key>.<mark>     its entry in this due bucket; the record names the mark
    $KV.<root>.<collection>.buckets.<bucket>              this due bucket has, or had, entries
    $KV.<root>.ns.<namespace>                             this namespace has, or had, keys

A key-value bucket allows letters, digits and `-/_=.` only, and a dot ends a token: every other byte of UTF-8 is written
as `=` and two hexadecimal digits, so that any key can be decoded. The server does not sort: listings are sorted by
`stored_name` here.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.backends.nats.kv_store import KvBucket
from wrasse.backends.record_files import DueBuckets
from wrasse.clock import Clock
from wrasse.ports.records import Collection, stored_name

_OTHERS = re.compile(rb"[^A-Za-z0-9_/-]")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_/-]|=[0-9A-F]{2})+")
_FRESH = timedelta(minutes=2)  # how long an entry may wait for its record before another one is made
STALE = timedelta(minutes=10)  # the age at which no writer can still need an unused entry
RETIRED_AFTER = timedelta(minutes=5)  # how long a bucket must have passed before its message is deleted
_ANNOUNCED_MAX = 1_000
LISTING_KEPT = 30.0  # seconds
LISTING_LONG = 1_000  # entries from which on a listing is worth caching
_LISTED_MAX = 10_000  # buckets whose message is known to exist


class KvDueIndex:
    """The entries of one collection."""

    def __init__(self, bucket: KvBucket, names: KvNames, collection: Collection, clock: Clock) -> None:
        self.due_buckets = DueBuckets(collection.width)
        self._kv = bucket
        self._names = names
        self._clock = clock
        self._listed: OrderedDict[str, None] = OrderedDict()
        self._listing: _Listing | None = None
        self._announced: OrderedDict[tuple[str, str], _Announced] = OrderedDict()

    async def announce(self, key: str, due_at: datetime) -> None:
        """Makes an entry for a write that is about to follow."""
        bucket = self.due_buckets.due_bucket(due_at)
        known = self._announced.get((key, bucket))
        if known is None or not self._fresh(known):
            made = _Announced(await self._enter(key, bucket), self._clock.monotonic())
            self._keep(key, made)

    async def enter(self, key: str, due_at: datetime) -> DueEntry:
        """The entry for a write that follows at once: the announced one, or a new one."""
        bucket = self.due_buckets.due_bucket(due_at)
        known = self._announced.pop((key, bucket), None)
        return known.entry if known is not None and self._fresh(known) else await self._enter(key, bucket)

    def reuse(self, key: str, entry: DueEntry) -> None:
        """Keeps the entry of a write that was not made for the next one."""
        self._keep(key, _Announced(entry, self._clock.monotonic() - _FRESH.total_seconds() / 2))

    async def leave(self, key: str, entries: Sequence[DueEntry]) -> None:
        """Deletes entries that no record names any more and no writer will use."""
        await self._kv.purge_many([self._names.entry(key, entry) for entry in entries])

    async def leave_stale(self, key: str, entries: Sequence[DueEntry]) -> None:
        """Deletes those that are too old for a writer to need them."""
        subjects = [self._names.entry(key, entry) for entry in entries]
        found = await self._kv.get_many(subjects)
        horizon = await self._kv.time.server() - STALE
        old = [subject for subject, message in zip(subjects, found, strict=True) if message and message.at < horizon]
        await self._kv.purge_many(old)

    async def over(self, horizon: datetime | None, first: str) -> tuple[list[str], datetime]:
        """Buckets that have passed (None: by now), earliest first, from `first` on; and the time."""
        subjects, at = await self._kv.subjects(self._names.buckets)
        buckets = sorted(self._names.bucket_of(subject) for subject in subjects)
        shown = [each for each in buckets if each >= first and self.due_buckets.is_one(each)]
        return [each for each in shown if self.due_buckets.is_over(each, horizon or at)], at

    async def entries(self, bucket: str, key: str | None = None) -> list[tuple[str, DueEntry]]:
        """The entries of one bucket, each with its key, in the order of stored names."""
        subjects, _ = await self._kv.subjects(self._names.entries(bucket, key))
        found = [each for subject in subjects if (each := self._names.entry_of(subject)) is not None]
        return sorted(found, key=lambda each: (stored_name(each[0]).encode(), each[1].mark))

    async def listing(self, bucket: str, *, goes_on: bool) -> list[tuple[str, DueEntry]]:
        """The same; a long one is cached and read to its end. The reader checks the records."""
        known, now = self._listing, self._clock.monotonic()
        if goes_on and known is not None and known.due_bucket == bucket and now - known.at < LISTING_KEPT:
            return known.entries
        found = await self.entries(bucket)
        long = len(found) > LISTING_LONG
        self._listing = _Listing(bucket, now, found) if long else None
        return found

    async def retire(self, bucket: str) -> None:
        """Deletes the message of a bucket that has passed a while ago, if it is empty."""
        if not self.due_buckets.is_over(bucket, await self._kv.time.now() - RETIRED_AFTER):
            return
        subject = self._names.due_bucket(bucket)
        seen = await self._kv.get(subject)
        if seen is not None and not await self.entries(bucket):
            self._listed.pop(bucket, None)
            await self._kv.purge(subject, seen.seq)

    async def _enter(self, key: str, bucket: str) -> DueEntry:
        entry = DueEntry(bucket, secrets.token_hex(8))
        await self._kv.set(self._names.entry(key, entry))
        # Announced after the write: during a slow write the bucket's message may have been deleted.
        if bucket not in self._listed or self.due_buckets.is_over(bucket, await self._kv.time.now()):
            await self._kv.set(self._names.due_bucket(bucket))
            self._listed[bucket] = None
            while len(self._listed) > _LISTED_MAX:
                self._listed.popitem(last=False)
        return entry

    def _fresh(self, made: _Announced) -> bool:
        return self._clock.monotonic() - made.at < _FRESH.total_seconds()

    def _keep(self, key: str, made: _Announced) -> None:
        self._announced[key, made.entry.due_bucket] = made
        while len(self._announced) > _ANNOUNCED_MAX:
            self._announced.popitem(last=False)


def token(text: str) -> str:
    """The text as one token of a subject."""
    return _OTHERS.sub(lambda found: b"=%02X" % found[0][0], text.encode()).decode()


def text_of(written: str) -> str | None:
    """The inverse of `token`; None for a token it never writes, such as another program's key."""
    if not _TOKEN.fullmatch(written):
        return None
    try:
        return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), written.encode()).decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class DueEntry:
    """A record's entry in a due bucket. No two entries have the same mark, so that one is never mistaken for
    another."""

    due_bucket: str
    mark: str


class KvNames:
    """The subjects of one collection."""

    def __init__(self, root: str, collection: str) -> None:
        self._start = f"$KV.{root}.{token(collection)}."

    @property
    def records(self) -> str:
        """The filter of all records."""
        return f"{self._start}r.*"

    @property
    def buckets(self) -> str:
        """The filter of all due buckets."""
        return f"{self._start}buckets.*"

    def record(self, key: str) -> str:
        """The record of a key."""
        return f"{self._start}r.{token(key)}"

    def due_bucket(self, due_bucket: str) -> str:
        """The message of a due bucket."""
        return f"{self._start}buckets.{due_bucket}"

    def entry(self, key: str, entry: DueEntry) -> str:
        """An entry of a key."""
        return f"{self._start}due.{entry.due_bucket}.{token(key)}.{entry.mark}"

    def entries(self, bucket: str, key: str | None = None) -> str:
        """The filter of all entries of a due bucket, or of one key in it."""
        return f"{self._start}due.{bucket}.{'*' if key is None else token(key)}.*"

    def key(self, subject: str) -> str | None:
        """The key of a record's subject."""
        return text_of(subject.removeprefix(f"{self._start}r."))

    def bucket_of(self, subject: str) -> str:
        """The due bucket of its subject."""
        return subject.rpartition(".")[2]

    def entry_of(self, subject: str) -> tuple[str, DueEntry] | None:
        """The key and the entry of an entry's subject."""
        bucket, _, rest = subject.removeprefix(f"{self._start}due.").partition(".")
        name, _, mark = rest.partition(".")
        key = text_of(name)
        return None if key is None else (key, DueEntry(bucket, mark))


def namespace_subject(root: str, name: str) -> str:
    """The message of a namespace; the name `*` is the filter of all."""
    return f"$KV.{root}.ns.{name if name == '*' else token(name)}"


@dataclass(frozen=True, slots=True)
class _Announced:
    """An entry that was made concurrently with a read, and when, by the monotonic clock."""

    entry: DueEntry
    at: float


@dataclass(frozen=True, slots=True)
class _Listing:
    """The entries of a bucket, read at some moment of the monotonic clock."""

    due_bucket: str
    at: float
    entries: list[tuple[str, DueEntry]]
