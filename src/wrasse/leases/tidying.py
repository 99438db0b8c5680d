"""What is left of a lease once its record says that it is over: superseded objects first, the index entry last.

Whatever a crash leaves is still indexed, and a sweep finds it. A lease that may have left an object which no record
names is not tidied away at once: its entry stays, or its record is due again, for one more look an hour later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from wrasse.leases.afterwards import Afterwards
from wrasse.leases.doubts import Doubts
from wrasse.leases.key_store import KeyStore
from wrasse.leases.meta import Kept, Meta, State
from wrasse.leases.names import token_of
from wrasse.leases.rules import LOOK_AGAIN
from wrasse.leases.versions import Versions


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a held key: its record before and after."""

    before: Meta
    after: Meta


class Tidying:
    """Takes away what the leases of one namespace leave behind."""

    __slots__ = ("_store", "afterwards", "doubts", "versions")

    def __init__(self, store: KeyStore, versions: Versions, afterwards: Afterwards) -> None:
        self._store, self.versions, self.afterwards = store, versions, afterwards
        self.doubts = Doubts()

    def second_look(self, lease: str, meta: Meta, after: Meta, at: datetime) -> datetime | None:
        """When somebody should look at the key's objects although its lease was given back."""
        if not self.doubts.sound(lease):
            return at + LOOK_AGAIN
        if self._store.index_apart:
            return after.look_at
        # Where the index is part of the record no entry is left behind: only this leads a sweep to what a crash leaves.
        return at + LOOK_AGAIN if meta.superseded_by(after) else meta.look_at

    async def tidy(self, key: str, lease: str, changed: Changed) -> None:
        """After a lease was given back."""
        before, after = changed.before, changed.after
        gone = [await self.versions.drop(state) for state in before.superseded_by(after)]
        sound = self.doubts.sound(lease) and all(gone)
        self.doubts.forget(lease)
        if not sound or before.look_at is not None or before.grant is None:
            return
        if self._store.index_apart:
            await self._store.leave(key, before.grant.until)
            return
        kept = self._store.remembered(key)
        if after.look_at is not None and kept is not None and kept.meta == after:
            await self._store.store(key, kept, replace(after, look_at=None))

    async def clean(self, key: str, ended: int, seen: Kept | None = None) -> int:
        """Takes away objects of the key that no record names, written under this token or an earlier one. The lease
        must have been cleared before. If the record as it was `seen` names all of them, there is nothing to do."""
        infos = [info for info in await self.versions.of(key) if (token_of(info.key) or 0) <= ended]
        if seen is not None:
            infos = [info for info in infos if not seen.meta.names(info.key)]
        if not infos:
            return 0
        kept = await self._store.read(key)  # again, after the listing: what is named by now stays
        loose = [info for info in infos if kept is None or not kept.meta.names(info.key)]
        return await self.versions.delete(loose)

    async def drop_staged(self, meta: Meta) -> None:
        """After a lease was cleared: the record no longer names what was staged under it, and never will."""
        for state in meta.superseded_by(replace(meta, staged=None)):
            await self.afterwards.add(self.versions.drop(state))

    async def drop_superseded(self, lease: str, changed: Changed) -> None:
        """While a lease goes on: what it has staged before and names no more."""
        for state in changed.before.superseded_by(changed.after):
            self.doubts.begin(lease)
            await self.afterwards.add(self.dropped(lease, state))

    async def dropped(self, lease: str, state: State) -> None:
        """Takes an object away that this lease wrote; until it is gone for certain, the lease is not sound."""
        if await self.versions.drop(state):
            self.doubts.end(lease)
