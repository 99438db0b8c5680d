"""Open transactions: decided and not applied on every key, or pending although all of their leases have expired.

evidence      the record says that it is decided; or it is pending, and no key in it has a live lease
grace         none for a decision; the end of the last lease, with the skew margin and the lock delay, for a pending one
precondition  a rollback is written over the record as it was read, so that a commit which comes first wins; a key is
              changed only under the lease that enlisted it, over the record as it was read
if wrong      a transaction that was still wanted is rolled back on every key, and its commit is refused
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from wrasse.engine.sweep import Action, Keep
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import Decision, Transaction, decode_transaction
from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that still has a record, and when the last of its leases expires."""

    transaction: Transaction
    lasts_until: datetime


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Applies decided transactions, rolls back abandoned ones, and leaves a decision record of each."""

    name: ClassVar[str] = "open_transactions"
    each: ClassVar[bool] = True
    batch_max: ClassVar[int] = 1  # so that it stops within one transaction of new traffic

    leases: Leases

    async def find(self, after: str | None, limit: int) -> Page[OpenTransaction]:
        page = await self.leases.transactions.transaction_log.page(after, limit)
        found = [decode_transaction(record).transaction for record in page]
        open = tuple([OpenTransaction(each, await self._lasts_until(each, page.at)) for each in found])
        return Page(open, page.cursors, page.at, page.more)

    def decide(self, suspect: OpenTransaction, at: datetime) -> Action[OpenTransaction] | Keep:
        transaction = suspect.transaction
        if transaction.decided:
            return Action("apply", transaction.id, f"decided for {transaction.state.value}", suspect)
        if at < suspect.lasts_until:
            return Keep("its leases last")
        return Action("roll back", transaction.id, "nothing is decided, and its leases have ended", suspect)

    async def apply(self, actions: Sequence[Action[OpenTransaction]]) -> Sequence[Outcome]:
        return [await self._finished(action.change.transaction) for action in actions]

    async def resolve(self, lines: Sequence[Line]) -> Sequence[Outcome]:
        """The outcome of transactions whose end a crash interrupted."""
        return [_ended(await self.leases.transactions.transaction_log.outcome(line.intent.suspect)) for line in lines]

    async def _lasts_until(self, transaction: Transaction, at: datetime) -> datetime:
        if transaction.decided or at < transaction.until:
            return transaction.until  # its leases need no check
        return await self.leases.transactions.lasts_until(transaction)

    async def _finished(self, seen: Transaction) -> Outcome:
        kept = await self.leases.transactions.transaction_log.read(seen.id)
        if kept is None:
            return Outcome.CONFLICT
        state = await self.leases.transactions.finish(kept)
        return Outcome.DONE if state is (seen.state if seen.decided else Decision.ROLLBACK) else Outcome.CONFLICT


def _ended(state: Decision | None) -> Outcome:
    if state is None:
        return Outcome.UNKNOWN
    return Outcome.CONFLICT if state is Decision.PENDING else Outcome.DONE
