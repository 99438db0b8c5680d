"""Records as messages of a key-value bucket: each holds its value, version, due time and last writes, and is changed
only while it is still the last of its subject.

    create, put   the entry of the due index; the record, under the condition; then the old entry goes
    delete        the record becomes one that says `gone`, so that whoever asks again is answered; an hour later the due
                  index leads to it and it goes. Where no write had a name nobody can ask again, and it goes at once,
                  unless another message has followed.

The version is made here and stands in the bytes, so a write whose reply was lost is recognised when it is read back,
also when others wrote after it. What this process last saw of a record is kept, so that a put is one request; if it is
no longer true, the condition fails and the record is read.
"""

from __future__ import annotations

import secrets
from asyncio import gather, sleep
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.backends.bucket.envelope import DAMAGED, Writes
from wrasse.backends.bucket.named_records import Change, DueSpot
from wrasse.backends.nats.kv_bucket import Behind, Bucket, Message, Overtaken
from wrasse.backends.nats.kv_bytes import LEFT_MAX, Stored, pack, unpack
from wrasse.backends.nats.kv_due import DueIndex
from wrasse.backends.nats.kv_names import Entry, Names
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreFull, StoreUnavailable, TooLarge
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, stored_name

GONE_KEPT = timedelta(hours=1)
KNOWN_MAX = 2_000
TRIES = 8
PAGE_BYTES_MAX = 32 << 20  # values in one page, unless a single one is longer
LOADED_AT_ONCE = 64
_PAUSE, _PAUSE_MAX = 0.05, 1.0  # seconds, doubled each time: a leader is elected within a few

Answer = tuple[Outcome, str | None]


@dataclass(frozen=True, slots=True)
class Held:
    """A record, the number of its message, and the connection over which that was read."""

    seq: int
    seen: int
    stored: Stored


class _Room:
    """How much a page still takes."""

    def __init__(self, limit: int) -> None:
        self._records, self._bytes, self._empty = limit, PAGE_BYTES_MAX, True

    def takes(self, stored: Stored) -> bool:
        """Whether one more fits."""
        self._bytes -= len(stored.value)
        self._records -= 1
        fits = self._records >= 0 and (self._bytes >= 0 or self._empty)
        self._empty = False
        return fits


