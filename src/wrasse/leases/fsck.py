"""fsck of leased keys: reads all records and objects of a namespace and compares them with each other and with the
index.

This is the only code that lists all state objects. What looks wrong is read again before it is reported, and a repair
is the same conditional write that operations and sweeps use. Records are read before the index and before the objects,
since both exist before the record that needs them.

A due bucket that is missing from the list of buckets is restored by reading the index. Memory: the name of each object
and each due key, about 200 bytes per key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from wrasse.leases.core import leases_in
from wrasse.leases.key_state import KeyStates
from wrasse.leases.lease import RECHECK_AFTER, KeyRecord, decode, decode_listed, first_token, over
from wrasse.leases.leases import Leases
from wrasse.leases.names import key_of_state, token_of
from wrasse.leases.transactions.states import DECISIONS, KeptTransaction, decode_decision, decode_transaction
from wrasse.ports.page import pages
from wrasse.ports.records import Record, Records

PAGE = 500
AHEAD = timedelta(days=36_500)  # further than any lease lasts


class Trouble(StrEnum):
    """Kinds of inconsistencies."""

    INVALID = "invalid record"  # it cannot be decoded; restore it from a backup, or delete it
    LOOSE = "loose object"  # no record names it
    MISSING = "missing object"  # a record names it; restore it from a backup
    NOT_INDEXED = "missing index entry"  # a lease that no sweep would find
    STALE = "stale index entry"  # of a key without a lease and without a pending check
    UNFINISHED = "unfinished transaction"  # decided or overdue, but not carried out
    SPENT = "spent decision"  # expired long ago


@dataclass(frozen=True, slots=True)
class KeyInconsistency:
    """One inconsistency, and whether it was repaired."""

    namespace: str
    trouble: Trouble
    key: str
    object: str = ""  # its name, where it is about one
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class _Inventory:
    named: dict[str, str]  # object to key
    due: dict[str, Record]  # by key
    invalid: set[str]  # keys whose record cannot be decoded; their objects are not touched


class Fsck:
    """One check of one namespace. `keys` and `objects` count what was read."""

    def __init__(self, leases: Leases, namespace: str, *, repair: bool) -> None:
        self._leases, self._namespace, self._repair = leases, namespace, repair
        self._records: Records = leases.records(leases_in(namespace))
        self._keys: KeyStates = leases.keys(namespace)
        self.keys = self.objects = 0

    async def run(self) -> AsyncIterator[KeyInconsistency]:
        """Yields every inconsistency as it is found."""
        inventory = await self._read()
        for key in sorted(inventory.invalid):
            yield KeyInconsistency(self._namespace, Trouble.INVALID, key)
        if self._records.resolution:
            async for inconsistency in self._index(inventory):
                yield inconsistency
        async for inconsistency in self._objects(inventory):
            yield inconsistency

    async def _read(self) -> _Inventory:
        inventory = _Inventory({}, {}, set())
        async for page in pages(lambda after: self._records.page("", after, PAGE)):
            for record in page:
                self.keys += 1
                kept = decode_listed(record)
                if kept is None:
                    inventory.invalid.add(record.key)
                    continue
                for each in kept.objects():
                    inventory.named[each.name] = record.key
                if record.due_at is not None:
                    inventory.due[record.key] = record
        return inventory

    async def _index(self, inventory: _Inventory) -> AsyncIterator[KeyInconsistency]:
        left = dict(inventory.due)
        async for page in pages(lambda after: self._records.due(self._leases.clock.now() + AHEAD, after, PAGE)):
            for record in page:
                if record.key in inventory.invalid:
                    continue
                expected = left.get(record.key)
                if expected is not None and expected.due_at == record.due_at:
                    del left[record.key]
                elif record.due_at is not None and _stale(decode(record), record.due_at, page.at):
                    yield await self._stale(record, record.due_at)
        for key, record in left.items():
            current = await self._records.get(key)
            if current is not None and current.version == record.version:
                yield await self._not_indexed(current)

    async def _stale(self, record: Record, entry_at: datetime) -> KeyInconsistency:
        if self._repair:
            await self._keys.clean(record.key, decode(record).token)
            await self._keys.leave(record.key, entry_at)
        return KeyInconsistency(self._namespace, Trouble.STALE, record.key, repaired=self._repair)

    async def _not_indexed(self, record: Record) -> KeyInconsistency:
        repaired = self._repair and await _indexed_again(self._records, record, record.due_at)
        return KeyInconsistency(self._namespace, Trouble.NOT_INDEXED, record.key, repaired=repaired)

    async def _objects(self, inventory: _Inventory) -> AsyncIterator[KeyInconsistency]:
        left = dict(inventory.named)
        async for page in pages(lambda after: self._keys.versions.page(after, PAGE)):
            for info in page:
                self.objects += 1
                key = key_of_state(self._namespace, info.key)
                if left.pop(info.key, None) is None and key is not None and key not in inventory.invalid:
                    ceiling = await self._ceiling(key, info.key)
                    if ceiling is not None:
                        repaired = self._repair and await self._keys.clean(key, ceiling) >= 0
                        yield KeyInconsistency(self._namespace, Trouble.LOOSE, key, info.key, repaired)
        for name, key in left.items():
            kept = await self._keys.read(key)
            if kept is not None and kept.names(name) and not await self._keys.versions.there(name):
                again = await self._keys.read(key)
                if again is not None and again.names(name):
                    yield KeyInconsistency(self._namespace, Trouble.MISSING, key, name)

    async def _ceiling(self, key: str, name: str) -> int | None:
        """The highest token up to which unreferenced objects of the key can be deleted, if this one is among them."""
        kept, token, at = await self._keys.read(key), token_of(name) or 0, await self._keys.now()
        if kept is None:
            highest = first_token(at - RECHECK_AFTER)
        elif kept.names(name) or (kept.recheck_at is not None and at < kept.recheck_at):
            return None  # named by now, or left to a sweep
        else:
            grant = kept.lease
            if grant is not None and over(grant, at, self._leases.terms):
                return None  # clearing the lease deletes it
            highest = kept.token if grant is None else grant.token - 1
        return highest if token <= highest else None


def _stale(meta: KeyRecord, entry_at: datetime, at: datetime) -> bool:
    if meta.lease is not None or (meta.recheck_at is not None and at < meta.recheck_at):
        return False
    return entry_at + 2 * RECHECK_AFTER <= at  # a sweep should have removed it by now


class TransactionsFsck:
    """One check of all transactions of a store. `transactions` and `decisions` count what was read. A transaction is
    inconsistent if it is decided or overdue and was not finished for longer than a sweep needs; a decision record, if
    it expired long ago or is missing from the index."""

    def __init__(self, leases: Leases, *, repair: bool) -> None:
        self._transactions, self._repair = leases.transactions, repair
        self._decisions: Records = leases.records(DECISIONS)
        self._clock = leases.clock
        self.transactions = self.decisions = 0

    async def run(self) -> AsyncIterator[KeyInconsistency]:
        """Yields every inconsistency as it is found."""
        async for page in pages(lambda after: self._transactions.transaction_log.page(after, PAGE)):
            for record in page:
                self.transactions += 1
                kept = decode_transaction(record)
                if await self._overdue(kept, page.at):
                    yield await self._unfinished(kept)
        async for inconsistency in self._check_decisions():
            yield inconsistency

    async def _overdue(self, kept: KeptTransaction, at: datetime) -> bool:
        transaction = kept.transaction
        if transaction.decided:
            return at >= transaction.updated_at + RECHECK_AFTER
        return at >= transaction.until + RECHECK_AFTER and at >= await self._transactions.lasts_until(transaction)

    async def _unfinished(self, kept: KeptTransaction) -> KeyInconsistency:
        repaired = False
        if self._repair:
            confirmed = await self._transactions.transaction_log.confirmed(kept)
            if confirmed is not None:
                await self._transactions.finish(confirmed)
            repaired = await self._transactions.transaction_log.read(kept.transaction.id) is None
        return KeyInconsistency("", Trouble.UNFINISHED, kept.transaction.id, repaired=repaired)

    async def _check_decisions(self) -> AsyncIterator[KeyInconsistency]:
        indexed = await self._indexed()
        async for page in pages(lambda after: self._decisions.page("", after, PAGE)):
            for record in page:
                self.decisions += 1
                if (
                    decode_decision(record).expires_at + 2 * RECHECK_AFTER <= page.at
                ):  # a sweep should have removed it by now
                    yield await self._spent(record)
                elif record.key not in indexed and await self._decisions.get(record.key) is not None:
                    yield await self._not_indexed(record)

    async def _indexed(self) -> set[str]:
        found = set[str]()
        async for page in pages(lambda after: self._decisions.due(self._clock.now() + AHEAD, after, PAGE)):
            found |= {record.key for record in page}
        return found

    async def _spent(self, record: Record) -> KeyInconsistency:
        if self._repair:
            await self._transactions.transaction_log.delete_decision(record)
        return KeyInconsistency("", Trouble.SPENT, record.key, repaired=self._repair)

    async def _not_indexed(self, record: Record) -> KeyInconsistency:
        due_at = decode_decision(record).expires_at
        repaired = self._repair and await _indexed_again(self._decisions, record, due_at)
        return KeyInconsistency("", Trouble.NOT_INDEXED, record.key, repaired=repaired)


async def _indexed_again(records: Records, record: Record, due_at: datetime | None) -> bool:
    """Writes a record again unchanged, which also writes its index entry."""
    await records.get(record.key, entering=due_at)
    return bool(await records.put(record.key, record.value, at=record.version, due_at=due_at))
