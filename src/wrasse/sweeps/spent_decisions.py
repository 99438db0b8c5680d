"""Spent decisions: decision records of transactions that were applied a day ago.

evidence      the decision record says until when it is kept, and that has passed
grace         24 hours from the moment the transaction was applied on every key
precondition  the record has the same version at the step that deletes it
if wrong      a later query for the outcome of the transaction is answered with unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from wrasse.engine.sweep import Action, Keep
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import decode_decision
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Record


@dataclass(frozen=True, slots=True)
class SpentDecisions:
    """Deletes expired decision records, found by their index."""

    name: ClassVar[str] = "spent_decisions"
    each: ClassVar[bool] = False
    batch_max: ClassVar[int] = 1  # so that it stops within one entry of new traffic

    leases: Leases

    async def find(self, after: str | None, limit: int) -> Page[Record]:
        return await self.leases.transactions.transaction_log.spent(after, limit)

    def decide(self, suspect: Record, at: datetime) -> Action[Record] | Keep:
        over = decode_decision(suspect)
        if at < over.expires_at:
            return Keep("still kept")
        return Action("delete", over.id, f"decided for {over.state.value}, and long carried out", suspect)

    async def apply(self, actions: Sequence[Action[Record]]) -> Sequence[Outcome]:
        transaction_log = self.leases.transactions.transaction_log
        return [await transaction_log.delete_decision(action.change) for action in actions]