class RecordMessages:
    """The records of one collection, by key."""

    def __init__(self, bucket: Bucket, names: Names, collection: Collection, clock: Clock) -> None:
        self._bucket = bucket
        self._names = names
        self._tended = collection.tended
        self._known: OrderedDict[str, Held] = OrderedDict()
        self.index = DueIndex(bucket, names, collection, clock)

    async def get(self, key: str, entering: datetime | None = None) -> Stored | None:
        """The record as it is now; an entry for a write that is announced is made beside it."""
        if entering is None:
            return _there(await self._load(key))
        reading, announcing = await gather(self._load(key), self.index.announce(key, entering), return_exceptions=True)
        for answer in (reading, announcing):
            if isinstance(answer, BaseException):
                raise answer
        assert not isinstance(reading, BaseException), "errors were raised"
        return _there(reading)

    async def write(self, key: str, change: Change) -> Answer:
        """Makes the change, if it fits."""
        version = secrets.token_hex(12)
        before = self._known.get(key)
        if before is None or before.stored.gone or before.stored.version != change.at:
            before = None if change.at is None and before is None else await self._load(key)
        unknown: StoreUnavailable | None = None
        for attempt in range(TRIES):
            writes = Writes() if before is None else before.stored.writes
            if _made(before, version):
                return Outcome.DONE, version if change.value is not None else None
            # A write of ours whose fate is open may be among those that were forgotten.
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
            except Behind as why:
                unknown = why
            if unknown is not None and before is None and change.at is not None:
                return Outcome.UNKNOWN, None  # gone, after what we wrote or before; by us or by somebody else
        raise unknown if unknown is not None else _unsettled(self._bucket.where)

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes away the entries that changes left in a bucket, unless the record needs them."""
        held = self._known.get(key) or await self._load(key)
        bucket = self.index.calendar.bucket(due_at)
        left = [entry for entry in (held.stored.left if held else ()) if entry.bucket == bucket]
        if left:
            await self.index.leave(key, left)
            return
        current = held.stored.entry if held else None
        found = [entry for _, entry in await self.index.entries(bucket, key) if entry != current]
        await self.index.leave_stale(key, found)

    async def page(self, keys: Sequence[str], limit: int) -> tuple[list[tuple[str, Stored]], bool]:
        """The first records of these keys, and whether there are more."""
        found: list[tuple[str, Stored]] = []
        room = _Room(limit)
        async for key, held in self._loaded(keys, limit):
            stored = _there(held)
            if stored is None:
                continue
            if not room.takes(stored):
                return found, True
            found.append((key, stored))
        return found, False

    async def keys(self, prefix: str) -> tuple[list[str], datetime]:
        """Every key that starts with the prefix, in the order of stored names, and the time."""
        subjects, at = await self._bucket.subjects(self._names.records)
        keys = [key for subject in subjects if (key := self._names.key(subject)) is not None]
        found = [key for key in keys if key.startswith(prefix)]
        return sorted(found, key=lambda key: stored_name(key).encode()), at

    async def due(
        self, horizon: datetime | None, after: DueSpot | None, limit: int
    ) -> tuple[list[tuple[DueSpot, str, Stored]], bool, datetime]:
        """Records whose bucket is over at the horizon, earliest bucket first; whether there are more; the time."""
        found: list[tuple[DueSpot, str, Stored]] = []
        room = _Room(limit)
        buckets, at = await self.index.over(horizon, "" if after is None else after.bucket)
        for bucket in buckets:
            goes_on = after is not None and after.bucket == bucket
            entries = await self.index.listing(bucket, goes_on=goes_on)
            if not entries:
                await self.index.retire(bucket)
                continue
            start = after.stored if after is not None and goes_on else b""
            keys = [key for key in dict.fromkeys(key for key, _ in entries) if stored_name(key).encode() > start]
            of_key = _by_key(entries)
            async for key, held in self._loaded(keys, limit):
                stored = await self._seen(key, bucket, of_key[key], held)
                if stored is None:
                    continue
                if not room.takes(stored):
                    return found, True, at
                found.append((DueSpot(bucket, stored_name(key).encode()), key, stored))
        return found, False, at

    async def _seen(self, key: str, bucket: str, entries: list[Entry], held: Held | None) -> Stored | None:
        """What a key's entries of a bucket stand for; those that stand for nothing go, and so does what was deleted
        long enough ago."""
        current = None if held is None else held.stored.entry
        stale = [entry for entry in entries if entry != current]
        there = _there(held)
        kept = there is not None and (self._tended or there.version == DAMAGED)
        if there is not None and kept and current not in entries:
            return replace(there, due_at=self.index.calendar.begin(bucket))
        if stale and not kept:
            await self.index.leave(key, [entry for entry in stale if held is not None and entry in held.stored.left])
            await self.index.leave_stale(key, stale)
        if current is None or current not in entries:
            return None
        if held is not None and there is None:
            self._known.pop(key, None)
            if await self._bucket.purge(self._names.record(key), held.seq, held.seen):
                await self.index.leave(key, [current])
        return there

    async def _send(self, key: str, change: Change, version: str, before: Held | None) -> None:
        writes = Writes() if before is None else before.stored.writes
        if change.value is None:
            assert before is not None, "a delete names the version of a record"
            named = change.nonce is not None or any(nonce is not None for nonce, _ in writes.kept)
            if not named:
                await self._remove(key, before)
                return
            due_at = await self._bucket.time.now() + GONE_KEPT
            after = Stored(b"", version, due_at, writes.and_then(change.nonce, None), gone=True)
            await self._store(key, before, after, entry_stays=False)
            return
        after = Stored(change.value, version, change.due_at, writes.and_then(change.nonce, version))
        await self._store(key, before, after, entry_stays=change.entry_stays)

    async def _remove(self, key: str, before: Held) -> None:
        if not await self._bucket.purge(self._names.record(key), before.seq, before.seen):
            raise Overtaken(0)
        self._known.pop(key, None)
        if before.stored.entry is not None:
            await self.index.leave(key, [before.stored.entry])

    async def _store(self, key: str, before: Held | None, after: Stored, *, entry_stays: bool) -> None:
        old = None if before is None else before.stored.entry
        after = await self._entered(key, before, after, entry_stays)
        data = pack(after, self._bucket.bytes_max)
        try:
            at = before or _NOTHING
            seq, seen = await self._bucket.write(
                self._names.record(key), data, after=at.seq, seen=at.seen, name=after.version
            )
        except (Overtaken, TooLarge):
            if after.entry is not None and after.entry != old:
                self.index.give_back(key, after.entry)
            raise
        self._note(key, Held(seq, seen, after))
        if old is not None and old != after.entry and old not in after.left:
            await self.index.leave(key, [old])

    async def _entered(self, key: str, before: Held | None, after: Stored, entry_stays: bool) -> Stored:
        """The record with its entry, which is in the index from now on."""
        old = None if before is None else before.stored.entry
        if after.due_at is None:
            entry = None
        elif old is not None and old.bucket == self.index.calendar.bucket(after.due_at):
            entry = old
        else:
            entry = await self.index.enter(key, after.due_at)
        left = () if before is None else before.stored.left
        left = (*left, old) if entry_stays and old is not None and old != entry else left
        return replace(after, entry=entry, left=left[-LEFT_MAX:])

    async def _load(self, key: str, at_least: int = 0) -> Held | None:
        seen = await self._bucket.connection()
        return self._saw(key, seen, await self._bucket.get(self._names.record(key), at_least))

    async def _loaded(self, keys: Sequence[str], limit: int) -> AsyncIterator[tuple[str, Held | None]]:
        """The records of these keys, as many at a time as a page may need. A message that is no record is given as one
        whose value is its bytes, under a version that no write matches: a listing goes past it."""
        step = min(limit + 1, LOADED_AT_ONCE)
        for begin in range(0, len(keys), step):
            part = keys[begin : begin + step]
            seen = await self._bucket.connection()
            found = await self._bucket.get_many([self._names.record(key) for key in part])
            for key, message in zip(part, found, strict=True):
                try:
                    held = self._saw(key, seen, message)
                except StoreBroken:
                    assert message is not None, "no message is no record, and nothing is broken"
                    self._known.pop(key, None)
                    held = Held(message.seq, seen, Stored(message.data, DAMAGED, None, Writes(whole=False)))
                yield key, held

    def _saw(self, key: str, seen: int, message: Message | None) -> Held | None:
        if message is None:
            self._known.pop(key, None)
            return None
        try:
            held = Held(message.seq, seen, unpack(message.data))
        except ValueError:
            raise StoreBroken(
                f"the record of {key!r} in {self._bucket.where} is damaged or foreign",
                do=f"restore it from a backup, or take it away: nats kv del {self._bucket.root}",
            ) from None
        self._note(key, held)
        return held

    def _note(self, key: str, held: Held) -> None:
        # Without its value: only what a next write needs.
        self._known[key] = Held(held.seq, held.seen, replace(held.stored, value=b""))
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


_NOTHING = Held(0, 0, Stored(b"", "", None, Writes()))  # what a record follows that is the first of its key


def _by_key(entries: Sequence[tuple[str, Entry]]) -> Mapping[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for key, entry in entries:
        found.setdefault(key, []).append(entry)
    return found


def _there(held: Held | None) -> Stored | None:
    return None if held is None or held.stored.gone else held.stored


def _version(held: Held | None) -> str | None:
    return None if held is None or held.stored.gone else held.stored.version


def _made(held: Held | None, version: str) -> bool:
    """Whether a write of ours is the record, or among its last ones."""
    if held is None:
        return False
    return held.stored.version == version or any(made == version for _, made in held.stored.writes.kept)


def _unsettled(where: str) -> StoreUnavailable:
    return StoreUnavailable(f"{where} refuses a write although its condition holds", do="try again later")
