"""How far each stream is archived, in one record per subject, and which archiver works on it.

A record is {after, passed}: everything up to `after` is archived; or {after, passed, key}, an intent: the archive that
follows `after` is to be written under this key and no other, by any process. Every change names the version it read. A
lost reply needs no retry: either of the two states is valid to continue from.

`epoch` is incremented when a stream was set back and is archived again; `history` identifies the backend's server when
the cursor was written, so that a failover or a restore is detected before anything is read.

A stream lease lets one archiver at a time work on a stream. It avoids duplicate work; correctness depends on the
conditional writes of the cursor alone. A lease is acquired when there is something to archive, renewed after half of
its time while there still is, and otherwise left to expire.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec

from wrasse.archives.batch import ArchiveFacts
from wrasse.bounded import decoded
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.leases.lease import Lease
from wrasse.leases.manager import LeaseManager
from wrasse.ports.records import Collection, Record, Records, Written
from wrasse.ports.streams import SEQ_MAX, EntryId

CURSORS = Collection.named("archives/cursors")
TTL = timedelta(seconds=30)  # of a stream lease
_LEASE_PREFIX = "archive/"
_SUBJECT_BYTES_MAX = 200  # in the key of a lease
_LEASES_MAX = 10_000  # beyond that, expired ones are removed


@dataclass(frozen=True, slots=True)
class Cursor:
    """The archiving position of a stream. `passed` counts all entries of the stream up to `after`, where known; `key`
    is the intent."""

    subject: str
    after: EntryId
    passed: int | None
    key: str | None = None
    version: str = ""
    epoch: int = 1
    history: str = ""


class _StoredCursor(msgspec.Struct, omit_defaults=True):
    after: str
    passed: int | None = None
    key: str | None = None
    epoch: int = 1
    history: str = ""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(_StoredCursor).decode


def decode_cursor(record: Record) -> Cursor:
    """Decodes the cursor in a record, whose key is the subject; StoreBroken if it is invalid."""
    try:
        stored = decoded(_DECODE, record.value)
        after = EntryId.parse(stored.after)
        if after.ms < 0 or not 0 <= after.seq <= SEQ_MAX or stored.epoch < 1:
            raise ValueError(f"{stored.after[:40]!r} is not a position in a stream")
        return Cursor(record.key, after, stored.passed, stored.key, record.version, stored.epoch, stored.history)
    except ValueError as why:
        raise StoreBroken(
            f"the cursor of {record.key!r} is invalid: {why}",
            do="delete that record: it is derived again from the group and the newest archive",
        ) from why


class Cursors:
    """The cursors of a set of streams. A change returns None on a conflict; then read again."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def load(self, subject: str) -> Cursor | None:
        """The current cursor of a stream."""
        record = await self._records.get(subject)
        return None if record is None else decode_cursor(record)

    async def create(self, cursor: Cursor) -> Cursor | None:
        """Creates the first cursor of a stream."""
        return _written(cursor, await self._records.create(cursor.subject, _bytes(cursor)))

    async def intend(self, cursor: Cursor, key: str) -> Cursor | None:
        """Fixes the key of the next archive."""
        assert cursor.key is None, "the key was fixed before"
        return await self._put(replace(cursor, key=key))

    async def move(self, cursor: Cursor) -> Cursor | None:
        """Moves the cursor to where the archives are known to continue."""
        return await self._put(replace(cursor, key=None))

    async def commit(self, cursor: Cursor, facts: ArchiveFacts) -> Cursor | None:
        """Moves the cursor behind the archive at its key."""
        assert cursor.key is not None, "the key is fixed before the archive is written"
        assert facts.last > cursor.after, "an archive has entries after the cursor"
        return await self._put(replace(cursor, after=facts.last, passed=facts.passed, key=None))

    async def _put(self, cursor: Cursor) -> Cursor | None:
        written = await self._records.put(cursor.subject, _bytes(cursor), at=cursor.version)
        return _written(cursor, written)


def _bytes(cursor: Cursor) -> bytes:
    return _ENCODE(_StoredCursor(str(cursor.after), cursor.passed, cursor.key, cursor.epoch, cursor.history))


def _written(cursor: Cursor, written: Written) -> Cursor | None:
    return replace(cursor, version=written.version) if written and written.version else None


class StreamLeases:
    """The leases of one archiver."""

    def __init__(self, lease_manager: LeaseManager, owner: str, clock: Clock, ttl: timedelta = TTL) -> None:
        self._lease_manager = lease_manager
        self._owner = owner
        self._clock = clock
        self._ttl = ttl
        self._leases: dict[str, tuple[Lease, float]] = {}  # with its end by the monotonic clock
        self._refused_at: dict[str, float] = {}  # when the last acquire was refused

    async def acquire(self, subject: str) -> bool:
        """Whether this archiver has the stream's lease; tries to acquire it."""
        now = self._clock.monotonic()
        lease, ends = self._leases.get(subject, (None, now))
        if ends - now > self._ttl.total_seconds() / 2:
            return True
        if lease is None and now - self._refused_at.get(subject, float("-inf")) < self._ttl.total_seconds() / 6:
            return False
        self._leases.pop(subject, None)
        self._refused_at.pop(subject, None)
        granted = await self._lease_manager.renew(lease, self._ttl) if lease is not None and ends > now else None
        if granted is None:
            granted = await self._lease_manager.acquire(lease_key(subject), self._owner, self._ttl)
        if granted is None:
            if len(self._refused_at) >= _LEASES_MAX:
                self._refused_at.clear()
            self._refused_at[subject] = self._clock.monotonic()
            return False
        if len(self._leases) >= _LEASES_MAX:
            self._leases = {key: held for key, held in self._leases.items() if held[1] > now}
        self._leases[subject] = (granted, self._lease_manager.term(granted))
        return True

    async def retry_now(self, subject: str) -> bool:
        """`acquire` without the pause after a refusal."""
        self._refused_at.pop(subject, None)
        return await self.acquire(subject)

    async def release_all(self) -> None:
        """Releases all leases, so that others need not wait."""
        while self._leases:
            await self.release(next(iter(self._leases)))

    async def release(self, subject: str) -> None:
        """Releases the lease of one stream; if that fails, it expires."""
        lease, ends = self._leases.pop(subject, (None, 0.0))
        if lease is not None and ends > self._clock.monotonic():
            with suppress(StoreUnavailable, StoreBroken):
                await self._lease_manager.release(lease)


def lease_key(subject: str) -> str:
    """The key of a stream's lease: its subject, or its hash where that is too long."""
    if len(subject.encode()) <= _SUBJECT_BYTES_MAX:
        return _LEASE_PREFIX + subject
    return _LEASE_PREFIX + hashlib.sha256(subject.encode()).hexdigest()
