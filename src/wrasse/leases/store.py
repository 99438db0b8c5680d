"""Records of leases and transactions as this process reads and writes them: conditional, remembered, with the store's
time.

A write whose reply was lost is asked again under the same nonce: a write that the store carried out without telling us
gives its first answer again, so that no caller is refused because of its own write. Every answer also brings the
store's clock, so that time is hardly ever asked for.

What is remembered may be out of date at any moment. It only ever saves a read: every write names the version it builds
on, and a refusal is given only after a read.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from msgspec.structs import replace

from wrasse.clock import EPOCH, Clock
from wrasse.errors import StoreUnavailable
from wrasse.leases.lease import KEYS, KeyCodec, KeyRecord, decode
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records, Written
from wrasse.ports.rules.store_time import StoreTime

ASKED_MAX = 3  # how often one write is asked before its reply counts as lost for good
RACES_MAX = 16  # how often a lost race is run again
REMEMBERED_MAX = 10_000

T = TypeVar("T")


class LeaseTally:
    """What leased keys counted since the process began: metrics read it. `cleared` are leases that ended by themselves,
    met by an operation or by a sweep; `waited` are acquires that found the key held. `replays` are looks at open
    transactions amid traffic, and `replayed` the transactions that those finished."""

    __slots__ = (
        "acquired", "cleared", "committed", "decisions_deleted", "entries_deleted", "released", "renewed", "replayed",
        "replays", "transactions_committed", "transactions_rolled_back", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.acquired = self.waited = self.renewed = self.committed = self.released = 0
        self.cleared = self.entries_deleted = 0
        self.transactions_committed = self.transactions_rolled_back = 0
        self.replays = self.replayed = self.decisions_deleted = 0


class Recent(Generic[T]):
    """The values that were used last, by name; beyond `most` the one that was longest not used is forgotten."""

    __slots__ = ("_most", "_values")

    def __init__(self, most: int = REMEMBERED_MAX) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._most = most

    def get(self, name: str) -> T | None:
        """What was noted last."""
        value = self._values.get(name)
        if value is not None:
            self._values.move_to_end(name)
        return value

    def note(self, name: str, value: T) -> T:
        """Remembers this one, and gives it."""
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value

    def forget(self, name: str) -> None:
        """What was noted is out of date."""
        self._values.pop(name, None)


class LeaseRecords:
    """The records of one collection, and the time there. Writes that are not `named` have no nonce: whoever asks again
    may be told `conflict` because of their own write, and must be able to see from the record that it is made."""

    __slots__ = ("_clock", "_named", "_time", "records")

    def __init__(self, records: Records, clock: Clock, *, named: bool = True) -> None:
        self.records = records
        self._named = named
        self._clock = clock
        self._time = StoreTime(clock, self._asked)

    async def write(
        self, key: str, value: bytes, at: str | None, due_at: datetime | None, *, entry_stays: bool = False
    ) -> Written:
        """Writes over the version `at`, or creates the record where that is None."""
        nonce = self._nonce()
        if at is None:
            return await self._ask(lambda: self.records.create(key, value, due_at=due_at, nonce=nonce))
        return await self._ask(
            lambda: self.records.put(key, value, at=at, due_at=due_at, nonce=nonce, entry_stays=entry_stays)
        )

    async def delete(self, key: str, at: str) -> Written:
        """Deletes the version `at`."""
        nonce = self._nonce()
        return await self._ask(lambda: self.records.delete(key, at=at, nonce=nonce))

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        at = self._time.earliest()
        return at if at is not None else await self._time.now()

    async def _asked(self) -> datetime:
        # The cheapest read that brings the store's clock along: nothing is due since 1970.
        return (await self.records.due(EPOCH, None, 1)).at

    def monotonic(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        return self._time.monotonic(instant)

    def _nonce(self) -> str | None:
        return secrets.token_hex(8) if self._named else None

    async def _ask(self, write: Callable[[], Awaitable[Written]]) -> Written:
        for asked in range(1, ASKED_MAX + 1):
            started = self._clock.monotonic()
            try:
                written = await write()
            except StoreUnavailable:
                if asked == ASKED_MAX:
                    raise
                await asyncio.sleep(random.uniform(0.02, 0.05) * asked)
            else:
                self._time.note(written.at, started)
                return written
        raise AssertionError("the last try answers or raises")


class KeyStore(LeaseRecords):
    """The records of keys, and what this process remembers of them."""

    __slots__ = ("_codec", "_known", "index_apart", "tally")

    def __init__(self, records: Records, clock: Clock, tally: LeaseTally, codec: KeyCodec = KEYS) -> None:
        super().__init__(records, clock)
        self._known: Recent[KeyRecord] = Recent()
        self._codec = codec
        self.tally = tally
        # Where the due index is apart, the entry of a lease that ended stands for the second look; no other is made.
        self.index_apart = records.resolution > timedelta(0)

    def remembered(self, key: str) -> KeyRecord | None:
        """What was seen last."""
        return self._known.get(key)

    def mine(self, key: str, lease: str) -> KeyRecord | None:
        """What was seen last, if this lease was on the key."""
        record = self._known.get(key)
        return record if record is not None and record.lease is not None and record.lease.id == lease else None

    def nothing_leaves(self, key: str, record: KeyRecord) -> None:
        """What this record no longer names is gone: the next change made here need not carry it along."""
        if record.leaving and self._known.get(key) == record:
            self._known.note(key, replace(record, leaving=()))

    async def read(self, key: str, entering: timedelta | None = None) -> KeyRecord | None:
        """The key as it is now. `entering`: a lease of so long is about to follow."""
        due_at = None if entering is None or not self._codec.indexed else await self.now() + entering
        record = await self.records.get(key, entering=due_at)
        if record is None:
            self._known.forget(key)
            return None
        return self._known.note(key, decode(record, self._codec))

    async def store(self, key: str, record: KeyRecord, *, entry_stays: bool = False) -> KeyRecord | None:
        """Writes a record over the one it was made from; None if that is another by now. After an answer that settles
        nothing the record tells."""
        value = self._codec.encode(record)
        written = await self.write(key, value, record.stored or None, self._due_at(record), entry_stays=entry_stays)
        if written:
            assert written.version is not None, "what is written has a version"
            return self._known.note(key, replace(record, stored=written.version))
        self._known.forget(key)
        if written.outcome is Outcome.CONFLICT:
            return None
        current = await self.read(key)
        return current if current is not None and self._codec.encode(current) == value else None

    async def drop(self, key: str, version: str) -> Outcome:
        """Deletes the record as it was seen."""
        deleted = await self.delete(key, version)
        self._known.forget(key)
        return deleted.outcome

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes an index entry away that stands for nothing any more."""
        await self.records.leave(key, due_at)
        self.tally.entries_deleted += 1

    def _due_at(self, record: KeyRecord) -> datetime | None:
        """When a sweep should look at the key, as its record says it."""
        if not self._codec.indexed:
            return None
        if record.lease is not None:
            return record.lease.expires_at
        return None if self.index_apart else record.look_at


def contended(what: str) -> StoreUnavailable:
    """A record that others change all the time."""
    return StoreUnavailable(f"{what} changed under every one of {RACES_MAX} tries", do="see what else writes there")
