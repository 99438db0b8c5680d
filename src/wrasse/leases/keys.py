"""Keys under leases: acquire, renew, stage, commit, read. One conditional write of the key's record per change.

Promise. At most one holder per key by the store. Tokens only grow, for ever. A write under an old token is refused
together with its data, because both are the same write. A commit either happened or its caller is told that it did
not. Nothing depends on a sweep: whoever meets a lease that has ended clears it first. Nobody but its holder sees what
is staged.

Costs, in requests to a store whose index is apart, the process having seen the key or not: acquire 2 or 3 (the entry is
made beside the read), update 2, release 2 and one delete after the answer, renew 1, public read 2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.leases import rules
from wrasse.leases.afterwards import Afterwards
from wrasse.leases.doubts import Doubts
from wrasse.leases.known import Known
from wrasse.leases.meta import Grant, Kept, Meta, State, cleared, committed, decode, encode, released
from wrasse.leases.names import token_of
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.rules import LOOK_AGAIN, Busy, Held, Mine, Terms
from wrasse.leases.tally import LeaseTally
from wrasse.leases.versions import Versions
from wrasse.leases.writes import Writes
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records

RACES_MAX = 16  # how often a lost race is run again

EXACT = Terms()

Change = Callable[[Meta, datetime], Meta | None]
ObjectChange = Callable[[Meta, State, datetime], Meta]


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a held key: its record before and after."""

    before: Meta
    after: Meta


