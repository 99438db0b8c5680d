"""Expired leases: past their expires_at, and the key was not used since.

evidence      the key's record shows a lease past its expires_at; or the index still names a key whose lease is gone
grace         the skew margin and the lock delay of the leases; one hour before a key's loose objects are searched
precondition  the record has the same version at the write that clears it; an object goes only if, after the lease was
              cleared, the record read again does not name it and its token is not above the cleared lease's
if wrong      nothing: the next acquire clears an expired lease anyway, and a live lease is another version
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from wrasse.engine.sweep import Action, Keep
from wrasse.leases.expiry_index import EndedKey, EndedKeys, QuietNamespaces
from wrasse.leases.lease import over
from wrasse.leases.leases import Leases
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Namespaces


@dataclass(frozen=True, slots=True)
class Clear:
    """Clear the lease of this key."""

    ended: EndedKey


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Delete the key's loose objects, up to this token, and then its index entry."""

    ended: EndedKey
    token: int


@dataclass(frozen=True, slots=True)
class ExpiredLeases:
    """Clears expired leases, and an hour later deletes the objects that their holders left."""

    name: ClassVar[str] = "expired_leases"
    each: ClassVar[bool] = False
    batch_max: ClassVar[int] = 1  # so that it stops within one entry of new traffic

    leases: Leases
    namespaces: Namespaces

    async def find(self, after: str | None, limit: int) -> Page[EndedKey | QuietNamespaces]:
        return await EndedKeys(self.leases, self.namespaces).page(after, limit)

    def decide(self, suspect: EndedKey | QuietNamespaces, at: datetime) -> Action[Clear | CleanUp] | Keep:
        if isinstance(suspect, QuietNamespaces):
            return Keep("nothing is due there")
        meta = suspect.kept
        name = f"{suspect.namespace}/{suspect.key}"
        if meta.recheck_at is not None and at < meta.recheck_at and meta.lease is None:
            return Keep("cleared, to be looked at once more")
        if meta.lease is None:
            return Action("tidy", name, "its lease is gone", CleanUp(suspect, meta.token))
        if not over(meta.lease, at, self.leases.terms):
            if suspect.entry_at >= meta.lease.expires_at or (meta.recheck_at is not None and at < meta.recheck_at):
                return Keep("held")
            return Action("tidy", name, "an earlier lease ended by itself", CleanUp(suspect, meta.lease.token - 1))
        return Action("clear", name, f"{meta.lease.owner} let its lease end", Clear(suspect))

    async def apply(self, actions: Sequence[Action[Clear | CleanUp]]) -> Sequence[Outcome]:
        return [await self._applied(action.change) for action in actions]

    async def _applied(self, change: Clear | CleanUp) -> Outcome:
        ended = change.ended
        keys = self.leases.keys(ended.namespace)
        if isinstance(change, Clear):
            cleared = await keys.clear(ended.key, ended.kept, await keys.now())
            return Outcome.CONFLICT if cleared is None else Outcome.DONE
        await keys.clean(ended.key, change.token, ended.kept)
        return Outcome.DONE if await keys.settle(ended.key, ended.kept, ended.entry_at) else Outcome.CONFLICT
