"""The records of keys as this process reads and writes them: conditional, remembered, with the store's time.

What is remembered may be out of date at any moment. It only ever saves a read: every write names the version it builds
on, and whoever finds that something is not so reads again before it says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.leases.known import Known
from wrasse.leases.meta import Kept, Meta, decode, encode
from wrasse.leases.tally import LeaseTally
from wrasse.leases.writes import Writes
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records


class KeyStore:
    """Reads and writes the records of keys."""

    __slots__ = ("_known", "_writes", "index_apart", "tally")

    def __init__(self, records: Records, clock: Clock, known: Known, tally: LeaseTally) -> None:
        self._writes = Writes(records, clock)
        self._known = known
        self.tally = tally
        # Where the due index is apart, the entry of a lease that ended stands for the second look; no other is made.
        self.index_apart = records.resolution > timedelta(0)

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._writes.now()

    def monotonic(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        return self._writes.monotonic(instant)

    def remembered(self, key: str) -> Kept | None:
        """What was seen last."""
        return self._known.get(key)

    def mine(self, key: str, lease: str) -> Kept | None:
        """What was seen last, if this lease was on the key."""
        kept = self._known.get(key)
        return kept if kept is not None and kept.meta.grant is not None and kept.meta.grant.id == lease else None

    def nothing_leaves(self, key: str, meta: Meta) -> None:
        """What this record no longer names is gone: the next change made here need not carry it along."""
        kept = self._known.get(key)
        if meta.leaving and kept is not None and kept.meta == meta:
            self._known.note(key, replace(kept, meta=replace(meta, leaving=())))

    async def read(self, key: str, entering: timedelta | None = None) -> Kept | None:
        """The key as it is now. `entering`: a lease of so long is about to follow."""
        due_at = None if entering is None else await self.now() + entering
        record = await self._writes.records.get(key, entering=due_at)
        if record is None:
            self._known.forget(key)
            return None
        kept = decode(record)
        self._known.note(key, kept)
        return kept

    async def store(self, key: str, before: Kept | None, meta: Meta, *, entry_stays: bool = False) -> Kept | None:
        """Writes the record; None if it is another by now. After an answer that settles nothing the record tells."""
        at = None if before is None else before.version
        written = await self._writes.write(key, encode(meta), at, self.due_at(meta), entry_stays=entry_stays)
        if written:
            assert written.version is not None, "what is written has a version"
            kept = Kept(meta, written.version)
            self._known.note(key, kept)
            return kept
        self._known.forget(key)
        if written.outcome is Outcome.LOST:
            return None
        current = await self.read(key)
        return current if current is not None and current.meta == meta else None

    async def delete(self, key: str, version: str) -> Outcome:
        """Deletes the record as it was seen."""
        deleted = await self._writes.delete(key, version)
        self._known.forget(key)
        return deleted.outcome

    def due_at(self, meta: Meta) -> datetime | None:
        """When a sweep should look at the key, as its record says it."""
        if meta.grant is not None:
            return meta.grant.until
        return None if self.index_apart else meta.look_at

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes an index entry away that stands for nothing any more."""
        await self._writes.records.leave(key, due_at)
        self.tally.entries_deleted += 1
