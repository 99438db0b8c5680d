"""The transaction log: enlisted keys, decisions, and decision records, which expire after DECISION_KEPT.

Every change of a record names the version it read, so one of two concurrent decisions wins, and the other caller gets
the winning one. A transaction id with a decision record is finished: after a transaction record was created, its
decision record is looked up, and if there is one, the new record is deleted. An expired decision record is deleted
before it can be used.

Costs. The first key: one write and one read. Each further key, and the decision: one write each in the process that
created the record; one more read elsewhere. The end: a decision record, and a delete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from wrasse.clock import Clock
from wrasse.leases.lease import KeyRefused, Refusal
from wrasse.leases.store import RACES_MAX, LeaseRecords, LeaseTally, Recent, contended
from wrasse.leases.transactions.states import (
    DECISION_KEPT,
    DECISIONS,
    TRANSACTIONS,
    Decided,
    Decision,
    KeptTransaction,
    Participant,
    Transaction,
    begun,
    decided,
    decode_decision,
    decode_transaction,
    encode,
    enlisted,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Record, Records


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """The decision that counts, and the transaction's record while it exists."""

    state: Decision
    kept: KeptTransaction | None


class TransactionLog:
    """The transactions of one store."""

    def __init__(self, records: Callable[[Collection], Records], clock: Clock, tally: LeaseTally) -> None:
        # Without nonces: the record itself shows whether each of these writes was made; and a delete leaves no
        # tombstone, so that listing open transactions costs as much as there are.
        self._transactions = LeaseRecords(records(TRANSACTIONS), clock, named=False)
        self._decisions = LeaseRecords(records(DECISIONS), clock, named=False)
        self.tally = tally
        self._cache: Recent[KeptTransaction] = Recent()  # may be out of date
        self._decision_cache: Recent[Decided] = Recent()  # a decision never changes

    async def now(self) -> datetime:
        """The store's time, rather a little late than early."""
        return await self._transactions.now()

    async def read(self, id: str) -> KeptTransaction | None:
        """Reads the transaction's record; one created after its id was finished counts as none."""
        record = await self._transactions.records.get(id)
        if record is None:
            self._cache.forget(id)
            return None
        return await self.confirmed(decode_transaction(record))

    async def confirmed(self, kept: KeptTransaction) -> KeptTransaction | None:
        """A record that was read, unless its id was finished before it was created."""
        if not kept.transaction.confirmed and await self._over_already(kept) is not None:
            return None
        return self._note(kept)

    async def page(self, after: str | None, limit: int) -> Page[Record]:
        """Records of unfinished transactions, in the order of their ids."""
        return await self._transactions.records.page("", after, limit)

    async def spent(self, after: str | None, limit: int) -> Page[Record]:
        """Decision records that should have expired."""
        return await self._decisions.records.due(None, after, limit)

    async def enlist(self, id: str, participants: Sequence[Participant], until: datetime, at: datetime) -> None:
        """Enlists these keys, before they stage anything. Refused once the transaction is decided."""
        kept = self._cache.get(id)
        for _ in range(RACES_MAX):
            if kept is None:
                made = await self._begin(begun(id, Decision.PENDING, participants, until, at))
                if isinstance(made, Decided):
                    raise refused(id, made.state)
                kept = made
            if kept.transaction.decided:
                raise refused(id, kept.transaction.state)
            after = enlisted(kept.transaction, participants, until, at)
            if after is None:
                return
            kept = await self._put(kept, after)
            if kept is not None:
                return
        raise contended(f"the transaction {id}")

    async def decide(
        self, id: str, state: Decision, participants: Sequence[Participant], until: datetime, at: datetime
    ) -> RecordedDecision:
        """Decides, if still pending; returns the decision that counts, also for these keys. An unknown id is decided as
        well, so that later enlistments are refused."""
        kept = self._cache.get(id)
        for _ in range(RACES_MAX):
            if kept is None:
                made = await self._begin(begun(id, state, participants, until, at))
                if isinstance(made, Decided):
                    return RecordedDecision(made.state, None)
                kept = made
            if kept.transaction.decided:
                return RecordedDecision(kept.transaction.state, kept)
            if state is Decision.PENDING:
                after = enlisted(kept.transaction, participants, until, at)
            else:
                after = decided(kept.transaction, state, participants, at)
            if after is None:
                return RecordedDecision(kept.transaction.state, kept)
            kept = await self._put(kept, after)
            if kept is not None:
                return RecordedDecision(kept.transaction.state, kept)
        raise contended(f"the transaction {id}")

    async def settle(self, id: str) -> Decision | None:
        """The decision for an expired lease that is about to be cleared; a pending transaction is rolled back. None:
        the transaction is unknown, so nothing was ever staged under it."""
        over = await self._recall(id)
        if over is not None:
            return over.state
        for _ in range(RACES_MAX):
            kept = await self.read(id)
            if kept is None:
                over = await self.decision(id)
                return None if over is None else over.state
            after = decided(kept.transaction, Decision.ROLLBACK, (), await self.now())
            if after is None:
                return kept.transaction.state
            if await self._put(kept, after) is not None:
                return Decision.ROLLBACK
        raise contended(f"the transaction {id}")

    async def outcome(self, id: str) -> Decision | None:
        """The decision of a transaction; None if it is unknown, or its decision record has expired."""
        over = await self._recall(id)
        if over is None:
            kept = await self.read(id)
            if kept is not None:
                return kept.transaction.state
            over = await self.decision(id)
        return None if over is None else over.state

    async def decision(self, id: str) -> Decided | None:
        """The decision record; an expired one is deleted, and counts as none."""
        record = await self._decisions.records.get(id)
        if record is None:
            return None
        over = decode_decision(record)
        if over.expires_at <= await self.now():
            await self.delete_decision(record)
            return None
        self._decision_cache.note(over.id, over)
        return over

    async def delete_decision(self, record: Record) -> Outcome:
        """Deletes a decision record at the version read, with its index entry."""
        self._decision_cache.forget(record.key)
        deleted = await self._decisions.delete(record.key, record.version)
        if deleted:
            self.tally.decisions_deleted += 1
            self.tally.entries_deleted += 1
        return deleted.outcome

    async def finalise(self, kept: KeptTransaction) -> None:
        """Ends a transaction that was carried out on every key: writes a decision record, then deletes the
        transaction's record."""
        transaction = kept.transaction
        assert transaction.decided, "what is carried out was decided"
        for _ in range(RACES_MAX):
            over = Decided(transaction.id, transaction.state, await self.now() + DECISION_KEPT)
            written = await self._decisions.write(transaction.id, encode(over), None, over.expires_at)
            there = over if written else await self.decision(transaction.id)
            if there is not None:
                self._decision_cache.note(there.id, there)
                await self._transactions.delete(transaction.id, kept.version)
                self._cache.forget(transaction.id)
                return

    async def _begin(self, made: Transaction) -> KeptTransaction | Decided:
        """The record, created or found; or the decision, if the id is finished."""
        over = await self._recall(made.id)
        if over is not None:
            return over
        for _ in range(RACES_MAX):
            written = await self._transactions.write(made.id, encode(made), None, None)
            if not written:
                found = await self.read(made.id)
                if found is not None:
                    return found
                continue
            assert written.version is not None, "what is written has a version"
            kept = KeptTransaction(made, written.version)
            over = await self._over_already(kept)
            return self._note(kept) if over is None else over
        raise contended(f"the transaction {made.id}")

    async def _over_already(self, kept: KeptTransaction) -> Decided | None:
        """The decision that existed before this record was created; the record is then deleted. A decision record is
        written before the transaction's record is deleted, so that a later creator finds it."""
        over = await self.decision(kept.transaction.id)
        if over is not None:
            await self._transactions.delete(kept.transaction.id, kept.version)
            self._cache.forget(kept.transaction.id)
        return over

    async def _put(self, kept: KeptTransaction, after: Transaction) -> KeptTransaction | None:
        """Writes the record; None after a conflict. After an unknown outcome the record is read to find out."""
        written = await self._transactions.write(after.id, encode(after), kept.version, None)
        if written:
            assert written.version is not None, "what is written has a version"
            return self._note(KeptTransaction(after, written.version))
        self._cache.forget(after.id)
        if written.outcome is Outcome.CONFLICT:
            return None
        current = await self.read(after.id)
        return current if current is not None and current.transaction == after else None

    async def _recall(self, id: str) -> Decided | None:
        over = self._decision_cache.get(id)
        if over is None:
            return None
        if over.expires_at <= await self.now():
            self._decision_cache.forget(id)
            return None
        return over

    def _note(self, kept: KeptTransaction) -> KeptTransaction:
        transaction = replace(kept.transaction, confirmed=True)
        return self._cache.note(transaction.id, KeptTransaction(transaction, kept.version))


def refused(id: str, state: Decision) -> KeyRefused:
    """The refusal for a caller that comes after the decision."""
    if state is Decision.COMMIT:
        return KeyRefused(Refusal.TRANSACTION_COMMITTED, f"the transaction {id} was committed already")
    return KeyRefused(Refusal.TRANSACTION_ROLLED_BACK, f"the transaction {id} was rolled back")