class Keys:
    """The keys of one namespace."""

    def __init__(
        self,
        namespace: str,
        records: Records,
        objects: Objects,
        clock: Clock,
        *,
        terms: Terms = EXACT,
        known: Known | None = None,
        tally: LeaseTally | None = None,
        afterwards: Afterwards | None = None,
    ) -> None:
        self.namespace = namespace
        self.terms = terms
        self.tally = tally if tally is not None else LeaseTally()
        self.afterwards = afterwards if afterwards is not None else Afterwards()
        self.versions = Versions(objects, namespace)
        self.clock = clock
        self._writes = Writes(records, clock)
        # Where the due index is apart, the entry of a lease that ended stands for the second look; no other is made.
        self._index_apart = records.resolution > timedelta(0)
        self._known = known if known is not None else Known()
        self._doubts = Doubts()

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._writes.now()

    def term(self, grant: Grant) -> float:
        """Our monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self._writes.monotonic(grant.until - self.terms.margin)

    def when(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        return self._writes.monotonic(instant)

    async def look(self, key: str) -> Kept | None:
        """The key's record as it is now."""
        return await self._read(key)

    async def try_acquire(self, key: str, asked: rules.Asked) -> Kept | Busy:
        """One try: the key with our lease on it, or until when somebody else has it."""
        seen = self._known.get(key)
        if seen is not None and (seen.meta.grant is not None or asked.if_not_exists):
            seen = None  # only the store knows whether a key is still held, or still there
        for _ in range(RACES_MAX):
            kept = seen if seen is not None else await self._read(key, entering=asked.ttl)
            seen = None
            at = await self.now()
            verdict = rules.acquire(None if kept is None else kept.meta, asked, at, self.terms)
            if isinstance(verdict, Busy):
                return verdict
            if isinstance(verdict, Mine):
                assert kept is not None, "a lease stands in a record"
                return kept
            ended = verdict.ended
            granted = await self._store(key, kept, verdict.meta, entry_stays=ended is not None)
            if granted is not None:
                self._doubts.granted(asked.id)
                if ended is not None and kept is not None:
                    self.tally.cleared += 1
                    await self._drop_staged(kept.meta)
                return granted
        return Busy(await self.now() + timedelta(milliseconds=100))

    async def renew(self, held: Held, ttl: timedelta) -> Meta:
        """The same lease with the same token, `ttl` from now."""
        return (await self._change(held, lambda meta, at: rules.renewed(meta, ttl, at))).after

    async def stage(self, held: Held, data: bytes, if_version: int | None, if_etag: str | None) -> Meta:
        """Stages a new state. Nothing is written unless the caller holds the key and saw this version of it."""
        await self.checked(held, if_version, if_etag)

        def change(meta: Meta, state: State, at: datetime) -> Meta:
            rules.check_expected(meta, if_version, if_etag)
            return rules.staged_update(meta, state, at)

        return (await self.stage_object(held, self.versions.write(held.key, held.token, data), change)).after

    async def stage_object(self, held: Held, writing: Awaitable[State], change: ObjectChange) -> Changed:
        """Writes an object, then the record that names it. The caller has seen that it holds the key."""
        self._doubts.begin(held.id)
        state = await writing
        try:
            changed = await self._change(held, lambda meta, at: change(meta, state, at))
        except KeyRefused:
            await self.afterwards.add(self._dropped(held.id, state))
            raise
        self._doubts.end(held.id)
        await self._drop_superseded(held.id, changed)
        return changed

    async def stage_change(self, held: Held, change: Change) -> Changed:
        """Stages a change that needs no new object; before and after are the same if it changes nothing."""
        changed = await self._change(held, change)
        if changed.after is not changed.before:
            await self._drop_superseded(held.id, changed)
        return changed

    async def stage_removal(self, held: Held, if_version: int | None, if_etag: str | None) -> Changed:
        """Stages the removal of the state; before and after are the same if there is none."""

        def change(meta: Meta, at: datetime) -> Meta | None:
            rules.check_expected(meta, if_version, if_etag)
            return rules.staged_removal(meta, at)

        return await self.stage_change(held, change)

    async def stage_hidden(self, held: Held, hidden: bool, if_version: int | None) -> Meta:
        """Stages the one attribute that keys have."""

        def change(meta: Meta, at: datetime) -> Meta:
            rules.check_expected(meta, if_version, None)
            return rules.staged_hidden(meta, hidden, at)

        return (await self._change(held, change)).after

    async def release(self, held: Held, *, commit: bool) -> Meta | None:
        """Gives the key back, with what is staged or without; the key as it then is. None: the lease was over or
        unknown and nothing of it was lost. Refused if something was staged under it and is gone."""
        kept = self._mine(held) or await self._read(held.key)

        def change(meta: Meta, at: datetime) -> Meta:
            after = committed(meta, at) if commit else released(meta, at)
            look_at = self._second_look(held, meta, after, at)
            return after if look_at == after.look_at else replace(after, look_at=look_at)

        try:
            changed = await self._change(held, change, kept=kept, entry_stays=True)
        except KeyRefused as refused:
            if refused.code not in (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED):
                raise
            if commit and await self._staged_is_lost(held):
                raise KeyRefused(
                    Refusal.LEASE_EXPIRED, f"the lease of {held.key!r} ended before its commit", version=refused.version
                ) from None
            return None
        await self.afterwards.add(self._tidy(held, changed))
        return changed.after

    async def clear(self, key: str, kept: Kept, at: datetime) -> Kept | None:
        """Clears a lease that has ended; None if the record is another by now."""
        meta = kept.meta
        assert meta.grant is not None, "a lease that ended is still written down"
        stored = await self._store(key, kept, cleared(meta, at, at + LOOK_AGAIN), entry_stays=True)
        if stored is not None:
            self.tally.cleared += 1
            await self._drop_staged(meta)
        return stored

    async def clean(self, key: str, ended: int, seen: Kept | None = None) -> int:
        """Takes away objects of the key that no record names, written under this token or an earlier one. The lease
        must have been cleared before. If the record as it was `seen` names all of them, there is nothing to do."""
        infos = [info for info in await self.versions.of(key) if (token_of(info.key) or 0) <= ended]
        if seen is not None:
            infos = [info for info in infos if not seen.meta.names(info.key)]
        if not infos:
            return 0
        kept = await self._read(key)  # again, after the listing: what is named by now stays
        loose = [info for info in infos if kept is None or not kept.meta.names(info.key)]
        return await self.versions.delete(loose)

    async def delete(self, key: str, kept: Kept) -> Outcome:
        """Deletes a key that nobody holds, as it was seen; then its objects."""
        assert kept.meta.grant is None, "a held key is not deleted"
        deleted = await self._writes.delete(key, kept.version)
        self._known.forget(key)
        if deleted:
            await self.clean(key, kept.meta.token)
        return deleted.outcome

    async def settle(self, key: str, kept: Kept, entry_at: datetime) -> bool:
        """Says that a key has been looked at for the second time: it is no longer due, unless it is held."""
        if self._index_apart:
            await self.leave(key, entry_at)
            return True
        if kept.meta.look_at is None:
            return True
        return await self._store(key, kept, replace(kept.meta, look_at=None)) is not None

    def due_at(self, meta: Meta) -> datetime | None:
        """When a sweep should look at the key, as its record says it."""
        if meta.grant is not None:
            return meta.grant.until
        return None if self._index_apart else meta.look_at

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes an index entry away that stands for nothing any more."""
        await self._writes.records.leave(key, due_at)
        self.tally.entries_deleted += 1

    async def read_held(self, held: Held) -> Meta:
        """The key as the store has it now, if the caller holds it: it may have staged something through another
        process. Who only reads need not know the transaction."""
        kept = await self._read(held.key)
        grant = None if kept is None else kept.meta.grant
        if grant is not None and not held.transaction:
            held = replace(held, transaction=grant.transaction)
        return (await self.checked(held, None, None)).meta

    async def checked(self, held: Held, if_version: int | None, if_etag: str | None) -> Kept:
        """The key, if the caller holds it and saw this version of it; what this process remembers is asked first."""
        kept = self._mine(held)
        for fresh in (kept is None, True):
            kept = await self._read(held.key) if fresh or kept is None else kept
            meta = None if kept is None else kept.meta
            try:
                rules.check_held(meta, held, await self.now(), self.terms)
                assert kept is not None, "a held key has a record"
                rules.check_expected(kept.meta, if_version, if_etag)
                return kept
            except KeyRefused:
                if not fresh:
                    continue  # what this process remembers may be out of date
                await self._clear_if_over(held.key, kept)
                raise
        raise AssertionError("the second look answers or raises")

    async def _change(
        self, held: Held, change: Change, *, kept: Kept | None = None, entry_stays: bool = False
    ) -> Changed:
        """One change by the holder. A race that is lost to a change of our own (a renewal) is run again."""
        kept = kept if kept is not None else self._mine(held)
        for _ in range(RACES_MAX):
            at = await self.now()
            if kept is None or self._refused(kept, held, at):
                kept = await self.checked(held, None, None)
                at = await self.now()
            wanted = change(kept.meta, at)
            if wanted is None:
                return Changed(kept.meta, kept.meta)
            stored = await self._store(held.key, kept, wanted, entry_stays=entry_stays)
            if stored is not None:
                return Changed(kept.meta, stored.meta)
            kept = None
        raise StoreUnavailable(
            f"{held.key!r} changed under every one of {RACES_MAX} tries", do="see what else writes there"
        )

    def _refused(self, kept: Kept, held: Held, at: datetime) -> bool:
        try:
            rules.check_held(kept.meta, held, at, self.terms)
        except KeyRefused:
            return True
        return False

    async def _store(self, key: str, before: Kept | None, meta: Meta, *, entry_stays: bool = False) -> Kept | None:
        """Writes the record; None if it is another by now. After an answer that settles nothing the record tells."""
        at = None if before is None else before.version
        written = await self._writes.write(key, encode(meta), at, self.due_at(meta), entry_stays=entry_stays)
        if written:
            assert written.version is not None, "what is written has a version"
            kept = Kept(meta, written.version)
            self._known.note(key, kept)
            return kept
        self._known.forget(key)
        if written.outcome is Outcome.LOST:
            return None
        current = await self._read(key)
        return current if current is not None and current.meta == meta else None

    async def _read(self, key: str, entering: timedelta | None = None) -> Kept | None:
        due_at = None if entering is None else await self.now() + entering
        record = await self._writes.records.get(key, entering=due_at)
        if record is None:
            self._known.forget(key)
            return None
        kept = decode(record)
        self._known.note(key, kept)
        return kept

    def _mine(self, held: Held) -> Kept | None:
        kept = self._known.get(held.key)
        return kept if kept is not None and kept.meta.grant is not None and kept.meta.grant.id == held.id else None

    async def _clear_if_over(self, key: str, kept: Kept | None) -> None:
        grant = None if kept is None else kept.meta.grant
        at = await self.now()
        if kept is None or grant is None or not rules.over(grant, at, self.terms):
            return
        if await self.clear(key, kept, at) is not None:
            await self.afterwards.add(self.clean(key, grant.token))

    async def _staged_is_lost(self, held: Held) -> bool:
        kept = await self._read(held.key)
        if kept is None:
            return False
        meta = kept.meta
        ending = meta.grant is not None and meta.grant.id == held.id and meta.staged is not None
        return ending or meta.has_dropped(held.token)

    def _second_look(self, held: Held, meta: Meta, after: Meta, at: datetime) -> datetime | None:
        """When somebody should look at the key's objects although its lease was given back."""
        if not self._doubts.sound(held.id):
            return at + LOOK_AGAIN
        if self._index_apart:
            return after.look_at
        # Where the index is part of the record no entry is left behind: only this leads a sweep to what a crash leaves.
        return at + LOOK_AGAIN if meta.superseded_by(after) else meta.look_at

    async def _tidy(self, held: Held, changed: Changed) -> None:
        """The superseded objects first, the index entry last: whatever a crash leaves is still indexed."""
        before, after = changed.before, changed.after
        gone = [await self.versions.drop(state) for state in before.superseded_by(after)]
        sound = self._doubts.sound(held.id) and all(gone)
        self._doubts.forget(held.id)
        if not sound or before.look_at is not None or before.grant is None:
            return
        if self._index_apart:
            await self.leave(held.key, before.grant.until)
            return
        kept = self._known.get(held.key)
        if after.look_at is not None and kept is not None and kept.meta == after:
            await self._store(held.key, kept, replace(after, look_at=None))

    async def _drop_staged(self, meta: Meta) -> None:
        """After a lease was cleared: the record no longer names what was staged under it, and never will."""
        for state in meta.superseded_by(replace(meta, staged=None)):
            await self.afterwards.add(self.versions.drop(state))

    async def _drop_superseded(self, lease: str, changed: Changed) -> None:
        for state in changed.before.superseded_by(changed.after):
            self._doubts.begin(lease)
            await self.afterwards.add(self._dropped(lease, state))

    async def _dropped(self, lease: str, state: State) -> None:
        if await self.versions.drop(state):
            self._doubts.end(lease)
