"""Keys under leases: acquire, renew, stage, commit, read. One conditional write of the key's record per change.

Promise. At most one holder per key by the store. Tokens only grow, for ever. A write under an old token is refused
together with its data, because both are the same write. A commit either happened or its caller is told that it did
not. Nothing depends on a sweep: whoever meets a lease that has ended clears it first. Nobody but its holder sees what
is staged.

Costs, in requests to a store whose index is apart, the process having seen the key or not: acquire 2 or 3 (the entry is
made beside the read), update 2, release 2 and one delete after the answer, renew 1, public read 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.leases import rules
from wrasse.leases.afterwards import Afterwards
from wrasse.leases.known import Known
from wrasse.leases.meta import Grant, Kept, Meta, State, cleared, committed, decode, encode, released
from wrasse.leases.names import token_of
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.rules import LOOK_AGAIN, Busy, Held, Mine, Terms
from wrasse.leases.tally import LeaseTally
from wrasse.leases.versions import Versions
from wrasse.leases.writes import Writes
from wrasse.ports.objects import Objects
from wrasse.ports.records import Records

RACES_MAX = 16  # how often a lost race is run again

EXACT = Terms()

Change = Callable[[Meta, datetime], Meta | None]


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
    ) -> None:
        self.namespace = namespace
        self.terms = terms
        self.tally = tally if tally is not None else LeaseTally()
        self.afterwards = Afterwards()
        self.versions = Versions(objects, namespace)
        self.clock = clock
        self._writes = Writes(records, clock)
        # Where the due index is apart, the entry of a lease that ended stands for the second look; no other is made.
        self._index_apart = records.resolution > timedelta(0)
        self._known = known if known is not None else Known()

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
        if seen is not None and seen.meta.grant is not None:
            seen = None  # of a held key only the store knows whether it still is
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
                if ended is not None:
                    self.tally.cleared += 1
                    await self.afterwards.add(self.clean(key, ended.token))
                return granted
        return Busy(await self.now() + timedelta(milliseconds=100))

    async def renew(self, held: Held, ttl: timedelta) -> Meta:
        """The same lease with the same token, `ttl` from now."""
        return (await self._change(held, lambda meta, at: rules.renewed(meta, ttl, at))).after

    async def stage(self, held: Held, data: bytes, if_version: int | None, if_etag: str | None) -> Meta:
        """Stages a new state. Nothing is written unless the caller holds the key and saw this version of it."""
        await self._checked(held, if_version, if_etag)
        state = await self.versions.write(held.key, held.token, data)

        def change(meta: Meta, at: datetime) -> Meta:
            rules.check_expected(meta, if_version, if_etag)
            return rules.staged_update(meta, state, at)

        try:
            changed = await self._change(held, change)
        except KeyRefused:
            await self.afterwards.add(self.versions.drop(state))
            raise
        await self._drop(_staged(changed.before))
        return changed.after

    async def stage_removal(self, held: Held, if_version: int | None, if_etag: str | None) -> Changed:
        """Stages the removal of the state; before and after are the same if there is none."""

        def change(meta: Meta, at: datetime) -> Meta | None:
            rules.check_expected(meta, if_version, if_etag)
            return rules.staged_removal(meta, at)

        changed = await self._change(held, change)
        if changed.after is not changed.before:
            await self._drop(_staged(changed.before))
        return changed

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
        try:
            changed = await self._change(held, committed if commit else released, kept=kept, entry_stays=True)
        except KeyRefused as refused:
            if refused.code not in (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED):
                raise
            if commit and await self._staged_is_lost(held):
                raise KeyRefused(
                    Refusal.LEASE_EXPIRED, f"the lease of {held.key!r} ended before its commit", version=refused.version
                ) from None
            return None
        await self.afterwards.add(self._tidy(held.key, changed))
        return changed.after

    async def clear(self, key: str, kept: Kept, at: datetime) -> Kept | None:
        """Clears a lease that has ended; None if the record is another by now."""
        meta = kept.meta
        assert meta.grant is not None, "a lease that ended is still written down"
        stored = await self._store(key, kept, cleared(meta, at, at + LOOK_AGAIN), entry_stays=True)
        if stored is not None:
            self.tally.cleared += 1
        return stored

    async def clean(self, key: str, ended: int) -> int:
        """Takes away objects of the key that no record names, written under this token or an earlier one. The lease
        must have been cleared before."""
        infos = [info for info in await self.versions.of(key) if (token_of(info.key) or 0) <= ended]
        if not infos:
            return 0
        kept = await self._read(key)
        loose = [info for info in infos if kept is None or not kept.meta.names(info.key)]
        return await self.versions.delete(loose)

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

    async def checked(self, held: Held, *, any_transaction: bool = False) -> Kept:
        """The key, if the caller holds it. Who only reads need not know the transaction."""
        if any_transaction and not held.transaction:
            kept = self._mine(held) or await self._read(held.key)
            grant = None if kept is None else kept.meta.grant
            held = held if grant is None else replace(held, transaction=grant.transaction)
        return await self._checked(held, None, None)

    async def _checked(self, held: Held, if_version: int | None, if_etag: str | None) -> Kept:
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
            if kept is None or self._refused(kept, held, await self.now()):
                kept = await self._checked(held, None, None)
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
        return ending or held.id in meta.dropped

    async def _tidy(self, key: str, changed: Changed) -> None:
        """The superseded object first, the index entry last: whatever a crash leaves is still indexed."""
        for state in (changed.before.state, _staged(changed.before)):
            if state is not None and not changed.after.names(state.name):
                await self.versions.drop(state)
        if changed.before.grant is not None and changed.before.look_at is None:
            await self.leave(key, changed.before.grant.until)

    async def _drop(self, state: State | None) -> None:
        if state is not None:
            await self.afterwards.add(self.versions.drop(state))


def _staged(meta: Meta) -> State | None:
    return None if meta.staged is None else meta.staged.state


