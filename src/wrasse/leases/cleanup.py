"""What is left of a lease once its record says that it is over: superseded objects first, the index entry last.

Whatever a crash leaves is still indexed, and a sweep finds it. A lease that may have left an object which no record
names is not tidied away at once: its entry stays, or its record is due again, for one more look an hour later.

An object is written before the record names it, and one that is superseded goes after. A process that dies, is
cancelled or gets no answer in between leaves a loose object under a lease that goes on. So a lease is clean only here,
where it was granted, and only while nothing of it is open; one that was forgotten, being longest not touched, is not.

A key that this process is just taking again needs its entry again, too. Its next lease takes along what the last one
left, until there is enough of it: so a key that is never at rest costs one delete for several leases.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from wrasse.leases.background import BackgroundTasks
from wrasse.leases.core import Changed
from wrasse.leases.lease import LOOK_AGAIN, KeyRecord, StateObject
from wrasse.leases.names import token_of
from wrasse.leases.state_objects import StateObjects
from wrasse.leases.store import KeyStore, Recent

LEAVING_MAX = 32
TOGETHER = 8  # objects of a key that is taken again and again go away so many at once
GONE_MAX = 4_096  # names of objects that are gone, remembered until records no longer name them


class LeaseCleanup:
    """Takes away what the leases of one namespace leave behind."""

    __slots__ = ("_comes", "_gone", "_open", "_put_off", "_store", "background", "versions")

    def __init__(self, store: KeyStore, versions: StateObjects, background: BackgroundTasks) -> None:
        self._store, self.versions, self.background = store, versions, background
        self._open: Recent[int] = Recent()  # by lease, how many of its writes and deletes have no known end yet
        self._gone: dict[str, None] = {}  # in the order in which they went
        self._comes: dict[str, int] = {}  # how many of this process are trying to take a key
        self._put_off: dict[str, tuple[str, Changed]] = {}  # by key, the last lease before those

    def granted(self, lease: str) -> None:
        """This process granted the lease just now: there is nothing of it yet."""
        self._open.note(lease, 0)

    def begin(self, lease: str, count: int = 1) -> None:
        """An object is about to be written or taken away; -1: the record names the object that was written, or the one
        that was to go is gone."""
        before = self._open.get(lease)
        if before is not None:
            self._open.note(lease, before + count)

    def is_clean(self, lease: str) -> bool:
        """Whether this lease has left nothing behind for certain."""
        return self._open.get(lease) == 0

    def given_back(self, lease: str, record: KeyRecord, after: KeyRecord, at: datetime) -> KeyRecord:
        """The key as it is given back, with what leads to its objects should nobody get to take them away."""
        going = record.superseded_by(after)
        if not self.is_clean(lease):
            return replace(after, look_at=at + LOOK_AGAIN)
        if not self._store.index_apart:
            # No entry is left behind there: only this leads a sweep to what a crash leaves.
            return replace(after, look_at=at + LOOK_AGAIN if going else record.look_at)
        # The entry leads to them, but the next holder has the same one if its lease is to end in the same hour.
        leaving = self._still((*record.leaving, *going))
        if len(leaving) > LEAVING_MAX:
            return replace(after, look_at=at + LOOK_AGAIN, leaving=())
        return replace(after, leaving=leaving)

    def comes(self, key: str) -> None:
        """Somebody tries to take a key; `came` follows."""
        self._comes[key] = self._comes.get(key, 0) + 1

    def came(self, key: str, *, taken: bool) -> None:
        """Somebody has tried. What was put off for them is done now, unless their lease takes it along."""
        others = self._comes[key] - 1
        if others:
            self._comes[key] = others
        else:
            del self._comes[key]
        if taken or not others:
            put_off = self._put_off.pop(key, None)
            if put_off is not None and taken:
                self._open.forget(put_off[0])
            elif put_off is not None:
                self.background.soon(self.clean_up(key, *put_off))

    async def clean_up(self, key: str, lease: str, changed: Changed) -> None:
        """After a lease was given back."""
        before, after = changed.before, changed.after
        few = len(after.leaving) < TOGETHER
        if few and key in self._comes and self._store.index_apart and self.is_clean(lease):
            self._put_off[key] = (lease, changed)
            return
        going = self._still((*before.leaving, *before.superseded_by(after)))
        gone = await self.versions.drop(*going)
        self._note_gone(going if gone else ())
        clean = self.is_clean(lease) and gone
        self._open.forget(lease)
        if gone:
            self._store.nothing_leaves(key, after)
        if not clean or before.look_at is not None or before.lease is None:
            return
        if self._store.index_apart:
            await self._store.leave(key, before.lease.expires_at)
            return
        if after.look_at is not None and self._store.remembered(key) == after:
            await self._store.store(key, replace(after, look_at=None))

    def _still(self, states: tuple[StateObject, ...]) -> tuple[StateObject, ...]:
        """Those that are not known to be gone: the next holder is often faster than what tidies up after the last."""
        return tuple(state for state in states if state.name not in self._gone)

    def _note_gone(self, states: tuple[StateObject, ...]) -> None:
        for state in states:
            if len(self._gone) >= GONE_MAX:
                del self._gone[next(iter(self._gone))]
            self._gone[state.name] = None

    async def clean(self, key: str, ended: int, seen: KeyRecord | None = None) -> int:
        """Takes away objects of the key that no record names, written under this token or an earlier one. The lease
        must have been cleared before. If the record as it was `seen` names all of them, there is nothing to do."""
        infos = [info for info in await self.versions.of(key) if (token_of(info.key) or 0) <= ended]
        if seen is not None:
            infos = [info for info in infos if not seen.names(info.key)]
        if not infos:
            return 0
        kept = await self._store.read(key)  # again, after the listing: what is named by now stays
        loose = [info for info in infos if kept is None or not kept.names(info.key)]
        return await self.versions.delete(loose)

    async def drop_staged(self, record: KeyRecord) -> None:
        """After a lease was cleared: the record no longer names what was staged under it, and never will."""
        for state in record.superseded_by(replace(record, staged=None)):
            await self.background.add(self.versions.drop(state))

    async def drop_superseded(self, lease: str, changed: Changed) -> None:
        """While a lease goes on: what it has staged before and names no more."""
        for state in changed.before.superseded_by(changed.after):
            self.begin(lease)
            await self.background.add(self.dropped(lease, state))

    async def dropped(self, lease: str, state: StateObject) -> None:
        """Takes an object away that this lease wrote; until it is gone for certain, the lease is not clean."""
        if await self.versions.drop(state):
            self.begin(lease, -1)
