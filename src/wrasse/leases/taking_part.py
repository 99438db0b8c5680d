"""How a key takes part in a transaction: enlisted before it stages, settled before its lease is cleared.

Carrying a decision out on a key is one conditional write of its record. It is done under whichever lease enlisted the
key, also past its end, and never under another: doing it twice, or from several processes, changes nothing more.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from wrasse.errors import StoreUnavailable
from wrasse.leases.book import Book
from wrasse.leases.key_store import KeyStore
from wrasse.leases.meta import Grant, Kept, Meta, cleared, committed, released
from wrasse.leases.tidying import Changed, Tidying
from wrasse.leases.transaction import Decision, Participant, takes_part

RACES_MAX = 16


class InTransaction(Exception):
    """The key cannot be given back alone: its lease belongs to a transaction that may have other keys."""


class NotEnlisted(Exception):
    """The key would stage something, and its transaction does not know of it yet."""

    def __init__(self, grant: Grant) -> None:
        super().__init__()
        self.grant = grant


class TakingPart:
    """The keys of one namespace, as transactions see them."""

    __slots__ = ("_book", "_namespace", "_store", "_tidying")

    def __init__(self, namespace: str, store: KeyStore, tidying: Tidying, book: Book) -> None:
        self._namespace, self._store, self._tidying, self._book = namespace, store, tidying, book

    async def enlist(self, key: str, grant: Grant) -> None:
        """Writes the key down in its transaction. Refused once that is decided."""
        who = Participant(self._namespace, key, grant.token)
        await self._book.enlist(grant.transaction, (who,), grant.until, await self._store.now())

    async def lease(self, key: str, transaction: str, token: int) -> Grant | None:
        """The lease through which a key takes part now; it may have ended."""
        kept = await self._store.read(key)
        return takes_part(None if kept is None else kept.meta, transaction, token)

    async def carry_out(self, key: str, transaction: str, token: int, state: Decision) -> Meta | None:
        """Commits what the key has staged, or throws it away, and gives the key back. None: it takes no part, or no
        longer."""
        assert state is not Decision.PENDING, "only a decision is carried out"
        kept = self._store.remembered(key)
        if kept is None or takes_part(kept.meta, transaction, token) is None:
            kept = await self._store.read(key)  # what is remembered is no proof that there is nothing to do
        for _ in range(RACES_MAX):
            grant = None if kept is None else takes_part(kept.meta, transaction, token)
            if kept is None or grant is None:
                return None
            stored = await self._store.store(key, kept, self._after(kept.meta, grant, state, await self._store.now()),
                                             entry_stays=True)  # fmt: skip
            if stored is not None:
                changed = Changed(kept.meta, stored.meta)
                await self._tidying.afterwards.add(self._tidying.tidy(key, grant.id, changed))
                return stored.meta
            kept = await self._store.read(key)
        raise StoreUnavailable(f"{key!r} changed under every one of {RACES_MAX} tries", do="see what else writes there")

    async def may_clear(self, key: str, kept: Kept) -> bool:
        """Whether a lease that has ended may be cleared with what is staged under it. A pending transaction is rolled
        back first; what was decided for a commit is committed here, and there is nothing left to clear."""
        grant = kept.meta.grant
        if grant is None or not grant.explicit:
            return True
        state = await self._book.settle(grant.transaction)
        if state is not Decision.COMMIT or kept.meta.staged is None:
            return True
        await self.carry_out(key, grant.transaction, grant.token, Decision.COMMIT)
        return False

    async def join(self, key: str, transaction: str) -> bool:
        """Makes a transaction that the key has alone an explicit one, which other keys may join. False if the key is
        not in it, or no longer."""
        for _ in range(RACES_MAX):
            kept = await self._store.read(key)
            grant = None if kept is None else takes_part(kept.meta, transaction, 0)
            if kept is None or grant is None:
                return False
            if grant.explicit:
                return True
            if kept.meta.staged is not None:
                # Before the record says so: who sees that it does must find the key among those that take part.
                await self.enlist(key, grant)
            if await self._store.store(key, kept, replace(kept.meta, grant=replace(grant, explicit=True))) is not None:
                return True
        raise StoreUnavailable(f"{key!r} changed under every one of {RACES_MAX} tries", do="see what else writes there")

    def _after(self, meta: Meta, grant: Grant, state: Decision, at: datetime) -> Meta:
        # A rollback is as a lease that ended by itself: its holder, who may not know yet, is told when it asks.
        back = cleared(meta, at, released(meta, at).look_at)
        after = committed(meta, at) if state is Decision.COMMIT else back
        return self._tidying.given_back(grant.id, meta, after, at)
