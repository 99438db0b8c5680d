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
from datetime import datetime, timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.leases import rules
from wrasse.leases.afterwards import Afterwards, beside
from wrasse.leases.book import Book, refused as decided_otherwise
from wrasse.leases.key_store import KeyStore
from wrasse.leases.known import Known
from wrasse.leases.meta import Grant, Kept, Meta, State, cleared, committed, released
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.rules import LOOK_AGAIN, Busy, Held, Mine, Terms
from wrasse.leases.taking_part import InTransaction, NotEnlisted, TakingPart
from wrasse.leases.tally import LeaseTally
from wrasse.leases.tidying import Changed, Tidying
from wrasse.leases.transaction import Decision
from wrasse.leases.versions import Versions
from wrasse.leases.xid import is_xid
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records

RACES_MAX = 16  # how often a lost race is run again

EXACT = Terms()

Change = Callable[[Meta, datetime], Meta | None]
ObjectChange = Callable[[Meta, State, datetime], Meta]


class Keys:
    """The keys of one namespace."""

    def __init__(
        self,
        namespace: str,
        records: Records,
        objects: Objects,
        clock: Clock,
        book: Book,
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
        self._store = KeyStore(records, clock, known if known is not None else Known(), self.tally)
        self._tidying = Tidying(self._store, self.versions, self.afterwards)
        self._book = book
        self.part = TakingPart(namespace, self._store, self._tidying, book)

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self._store.now()

    def term(self, grant: Grant) -> float:
        """Our monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self._store.monotonic(grant.until - self.terms.margin)

    def when(self, instant: datetime) -> float:
        """Our monotonic time before which the store's clock cannot show this instant."""
        return self._store.monotonic(instant)

    async def look(self, key: str) -> Kept | None:
        """The key's record as it is now."""
        return await self._store.read(key)

    async def try_acquire(self, key: str, asked: rules.Asked) -> Kept | Busy:
        """One try: the key with our lease on it, or until when somebody else has it."""
        taken = False
        self._tidying.comes(key)
        try:
            answer = await self._try_acquire(key, asked)
            taken = isinstance(answer, Kept)
            return answer
        finally:
            self._tidying.came(key, taken=taken)

    async def _try_acquire(self, key: str, asked: rules.Asked) -> Kept | Busy:
        seen = self._store.remembered(key)
        if seen is not None and (seen.meta.grant is not None or asked.if_not_exists):
            seen = None  # only the store knows whether a key is still held, or still there
        for _ in range(RACES_MAX):
            kept = seen if seen is not None else await self._store.read(key, entering=asked.ttl)
            seen = None
            at = await self.now()
            verdict = rules.acquire(None if kept is None else kept.meta, asked, at, self.terms)
            if isinstance(verdict, Busy):
                return verdict
            if isinstance(verdict, Mine):
                assert kept is not None, "a lease stands in a record"
                return kept
            ended = verdict.ended
            if ended is not None and kept is not None and not await self.part.may_clear(key, kept):
                continue
            granted = await self._store.store(key, kept, verdict.meta, entry_stays=ended is not None)
            if granted is not None:
                self._tidying.doubts.granted(asked.id)
                if ended is not None and kept is not None:
                    self.tally.cleared += 1
                    await self._tidying.drop_staged(kept.meta)
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
        self._tidying.doubts.begin(held.id)
        grant = self._explicit(held)
        if grant is None:
            state, enlisting = await writing, None
        else:  # the object means nothing before the record names it, so it need not wait
            state, enlisting = await beside(writing, self.part.enlist(held.key, grant))
        try:
            if enlisting is not None:
                raise enlisting
            changed = await self._stage(held, lambda meta, at: change(meta, state, at), enlisted=grant is not None)
        except KeyRefused:
            await self.afterwards.add(self._tidying.dropped(held.id, state))
            raise
        self._tidying.doubts.end(held.id)
        await self._tidying.drop_superseded(held.id, changed)
        return changed

    async def stage_change(self, held: Held, change: Change) -> Changed:
        """Stages a change that needs no new object; before and after are the same if it changes nothing."""
        changed = await self._stage(held, change)
        if changed.after is not changed.before:
            await self._tidying.drop_superseded(held.id, changed)
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

        return (await self._stage(held, change)).after

    async def release(self, held: Held, *, commit: bool, alone: bool = False) -> Meta | None:
        """Gives the key back, with what is staged or without; the key as it then is. None: the lease was over or
        unknown and nothing of it was lost. Refused if something was staged under it and is gone. A key that takes part
        in a transaction with others raises InTransaction, unless it is to be given back `alone`."""
        kept = self._store.mine(held.key, held.id) or await self._store.read(held.key)

        def change(meta: Meta, at: datetime) -> Meta:
            assert meta.grant is not None, "only a held key is given back"
            if meta.grant.explicit and not alone and (meta.staged is not None or not commit):
                raise InTransaction
            after = committed(meta, at) if commit else released(meta, at)
            return self._tidying.given_back(held.id, meta, after, at)

        try:
            changed = await self._change(held, change, kept=kept, entry_stays=True)
        except KeyRefused as refused:
            if refused.code not in (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED):
                raise
            await self._tell(held, refused.version, commit=commit)
            return None
        await self.afterwards.add(self._tidying.tidy(held.key, held.id, changed))
        return changed.after

    async def _tell(self, held: Held, version: int, *, commit: bool) -> None:
        """Refuses if what a caller whose lease is over wants has not happened, and never will."""
        kept = self._store.remembered(held.key)  # it was read a moment ago, or there is none
        grant = None if kept is None or kept.meta.grant is None else kept.meta.grant
        ending = grant if grant is not None and grant.id == held.id else None
        if ending is None:
            state = await self._book.outcome(held.transaction) if is_xid(held.transaction) else None
        else:  # decided here, if nobody has: who is told that nothing was changed can rely on it
            state = await self._book.settle(ending.transaction) if ending.explicit else None
        if (state is Decision.COMMIT and not commit) or (state is Decision.ROLLBACK and commit):
            raise decided_otherwise(held.transaction, state)
        if state is Decision.COMMIT or kept is None or not commit:
            return
        if (ending is not None and kept.meta.staged is not None) or kept.meta.has_dropped(held.token):
            message = f"the lease of {held.key!r} ended before its commit"
            raise KeyRefused(Refusal.LEASE_EXPIRED, message, version=version)

    async def clear(self, key: str, kept: Kept, at: datetime) -> Kept | None:
        """Clears a lease that has ended; None if the record is another by now."""
        meta = kept.meta
        assert meta.grant is not None, "a lease that ended is still written down"
        if not await self.part.may_clear(key, kept):
            return self._store.remembered(key)
        stored = await self._store.store(key, kept, cleared(meta, at, at + LOOK_AGAIN), entry_stays=True)
        if stored is not None:
            self.tally.cleared += 1
            await self._tidying.drop_staged(meta)
        return stored

    async def clean(self, key: str, ended: int, seen: Kept | None = None) -> int:
        """Takes away objects of the key that no record names; see `Tidying.clean`."""
        return await self._tidying.clean(key, ended, seen)

    async def delete(self, key: str, kept: Kept) -> Outcome:
        """Deletes a key that nobody holds, as it was seen; then its objects."""
        assert kept.meta.grant is None, "a held key is not deleted"
        outcome = await self._store.delete(key, kept.version)
        if outcome is Outcome.DONE:
            await self.clean(key, kept.meta.token)
        return outcome

    async def settle(self, key: str, kept: Kept, entry_at: datetime) -> bool:
        """Says that a key has been looked at for the second time: it is no longer due, unless it is held."""
        if self._store.index_apart:
            await self.leave(key, entry_at)
            return True
        if kept.meta.look_at is None:
            return True
        return await self._store.store(key, kept, replace(kept.meta, look_at=None)) is not None

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes an index entry away that stands for nothing any more."""
        await self._store.leave(key, due_at)

    async def read_held(self, held: Held) -> Meta:
        """The key as the store has it now, if the caller holds it: it may have staged something through another
        process. Who only reads need not know the transaction."""
        kept = await self._store.read(held.key)
        grant = None if kept is None else kept.meta.grant
        if grant is not None and not held.transaction:
            held = Held(held.key, held.id, held.token, grant.transaction)
        return (await self.checked(held, None, None)).meta

    async def checked(self, held: Held, if_version: int | None, if_etag: str | None) -> Kept:
        """The key, if the caller holds it and saw this version of it; what this process remembers is asked first."""
        kept = self._store.mine(held.key, held.id)
        for fresh in (kept is None, True):
            kept = await self._store.read(held.key) if fresh or kept is None else kept
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
        kept = kept if kept is not None else self._store.mine(held.key, held.id)
        for _ in range(RACES_MAX):
            at = await self.now()
            if kept is None or self._refused(kept, held, at):
                kept = await self.checked(held, None, None)
                at = await self.now()
            wanted = change(kept.meta, at)
            if wanted is None:
                return Changed(kept.meta, kept.meta)
            stored = await self._store.store(held.key, kept, wanted, entry_stays=entry_stays)
            if stored is not None:
                return Changed(kept.meta, stored.meta)
            kept = None
        raise StoreUnavailable(
            f"{held.key!r} changed under every one of {RACES_MAX} tries", do="see what else writes there"
        )

    async def _stage(self, held: Held, change: Change, *, enlisted: bool = False) -> Changed:
        """A change that stages something. A key of an explicit transaction is written down there before."""

        def checked(meta: Meta, at: datetime) -> Meta | None:
            if meta.grant is not None and meta.grant.explicit and not enlisted:
                raise NotEnlisted(meta.grant)
            return change(meta, at)

        try:
            return await self._change(held, checked)
        except NotEnlisted as found:  # from the first, or since somebody joined its transaction a moment ago
            await self.part.enlist(held.key, found.grant)
            enlisted = True
            return await self._change(held, checked)

    def _explicit(self, held: Held) -> Grant | None:
        kept = self._store.mine(held.key, held.id)
        grant = None if kept is None else kept.meta.grant
        return grant if grant is not None and grant.explicit else None

    def _refused(self, kept: Kept, held: Held, at: datetime) -> bool:
        try:
            rules.check_held(kept.meta, held, at, self.terms)
        except KeyRefused:
            return True
        return False

    async def _clear_if_over(self, key: str, kept: Kept | None) -> None:
        grant = None if kept is None else kept.meta.grant
        at = await self.now()
        if kept is None or grant is None or not rules.over(grant, at, self.terms):
            return
        if await self.clear(key, kept, at) is not None:
            await self.afterwards.add(self.clean(key, grant.token))
