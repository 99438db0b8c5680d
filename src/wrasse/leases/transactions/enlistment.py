"""How a key takes part in a transaction: enlisted before it stages, settled before its lease is cleared.

Carrying a decision out on a key is one conditional write of its record. It is done under whichever lease enlisted the
key, also past its end, and never under another: doing it twice, or from several processes, changes nothing more.

A transaction that an acquire made up by itself can be joined: then it is an explicit one for its first key, too.
Such an id carries a mark, so that an id which a client made is known as such and costs nothing. The key is known to the
process that granted its lease. Elsewhere it is looked for among the leases of the namespace, then of the others; a
process that cannot be sure to have seen all of them refuses, rather than let one of two keys be committed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.leases.cleanup import LeaseCleanup
from wrasse.leases.core import Changed, leases_in
from wrasse.leases.lease import KeyRecord, Lease, cleared, committed, decode_listed, released
from wrasse.leases.names import DEFAULT_NAMESPACE
from wrasse.leases.store import RACES_MAX, KeyStore, Recent, contended
from wrasse.leases.transactions.log import TransactionLog
from wrasse.leases.transactions.states import Decision, Participant, enlisted_lease
from wrasse.leases.xid import is_marked
from wrasse.ports.namespaces import Namespaces
from wrasse.ports.page import pages
from wrasse.ports.records import Collection, Records

LOOKED_MAX = 1_000  # leases
NAMESPACES_MAX = 100
PAGE = 100
AHEAD = timedelta(days=36_500)  # further than any lease lasts


class InTransaction(Exception):
    """The key cannot be given back alone: its lease belongs to a transaction that may have other keys."""


class NotEnlisted(Exception):
    """The key would stage something, and its transaction does not know of it yet."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self.lease = lease


class EnlistedKeys:
    """The keys of one namespace, as transactions see them."""

    __slots__ = ("_cleanup", "_namespace", "_store", "_transaction_log")

    def __init__(self, namespace: str, store: KeyStore, cleanup: LeaseCleanup, transaction_log: TransactionLog) -> None:
        self._namespace, self._store, self._cleanup, self._transaction_log = namespace, store, cleanup, transaction_log

    async def enlist(self, key: str, lease: Lease) -> None:
        """Writes the key down in its transaction. Refused once that is decided."""
        who = Participant(self._namespace, key, lease.token)
        await self._transaction_log.enlist(lease.transaction, (who,), lease.expires_at, await self._store.now())

    async def lease(self, key: str, transaction: str, token: int) -> Lease | None:
        """The lease through which a key takes part now; it may have ended."""
        kept = await self._store.read(key)
        return enlisted_lease(kept, transaction, token)

    async def carry_out(self, key: str, transaction: str, token: int, state: Decision) -> KeyRecord | None:
        """Commits what the key has staged, or throws it away, and gives the key back. None: it takes no part, or no
        longer."""
        assert state is not Decision.PENDING, "only a decision is carried out"
        kept = self._store.remembered(key)
        if kept is None or enlisted_lease(kept, transaction, token) is None:
            kept = await self._store.read(key)  # what is remembered is no proof that there is nothing to do
        for _ in range(RACES_MAX):
            lease = None if kept is None else enlisted_lease(kept, transaction, token)
            if kept is None or lease is None:
                return None
            after = self._after(kept, lease, state, await self._store.now())
            stored = await self._store.store(key, after, entry_stays=True)
            if stored is not None:
                await self._cleanup.background.add(self._cleanup.clean_up(key, lease.id, Changed(kept, stored)))
                return stored
            kept = await self._store.read(key)
        raise contended(repr(key))

    async def may_clear(self, key: str, kept: KeyRecord) -> bool:
        """Whether a lease that has ended may be cleared with what is staged under it. A pending transaction is rolled
        back first; what was decided for a commit is committed here, and there is nothing left to clear."""
        lease = kept.lease
        if lease is None or not lease.explicit:
            return True
        state = await self._transaction_log.settle(lease.transaction)
        if state is not Decision.COMMIT or kept.staged is None:
            return True
        await self.carry_out(key, lease.transaction, lease.token, Decision.COMMIT)
        return False

    async def join(self, key: str, transaction: str) -> bool:
        """Makes a transaction that the key has alone an explicit one, which other keys may join. False if the key is
        not in it, or no longer."""
        for _ in range(RACES_MAX):
            kept = await self._store.read(key)
            lease = None if kept is None else enlisted_lease(kept, transaction, 0)
            if kept is None or lease is None:
                return False
            if lease.explicit:
                return True
            if kept.staged is not None:
                # Before the record says so: who sees that it does must find the key among those that take part.
                await self.enlist(key, lease)
            if await self._store.store(key, replace(kept, lease=replace(lease, explicit=True))) is not None:
                return True
        raise contended(repr(key))

    def _after(self, record: KeyRecord, lease: Lease, state: Decision, at: datetime) -> KeyRecord:
        # A rollback is as a lease that ended by itself: its holder, who may not know yet, is told when it asks.
        back = cleared(record, at, released(record, at).look_at)
        after = committed(record, at) if state is Decision.COMMIT else back
        return self._cleanup.given_back(lease.id, record, after, at)


class FirstKeyFinder:
    """Finds the first key of a transaction that was made here or elsewhere."""

    def __init__(
        self,
        parts: Callable[[str], EnlistedKeys],
        records: Callable[[Collection], Records],
        clock: Clock,
        namespaces: Namespaces | None,
    ) -> None:
        self._parts, self._records, self._clock, self._namespaces = parts, records, clock, namespaces
        self._made: Recent[tuple[str, str]] = Recent()

    def made(self, transaction: str, namespace: str, key: str) -> None:
        """This id was made up for this key."""
        self._made.note(transaction, (namespace, key))

    async def join(self, transaction: str, namespace: str) -> None:
        """Makes it explicit for its first key, if it has one and was not explicit from the beginning."""
        where = self._made.get(transaction)
        if where is None and is_marked(transaction):
            where = await self._search(transaction, namespace or DEFAULT_NAMESPACE)
        if where is not None:
            await self._parts(where[0]).join(where[1], transaction)

    async def _search(self, transaction: str, first: str) -> tuple[str, str] | None:
        left = LOOKED_MAX
        for namespace in [first, *await self._others(first)]:
            due = partial(self._records(leases_in(namespace)).due, self._clock.now() + AHEAD, limit=PAGE)
            async for page in pages(due):
                for record in page:
                    if enlisted_lease(decode_listed(record), transaction, 0) is not None:
                        return namespace, record.key
                left -= len(page)
                if page.more and left <= 0:
                    raise _too_many(transaction)
        return None

    async def _others(self, first: str) -> list[str]:
        if self._namespaces is None:
            return []
        page = await self._namespaces.page(None, NAMESPACES_MAX)
        if page.more:
            raise _too_many("")
        return [name for name in page if name != first]


def _too_many(transaction: str) -> UsageError:
    return UsageError(
        f"the transaction {transaction} was made by another process, and there are too many leases to find its key",
        do="name a transaction of your own in every acquire, or ask the process that granted the first one",
    )
