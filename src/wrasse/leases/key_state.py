"""Keys with state under leases: stage, commit, read. One conditional write of the key's record per change.

Guarantees. The store allows at most one holder per key. Tokens only grow. A write under an old token is refused
together with its data, because both are the same write. A commit has either happened, or its caller gets an error. Only
the holder sees what is staged.

Costs, in requests to a store with a separate index, depending on whether the key is cached: acquire 2 or 3 (the index
entry is written concurrently with the read), update 2, release 2 and one delete after the answer, renew 1, public read
2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.leases import lease as rules
from wrasse.leases.cleanup import BackgroundTasks, LeaseCleanup, StateObjects, beside
from wrasse.leases.core import Change, Changed, LeaseCore, leases_in
from wrasse.leases.lease import (
    AcquireRequest,
    Busy,
    KeyRecord,
    KeyRefused,
    Lease,
    Refusal,
    StateObject,
    Terms,
    committed,
    released,
)
from wrasse.leases.names import is_xid
from wrasse.leases.store import LeaseTally
from wrasse.leases.transactions.enlistment import EnlistedKeys, InTransaction, NotEnlisted
from wrasse.leases.transactions.log import TransactionLog, refused as decided_otherwise
from wrasse.leases.transactions.states import Decision
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Records

ObjectChange = Callable[[KeyRecord, StateObject, datetime], KeyRecord]


@dataclass(frozen=True, slots=True)
class NamespaceParts:
    """What all namespaces of one store share."""

    records: Callable[[Collection], Records]
    objects: Objects
    clock: Clock
    terms: Terms
    tally: LeaseTally
    background: BackgroundTasks
    transaction_log: TransactionLog


class KeyStates(LeaseCore):
    """The keys of one namespace."""

    def __init__(self, namespace: str, shared: NamespaceParts) -> None:
        records = shared.records(leases_in(namespace))
        super().__init__(namespace, records, shared.clock, terms=shared.terms, tally=shared.tally)
        self.background = shared.background
        self.versions = StateObjects(shared.objects, namespace)
        self._cleanup = LeaseCleanup(self.store, self.versions, self.background)
        self._transaction_log = shared.transaction_log
        self.enlisted_keys = EnlistedKeys(namespace, self.store, self._cleanup, self._transaction_log)

    async def try_acquire(self, key: str, request: AcquireRequest) -> KeyRecord | Busy:
        """One attempt: the key with the new lease, or when the other holder's lease ends."""
        taken = False
        self._cleanup.acquire_begins(key)
        try:
            answer = await super().try_acquire(key, request)
            taken = isinstance(answer, KeyRecord)
            return answer
        finally:
            self._cleanup.acquire_ended(key, taken=taken)

    def _cached_free_key(self, key: str, request: AcquireRequest) -> KeyRecord | None:
        """The cached record; only the store can tell whether a key is still leased or exists."""
        seen = self.store.cached(key)
        return None if seen is None or seen.lease is not None or request.if_not_exists else seen

    async def _may_clear(self, key: str, record: KeyRecord) -> bool:
        return await self.enlisted_keys.may_clear(key, record)

    def _granted(self, id: str) -> None:
        self._cleanup.granted(id)

    async def _ended(self, before: KeyRecord) -> None:
        await super()._ended(before)
        await self._cleanup.drop_staged(before)

    async def _cleared(self, key: str, lease: Lease) -> None:
        await self.background.add(self.clean(key, lease.token))

    async def roll_back(self, lease: Lease) -> bool:
        """Releases this key only, and discards what is staged."""
        return await self.release(lease, commit=False, alone=True) is not None

    async def stage(self, lease: Lease, data: bytes, if_version: int | None, if_etag: str | None) -> KeyRecord:
        """Stages a new state. Nothing is written unless the caller is the holder and expects this version."""
        await self.checked(lease, if_version, if_etag)

        def change(record: KeyRecord, state: StateObject, at: datetime) -> KeyRecord:
            rules.check_expected(record, if_version, if_etag)
            return rules.staged_update(record, state, at)

        return (await self.stage_object(lease, self.versions.write(lease.key, lease.token, data), change)).after

    async def stage_object(self, lease: Lease, writing: Awaitable[StateObject], change: ObjectChange) -> Changed:
        """Writes an object, then the record that names it. The caller has checked the lease."""
        self._cleanup.begin(lease.id)
        explicit = self._explicit(lease)
        if explicit is None:
            state, enlisting = await writing, None
        else:  # the object is unreferenced until the record names it, so both can run concurrently
            state, enlisting = await beside(writing, self.enlisted_keys.enlist(lease.key, explicit))
        try:
            if enlisting is not None:
                raise enlisting
            changed = await self._stage(
                lease, lambda record, at: change(record, state, at), enlisted=explicit is not None
            )
        except KeyRefused:
            await self.background.add(self._cleanup.dropped(lease.id, state))
            raise
        self._cleanup.begin(lease.id, -1)
        await self._cleanup.drop_superseded(lease.id, changed)
        return changed

    async def stage_change(self, lease: Lease, change: Change) -> Changed:
        """Stages a change that needs no new object; before and after are the same if it changes nothing."""
        changed = await self._stage(lease, change)
        if changed.after is not changed.before:
            await self._cleanup.drop_superseded(lease.id, changed)
        return changed

    async def stage_removal(self, lease: Lease, if_version: int | None, if_etag: str | None) -> Changed:
        """Stages the removal of the state; before and after are the same if there is none."""

        def change(record: KeyRecord, at: datetime) -> KeyRecord | None:
            rules.check_expected(record, if_version, if_etag)
            return rules.staged_removal(record, at)

        return await self.stage_change(lease, change)

    async def stage_hidden(self, lease: Lease, hidden: bool, if_version: int | None) -> KeyRecord:
        """Stages the attribute `hidden`."""

        def change(record: KeyRecord, at: datetime) -> KeyRecord:
            rules.check_expected(record, if_version, None)
            return rules.staged_hidden(record, hidden, at)

        return (await self._stage(lease, change)).after

    async def release(self, lease: Lease, *, commit: bool, alone: bool = False) -> KeyRecord | None:
        """Releases the key with a commit or a rollback of what is staged; returns the record after it. None: the lease
        had ended or was unknown, and nothing of it was discarded. Refused if something staged under it was discarded. A
        key enlisted in a transaction with other keys raises InTransaction, unless it is released `alone`."""
        kept = self.store.cached_with_lease(lease.key, lease.id) or await self.store.read(lease.key)

        def change(record: KeyRecord, at: datetime) -> KeyRecord:
            assert record.lease is not None, "only a leased key is released"
            if record.lease.explicit and not alone and (record.staged is not None or not commit):
                raise InTransaction
            after = committed(record, at) if commit else released(record, at)
            return self._cleanup.released_record(lease.id, record, after, at)

        try:
            changed = await self.change(lease, change, record=kept, entry_stays=True)
        except KeyRefused as refused:
            if refused.code not in (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED):
                raise
            await self._check_outcome(lease, refused.version, commit=commit)
            return None
        await self.background.add(self._cleanup.clean_up(lease.key, lease.id, changed))
        return changed.after

    async def _check_outcome(self, lease: Lease, version: int, *, commit: bool) -> None:
        """For a caller whose lease has ended: raises if the requested outcome has not happened and never will."""
        record = self.store.cached(lease.key)  # it was read just before, or does not exist
        current = None if record is None or record.lease is None else record.lease
        ending = current if current is not None and current.id == lease.id else None
        if ending is None:
            state = await self._transaction_log.outcome(lease.transaction) if is_xid(lease.transaction) else None
        else:  # decided here if still pending, so that the answer "nothing was changed" stays true
            state = await self._transaction_log.settle(ending.transaction) if ending.explicit else None
        if (state is Decision.COMMIT and not commit) or (state is Decision.ROLLBACK and commit):
            raise decided_otherwise(lease.transaction, state)
        if state is Decision.COMMIT or record is None or not commit:
            return
        if (ending is not None and record.staged is not None) or record.has_dropped(lease.token):
            message = f"the lease of {lease.key!r} ended before its commit"
            raise KeyRefused(Refusal.LEASE_EXPIRED, message, version=version)

    async def clean(self, key: str, ended: int, seen: KeyRecord | None = None) -> int:
        """Deletes objects of the key that no record names; see `LeaseCleanup.clean`."""
        return await self._cleanup.clean(key, ended, seen)

    async def delete(self, key: str, record: KeyRecord) -> Outcome:
        """Deletes a key without a lease, at the version read; then its objects."""
        assert record.lease is None, "a leased key is not deleted"
        outcome = await self.store.drop(key, record.stored)
        if outcome is Outcome.DONE:
            await self.clean(key, record.token)
        return outcome

    async def settle(self, key: str, record: KeyRecord, entry_at: datetime) -> bool:
        """Ends the second check of a key: it is no longer due, unless it is leased again."""
        if self.store.index_apart:
            await self.leave(key, entry_at)
            return True
        if record.recheck_at is None:
            return True
        return await self.store.store(key, replace(record, recheck_at=None)) is not None

    async def leave(self, key: str, due_at: datetime) -> None:
        """Deletes an outdated index entry."""
        await self.store.leave(key, due_at)

    async def read_as_holder(self, lease: Lease) -> KeyRecord:
        """The current record, if the caller is the holder: something may have been staged through another process. A
        caller that only reads need not name the transaction."""
        record = await self.store.read(lease.key)
        if record is not None and record.lease is not None and not lease.transaction:
            lease = replace(lease, transaction=record.lease.transaction)
        return await self.checked(lease)

    async def _stage(self, lease: Lease, change: Change, *, enlisted: bool = False) -> Changed:
        """Stages a change. A key of an explicit transaction is enlisted first."""

        def checked(record: KeyRecord, at: datetime) -> KeyRecord | None:
            if record.lease is not None and record.lease.explicit and not enlisted:
                raise NotEnlisted(record.lease)
            return change(record, at)

        try:
            return await self.change(lease, checked)
        except NotEnlisted as found:  # explicit from the start, or since another key has just joined its transaction
            await self.enlisted_keys.enlist(lease.key, found.lease)
            enlisted = True
            return await self.change(lease, checked)

    def _explicit(self, lease: Lease) -> Lease | None:
        record = self.store.cached_with_lease(lease.key, lease.id)
        current = None if record is None else record.lease
        return current if current is not None and current.explicit else None
