"""Keys with state under leases: stage, commit, read. One conditional write of the key's record per change.

Promise. At most one holder per key by the store. Tokens only grow, for ever. A write under an old token is refused
together with its data, because both are the same write. A commit either happened or its caller is told that it did
not. Only its holder sees what is staged.

Costs, in requests to a store whose index is apart, the process having seen the key or not: acquire 2 or 3 (the entry is
made beside the read), update 2, release 2 and one delete after the answer, renew 1, public read 2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.leases import lease as rules
from wrasse.leases.background import BackgroundTasks, beside
from wrasse.leases.cleanup import LeaseCleanup
from wrasse.leases.core import EXACT, Change, Changed, LeaseCore
from wrasse.leases.lease import AcquireRequest, Busy, KeyRecord, Lease, StateObject, Terms, committed, released
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.state_objects import StateObjects
from wrasse.leases.store import LeaseTally
from wrasse.leases.transactions.enlistment import EnlistedKeys, InTransaction, NotEnlisted
from wrasse.leases.transactions.log import TransactionLog, refused as decided_otherwise
from wrasse.leases.transactions.states import Decision
from wrasse.leases.xid import is_xid
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records

ObjectChange = Callable[[KeyRecord, StateObject, datetime], KeyRecord]


class KeyStates(LeaseCore):
    """The keys of one namespace."""

    def __init__(
        self,
        namespace: str,
        records: Records,
        objects: Objects,
        clock: Clock,
        transaction_log: TransactionLog,
        *,
        terms: Terms = EXACT,
        tally: LeaseTally | None = None,
        background: BackgroundTasks | None = None,
    ) -> None:
        super().__init__(namespace, records, clock, terms=terms, tally=tally)
        self.background = background if background is not None else BackgroundTasks()
        self.versions = StateObjects(objects, namespace)
        self._cleanup = LeaseCleanup(self.store, self.versions, self.background)
        self._transaction_log = transaction_log
        self.part = EnlistedKeys(namespace, self.store, self._cleanup, transaction_log)

    async def try_acquire(self, key: str, asked: AcquireRequest) -> KeyRecord | Busy:
        """One try: the key with our lease on it, or until when somebody else has it."""
        taken = False
        self._cleanup.comes(key)
        try:
            answer = await super().try_acquire(key, asked)
            taken = isinstance(answer, KeyRecord)
            return answer
        finally:
            self._cleanup.came(key, taken=taken)

    def _seen(self, key: str, asked: AcquireRequest) -> KeyRecord | None:
        """Only the store knows whether a key is still held, or still there."""
        seen = self.store.remembered(key)
        return None if seen is None or seen.lease is not None or asked.if_not_exists else seen

    async def _may_clear(self, key: str, record: KeyRecord) -> bool:
        return await self.part.may_clear(key, record)

    def _granted(self, id: str) -> None:
        self._cleanup.granted(id)

    async def _ended(self, before: KeyRecord) -> None:
        await super()._ended(before)
        await self._cleanup.drop_staged(before)

    async def _cleared(self, key: str, lease: Lease) -> None:
        await self.background.add(self.clean(key, lease.token))

    async def give_back(self, held: Lease) -> bool:
        """Gives a key back alone, without what is staged."""
        return await self.release(held, commit=False, alone=True) is not None

    async def stage(self, held: Lease, data: bytes, if_version: int | None, if_etag: str | None) -> KeyRecord:
        """Stages a new state. Nothing is written unless the caller holds the key and saw this version of it."""
        await self.checked(held, if_version, if_etag)

        def change(record: KeyRecord, state: StateObject, at: datetime) -> KeyRecord:
            rules.check_expected(record, if_version, if_etag)
            return rules.staged_update(record, state, at)

        return (await self.stage_object(held, self.versions.write(held.key, held.token, data), change)).after

    async def stage_object(self, held: Lease, writing: Awaitable[StateObject], change: ObjectChange) -> Changed:
        """Writes an object, then the record that names it. The caller has seen that it holds the key."""
        self._cleanup.begin(held.id)
        lease = self._explicit(held)
        if lease is None:
            state, enlisting = await writing, None
        else:  # the object means nothing before the record names it, so it need not wait
            state, enlisting = await beside(writing, self.part.enlist(held.key, lease))
        try:
            if enlisting is not None:
                raise enlisting
            changed = await self._stage(held, lambda record, at: change(record, state, at), enlisted=lease is not None)
        except KeyRefused:
            await self.background.add(self._cleanup.dropped(held.id, state))
            raise
        self._cleanup.begin(held.id, -1)
        await self._cleanup.drop_superseded(held.id, changed)
        return changed

    async def stage_change(self, held: Lease, change: Change) -> Changed:
        """Stages a change that needs no new object; before and after are the same if it changes nothing."""
        changed = await self._stage(held, change)
        if changed.after is not changed.before:
            await self._cleanup.drop_superseded(held.id, changed)
        return changed

    async def stage_removal(self, held: Lease, if_version: int | None, if_etag: str | None) -> Changed:
        """Stages the removal of the state; before and after are the same if there is none."""

        def change(record: KeyRecord, at: datetime) -> KeyRecord | None:
            rules.check_expected(record, if_version, if_etag)
            return rules.staged_removal(record, at)

        return await self.stage_change(held, change)

    async def stage_hidden(self, held: Lease, hidden: bool, if_version: int | None) -> KeyRecord:
        """Stages the one attribute that keys have."""

        def change(record: KeyRecord, at: datetime) -> KeyRecord:
            rules.check_expected(record, if_version, None)
            return rules.staged_hidden(record, hidden, at)

        return (await self._stage(held, change)).after

    async def release(self, held: Lease, *, commit: bool, alone: bool = False) -> KeyRecord | None:
        """Gives the key back, with what is staged or without; the key as it then is. None: the lease was over or
        unknown and nothing of it was lost. Refused if something was staged under it and is gone. A key that takes part
        in a transaction with others raises InTransaction, unless it is to be given back `alone`."""
        kept = self.store.mine(held.key, held.id) or await self.store.read(held.key)

        def change(record: KeyRecord, at: datetime) -> KeyRecord:
            assert record.lease is not None, "only a held key is given back"
            if record.lease.explicit and not alone and (record.staged is not None or not commit):
                raise InTransaction
            after = committed(record, at) if commit else released(record, at)
            return self._cleanup.given_back(held.id, record, after, at)

        try:
            changed = await self.change(held, change, record=kept, entry_stays=True)
        except KeyRefused as refused:
            if refused.code not in (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED):
                raise
            await self._tell(held, refused.version, commit=commit)
            return None
        await self.background.add(self._cleanup.clean_up(held.key, held.id, changed))
        return changed.after

    async def _tell(self, held: Lease, version: int, *, commit: bool) -> None:
        """Refuses if what a caller whose lease is over wants has not happened, and never will."""
        kept = self.store.remembered(held.key)  # it was read a moment ago, or there is none
        lease = None if kept is None or kept.lease is None else kept.lease
        ending = lease if lease is not None and lease.id == held.id else None
        if ending is None:
            state = await self._transaction_log.outcome(held.transaction) if is_xid(held.transaction) else None
        else:  # decided here, if nobody has: who is told that nothing was changed can rely on it
            state = await self._transaction_log.settle(ending.transaction) if ending.explicit else None
        if (state is Decision.COMMIT and not commit) or (state is Decision.ROLLBACK and commit):
            raise decided_otherwise(held.transaction, state)
        if state is Decision.COMMIT or kept is None or not commit:
            return
        if (ending is not None and kept.staged is not None) or kept.has_dropped(held.token):
            message = f"the lease of {held.key!r} ended before its commit"
            raise KeyRefused(Refusal.LEASE_EXPIRED, message, version=version)

    async def clean(self, key: str, ended: int, seen: KeyRecord | None = None) -> int:
        """Takes away objects of the key that no record names; see `LeaseCleanup.clean`."""
        return await self._cleanup.clean(key, ended, seen)

    async def delete(self, key: str, kept: KeyRecord) -> Outcome:
        """Deletes a key that nobody holds, as it was seen; then its objects."""
        assert kept.lease is None, "a held key is not deleted"
        outcome = await self.store.drop(key, kept.stored)
        if outcome is Outcome.DONE:
            await self.clean(key, kept.token)
        return outcome

    async def settle(self, key: str, kept: KeyRecord, entry_at: datetime) -> bool:
        """Says that a key has been looked at for the second time: it is no longer due, unless it is held."""
        if self.store.index_apart:
            await self.leave(key, entry_at)
            return True
        if kept.look_at is None:
            return True
        return await self.store.store(key, replace(kept, look_at=None)) is not None

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes an index entry away that stands for nothing any more."""
        await self.store.leave(key, due_at)

    async def read_held(self, held: Lease) -> KeyRecord:
        """The key as the store has it now, if the caller holds it: it may have staged something through another
        process. Who only reads need not know the transaction."""
        kept = await self.store.read(held.key)
        if kept is not None and kept.lease is not None and not held.transaction:
            held = replace(held, transaction=kept.lease.transaction)
        return await self.checked(held)

    async def _stage(self, held: Lease, change: Change, *, enlisted: bool = False) -> Changed:
        """A change that stages something. A key of an explicit transaction is written down there before."""

        def checked(record: KeyRecord, at: datetime) -> KeyRecord | None:
            if record.lease is not None and record.lease.explicit and not enlisted:
                raise NotEnlisted(record.lease)
            return change(record, at)

        try:
            return await self.change(held, checked)
        except NotEnlisted as found:  # from the first, or since somebody joined its transaction a moment ago
            await self.part.enlist(held.key, found.lease)
            enlisted = True
            return await self.change(held, checked)

    def _explicit(self, held: Lease) -> Lease | None:
        kept = self.store.mine(held.key, held.id)
        lease = None if kept is None else kept.lease
        return lease if lease is not None and lease.explicit else None
