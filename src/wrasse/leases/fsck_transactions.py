"""Everything about transactions, read in full: what is open for too long, and decisions that no sweep would find.

A transaction that is under way is none of our business. One is wrong if it is decided or overdue, and nobody has
finished it for as long as a sweep needs at most. A decision record is wrong if its time has long been over, or if the
index does not lead to it. A repair is the same step that replays and sweeps use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from wrasse.leases.fsck import AHEAD, PAGE, Damage, Trouble
from wrasse.leases.lease import LOOK_AGAIN
from wrasse.leases.leases import Leases
from wrasse.leases.transaction import DECISIONS, KeptTransaction, decode_decision, decode_transaction
from wrasse.ports.records import Record, Records


class TransactionsFsck:
    """One look at all transactions of a store. `transactions` and `decisions` count what was read."""

    def __init__(self, leases: Leases, *, repair: bool) -> None:
        self._transactions, self._repair = leases.transactions, repair
        self._decisions: Records = leases.records(DECISIONS)
        self._clock = leases.clock
        self.transactions = self.decisions = 0

    async def run(self) -> AsyncIterator[Damage]:
        """Everything that is wrong, as it is found."""
        after: str | None = None
        while True:
            page = await self._transactions.book.page(after, PAGE)
            for record in page:
                self.transactions += 1
                kept = decode_transaction(record)
                if await self._overdue(kept, page.at):
                    yield await self._unfinished(kept)
            after = page.cursor
            if after is None:
                break
        async for damage in self._look_at_decisions():
            yield damage

    async def _overdue(self, kept: KeptTransaction, at: datetime) -> bool:
        transaction = kept.transaction
        if transaction.decided:
            return at >= transaction.updated_at + LOOK_AGAIN
        return at >= transaction.until + LOOK_AGAIN and at >= await self._transactions.lasts_until(transaction)

    async def _unfinished(self, kept: KeptTransaction) -> Damage:
        repaired = False
        if self._repair:
            confirmed = await self._transactions.book.confirmed(kept)
            if confirmed is not None:
                await self._transactions.finish(confirmed)
            repaired = await self._transactions.book.look(kept.transaction.id) is None
        return Damage("", Trouble.UNFINISHED, kept.transaction.id, repaired=repaired)

    async def _look_at_decisions(self) -> AsyncIterator[Damage]:
        indexed = await self._indexed()
        after: str | None = None
        while True:
            page = await self._decisions.page("", after, PAGE)
            for record in page:
                self.decisions += 1
                if decode_decision(record).expires_at + 2 * LOOK_AGAIN <= page.at:  # the sweep had its chance
                    yield await self._spent(record)
                elif record.key not in indexed and await self._decisions.get(record.key) is not None:
                    yield await self._not_indexed(record)
            after = page.cursor
            if after is None:
                return

    async def _indexed(self) -> set[str]:
        found, after = set[str](), None
        while True:
            page = await self._decisions.due(self._clock.now() + AHEAD, after, PAGE)
            found |= {record.key for record in page}
            after = page.cursor
            if after is None:
                return found

    async def _spent(self, record: Record) -> Damage:
        if self._repair:
            await self._transactions.book.delete_decision(record)
        return Damage("", Trouble.SPENT, record.key, repaired=self._repair)

    async def _not_indexed(self, record: Record) -> Damage:
        repaired = False
        if self._repair:
            due_at = decode_decision(record).expires_at
            await self._decisions.get(record.key, entering=due_at)
            repaired = bool(await self._decisions.put(record.key, record.value, at=record.version, due_at=due_at))
        return Damage("", Trouble.NOT_INDEXED, record.key, repaired=repaired)
