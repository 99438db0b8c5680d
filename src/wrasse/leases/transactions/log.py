"""The book of transactions: who takes part, what was decided, and for how long that is remembered.

Every change of a record names the version it read, so of two deciders one wins and the other is told what counts. An id
whose decision record stands is over: after a record was made, that is looked up, and a record of such an id is taken
away again. A decision record past its time is deleted before anything is answered from it.

Costs. The first key: one write and one read. Each further key, and the decision: one write each, in the process that
made the record; one read more elsewhere. The end: a decision record, and a delete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from wrasse.clock import Clock
from wrasse.leases.refusal import KeyRefused, Refusal
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
    """What was decided, by whomever; the record, as long as it is there."""

    state: Decision
    kept: KeptTransaction | None


class TransactionLog:
    """The transactions of one store."""

    def __init__(self, records: Callable[[Collection], Records], clock: Clock, tally: LeaseTally) -> None:
        # Without names: of each of these writes the record itself tells whether it is made, by whomever; and what is
        # deleted is gone at once, so that a look at open transactions costs as much as there are.
        self._transactions = LeaseRecords(records(TRANSACTIONS), clock, named=False)
        self._decisions = LeaseRecords(records(DECISIONS), clock, named=False)
        self.tally = tally
        self._seen: Recent[KeptTransaction] = Recent()  # may be out of date
        self._over: Recent[Decided] = Recent()  # a decision never changes

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._transactions.now()

    async def look(self, id: str) -> KeptTransaction | None:
        """The transaction's record as it is now; one that was made after its id was over is none."""
        record = await self._transactions.records.get(id)
        if record is None:
            self._seen.forget(id)
            return None
        return await self.confirmed(decode_transaction(record))

    async def confirmed(self, kept: KeptTransaction) -> KeptTransaction | None:
        """A record that was read, unless its id was over before it was made."""
        if not kept.transaction.confirmed and await self._over_already(kept) is not None:
            return None
        return self._note(kept)

    async def page(self, after: str | None, limit: int) -> Page[Record]:
        """Records of transactions that are not carried out yet, in the order of their ids."""
        return await self._transactions.records.page("", after, limit)

    async def spent(self, after: str | None, limit: int) -> Page[Record]:
        """Decision records whose time should be over."""
        return await self._decisions.records.due(None, after, limit)

    async def enlist(self, id: str, participants: Sequence[Participant], until: datetime, at: datetime) -> None:
        """Writes down that these keys take part, before they stage anything. Refused once it is decided."""
        kept = self._seen.get(id)
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
        """Decides, if nobody has: the answer is what counts. These keys are among those it counts for. An id that
        nobody knows is decided all the same, so that whoever comes later is refused."""
        kept = self._seen.get(id)
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
        """What counts for a lease that has ended and is about to be cleared: what was decided; or nothing was, and now
        it is a rollback. None: nobody knows the transaction, so that nothing was ever staged under it."""
        over = await self._recall(id)
        if over is not None:
            return over.state
        for _ in range(RACES_MAX):
            kept = await self.look(id)
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
        """What became of a transaction; None if nobody knows it, or no longer."""
        over = await self._recall(id)
        if over is None:
            kept = await self.look(id)
            if kept is not None:
                return kept.transaction.state
            over = await self.decision(id)
        return None if over is None else over.state

    async def decision(self, id: str) -> Decided | None:
        """The decision record. One past its time is deleted first, and nothing is answered from it."""
        record = await self._decisions.records.get(id)
        if record is None:
            return None
        over = decode_decision(record)
        if over.expires_at <= await self.now():
            await self.delete_decision(record)
            return None
        self._over.note(over.id, over)
        return over

    async def delete_decision(self, record: Record) -> Outcome:
        """Takes a decision record away, as it was read, with its index entry."""
        self._over.forget(record.key)
        deleted = await self._decisions.delete(record.key, record.version)
        if deleted:
            self.tally.decisions_deleted += 1
            self.tally.entries_deleted += 1
        return deleted.outcome

    async def finalise(self, kept: KeptTransaction) -> None:
        """The transaction was carried out on every key: leaves a decision record, and only then takes its own away."""
        transaction = kept.transaction
        assert transaction.decided, "what is carried out was decided"
        for _ in range(RACES_MAX):
            over = Decided(transaction.id, transaction.state, await self.now() + DECISION_KEPT)
            written = await self._decisions.write(transaction.id, encode(over), None, over.expires_at)
            there = over if written else await self.decision(transaction.id)
            if there is not None:
                self._over.note(there.id, there)
                await self._transactions.delete(transaction.id, kept.version)
                self._seen.forget(transaction.id)
                return

    async def _begin(self, made: Transaction) -> KeptTransaction | Decided:
        """The record, made or found; or the decision, if the id is over."""
        over = await self._recall(made.id)
        if over is not None:
            return over
        for _ in range(RACES_MAX):
            written = await self._transactions.write(made.id, encode(made), None, None)
            if not written:
                found = await self.look(made.id)
                if found is not None:
                    return found
                continue
            assert written.version is not None, "what is written has a version"
            kept = KeptTransaction(made, written.version)
            over = await self._over_already(kept)
            return self._note(kept) if over is None else over
        raise contended(f"the transaction {made.id}")

    async def _over_already(self, kept: KeptTransaction) -> Decided | None:
        """The decision that stood before this record was made; the record is taken away then. A decision is written
        before the record it decides goes away, so whoever could make one anew finds it."""
        over = await self.decision(kept.transaction.id)
        if over is not None:
            await self._transactions.delete(kept.transaction.id, kept.version)
            self._seen.forget(kept.transaction.id)
        return over

    async def _put(self, kept: KeptTransaction, after: Transaction) -> KeptTransaction | None:
        """Writes the record; None if it is another by now. After an answer that settles nothing the record tells."""
        written = await self._transactions.write(after.id, encode(after), kept.version, None)
        if written:
            assert written.version is not None, "what is written has a version"
            return self._note(KeptTransaction(after, written.version))
        self._seen.forget(after.id)
        if written.outcome is Outcome.CONFLICT:
            return None
        current = await self.look(after.id)
        return current if current is not None and current.transaction == after else None

    async def _recall(self, id: str) -> Decided | None:
        over = self._over.get(id)
        if over is None:
            return None
        if over.expires_at <= await self.now():
            self._over.forget(id)
            return None
        return over

    def _note(self, kept: KeptTransaction) -> KeptTransaction:
        transaction = replace(kept.transaction, confirmed=True)
        return self._seen.note(transaction.id, KeptTransaction(transaction, kept.version))


def refused(id: str, state: Decision) -> KeyRefused:
    """Who comes after the decision is told which it was."""
    if state is Decision.COMMIT:
        return KeyRefused(Refusal.TRANSACTION_COMMITTED, f"the transaction {id} was committed already")
    return KeyRefused(Refusal.TRANSACTION_ROLLED_BACK, f"the transaction {id} was rolled back")
