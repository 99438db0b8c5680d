"""Aged records: keys unused for longer than they are kept, with their state.

evidence      the key's record says when it was written last, and that it has no lease
grace         `retention` since that moment; without one nothing is ever aged
precondition  the record has the same version at the step that deletes it; only then do its objects go, and of those
              only what was written under its token or an earlier one
if wrong      a key that was still wanted has lost its state; its next lease has a higher token than it ever had
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from wrasse.engine.sweep import Action, Keep
from wrasse.leases.expiry_index import EveryKey, FoundKey
from wrasse.leases.lease import RECHECK_AFTER, first_token
from wrasse.leases.leases import Leases
from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Namespaces


@dataclass(frozen=True, slots=True)
class AgedRecords:
    """Deletes unused keys, record first."""

    name: ClassVar[str] = "aged_records"
    each: ClassVar[bool] = True
    batch_max: ClassVar[int] = 1

    leases: Leases
    namespaces: Namespaces
    retention: timedelta = timedelta(0)

    async def find(self, after: str | None, limit: int) -> Page[FoundKey]:
        if not self.retention:
            return Page((), (), self.leases.clock.now(), more=False)
        return await EveryKey(self.leases, self.namespaces).page(after, limit)

    def decide(self, suspect: FoundKey, at: datetime) -> Action[FoundKey] | Keep:
        if suspect.kept is None:
            return Keep("no key there")
        meta = suspect.kept
        if meta.lease is not None:
            return Keep("held")
        if meta.recheck_at is not None and at < meta.recheck_at:
            return Keep("to be looked at once more")
        if not self.retention or at - meta.updated_at < self.retention:
            return Keep("used lately")
        if meta.token >= first_token(at - RECHECK_AFTER):
            # The first token of a key is the time; a key that is created again must begin above this one.
            return Keep("its token is ahead of the time")
        age = (at - meta.updated_at) // timedelta(hours=1)
        return Action("delete", f"{suspect.namespace}/{suspect.key}", f"not touched for {age} h", suspect)

    async def apply(self, actions: Sequence[Action[FoundKey]]) -> Sequence[Outcome]:
        return [await self._deleted(action.change) for action in actions]

    async def resolve(self, lines: Sequence[Line]) -> Sequence[Outcome]:
        """The outcome of deletions that a crash interrupted. Where the record is gone its objects may not be."""
        return [await self._resolved(line) for line in lines]

    async def _deleted(self, found: FoundKey) -> Outcome:
        assert found.kept is not None, "what is deleted was there"
        return await self.leases.keys(found.namespace).delete(found.key, found.kept)

    async def _resolved(self, line: Line) -> Outcome:
        namespace, _, key = line.intent.suspect.partition("/")
        keys, born = self.leases.keys(namespace), first_token(line.intended_at)
        kept = await keys.read(key)
        if kept is not None and kept.token < born:
            return Outcome.CONFLICT
        # A lease of the key after its deletion has a later token: none of its objects is touched.
        await keys.clean(key, born - 1)
        return Outcome.DONE
