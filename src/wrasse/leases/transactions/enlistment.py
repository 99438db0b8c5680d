"""Enlistment of keys in transactions: a key is enlisted before it stages, and its decision precedes clearing its lease.

A decision is carried out on a key by one conditional write of its record, under the lease that enlisted it, also after
its end, and never under another: doing it twice, or from several processes, has no further effect.

An acquire without a transaction generates a transaction id for its key. When another key joins that id, the transaction
becomes explicit for its first key too. Generated ids carry a mark, so that an id made by a client needs no search. The
process that granted the first lease has its key cached. Other processes search the leases of the namespace, then of the
others; a process that cannot search all of them refuses, rather than let one of two keys be committed alone.
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
from wrasse.leases.names import DEFAULT_NAMESPACE, is_marked
from wrasse.leases.store import RACES_MAX, KeyStore, Recent, contended
from wrasse.leases.transactions.log import TransactionLog
from wrasse.leases.transactions.states import Decision, Participant, enlisted_lease
from wrasse.ports.page import pages
from wrasse.ports.records import Collection, Namespaces, Records

SEARCHED_MAX = 1_000  # leases
NAMESPACES_MAX = 100
PAGE = 100
AHEAD = timedelta(days=36_500)  # further than any lease lasts


class InTransaction(Exception):
    """The key cannot be released alone: its lease belongs to a transaction that may have other keys."""


class NotEnlisted(Exception):
    """The key is about to stage something, but is not enlisted in its transaction."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self.lease = lease


class EnlistedKeys:
    """The enlisted keys of one namespace."""

    __slots__ = ("_cleanup", "_namespace", "_store", "_transaction_log")

    def __init__(self, namespace: str, store: KeyStore, cleanup: LeaseCleanup, transaction_log: TransactionLog) -> None:
        self._namespace, self._store, self._cleanup, self._transaction_log = namespace, store, cleanup, transaction_log

    async def enlist(self, key: str, lease: Lease) -> None:
        """Enlists the key in its transaction. Refused once that is decided."""
        who = Participant(self._namespace, key, lease.token)
        await self._transaction_log.enlist(lease.transaction, (who,), lease.expires_at, await self._store.now())

    async def lease(self, key: str, transaction: str, token: int) -> Lease | None:
        """The lease through which a key is enlisted now; it may have expired."""
        record = await self._store.read(key)
        return enlisted_lease(record, transaction, token)

    async def carry_out(self, key: str, transaction: str, token: int, state: Decision) -> KeyRecord | None:
        """Commits or discards what the key has staged, and releases it. None: it is not enlisted, or no longer."""
        assert state is not Decision.PENDING, "only a decision is carried out"
        record = self._store.cached(key)
        if record is None or enlisted_lease(record, transaction, token) is None:
            record = await self._store.read(key)  # the cached record may be stale
        for _ in range(RACES_MAX):
            lease = None if record is None else enlisted_lease(record, transaction, token)
            if record is None or lease is None:
                return None
            after = self._after(record, lease, state, await self._store.now())
            stored = await self._store.store(key, after, entry_stays=True)
            if stored is not None:
                await self._cleanup.background.add(self._cleanup.clean_up(key, lease.id, Changed(record, stored)))
                return stored
            record = await self._store.read(key)
        raise contended(repr(key))

    async def may_clear(self, key: str, record: KeyRecord) -> bool:
        """Whether an expired lease may be cleared with what is staged under it. A pending transaction is rolled back
        first; after a commit decision the key is committed here, and nothing is left to clear."""
        lease = record.lease
        if lease is None or not lease.explicit:
            return True
        state = await self._transaction_log.settle(lease.transaction)
        if state is not Decision.COMMIT or record.staged is None:
            return True
        await self.carry_out(key, lease.transaction, lease.token, Decision.COMMIT)
        return False

    async def join(self, key: str, transaction: str) -> bool:
        """Makes the transaction of a single key explicit, so that other keys may join. False if the key is not in it,
        or no longer."""
        for _ in range(RACES_MAX):
            record = await self._store.read(key)
            lease = None if record is None else enlisted_lease(record, transaction, 0)
            if record is None or lease is None:
                return False
            if lease.explicit:
                return True
            if record.staged is not None:
                # Enlisted before the record says so: a process that reads `explicit` must find the key enlisted.
                await self.enlist(key, lease)
            if await self._store.store(key, replace(record, lease=replace(lease, explicit=True))) is not None:
                return True
        raise contended(repr(key))

    def _after(self, record: KeyRecord, lease: Lease, state: Decision, at: datetime) -> KeyRecord:
        # Recorded like an expired lease, so that a later commit by its holder is refused.
        back = cleared(record, at, released(record, at).recheck_at)
        after = committed(record, at) if state is Decision.COMMIT else back
        return self._cleanup.released_record(lease.id, record, after, at)


class FirstKeyFinder:
    """Finds the first key of a transaction generated here or by another process."""

    def __init__(
        self,
        enlisted_keys: Callable[[str], EnlistedKeys],
        records: Callable[[Collection], Records],
        clock: Clock,
        namespaces: Namespaces | None,
    ) -> None:
        self._enlisted_keys, self._records, self._clock, self._namespaces = enlisted_keys, records, clock, namespaces
        self._generated: Recent[tuple[str, str]] = Recent()

    def made(self, transaction: str, namespace: str, key: str) -> None:
        """This id was generated for this key."""
        self._generated.note(transaction, (namespace, key))

    async def join(self, transaction: str, namespace: str) -> None:
        """Makes the transaction explicit for its first key, if it has one and was generated."""
        where = self._generated.get(transaction)
        if where is None and is_marked(transaction):
            where = await self._find_first_key(transaction, namespace or DEFAULT_NAMESPACE)
        if where is not None:
            await self._enlisted_keys(where[0]).join(where[1], transaction)

    async def _find_first_key(self, transaction: str, first: str) -> tuple[str, str] | None:
        left = SEARCHED_MAX
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
        f"the transaction {transaction} was generated by another process, and there are too many leases to find it",
        do="name a transaction of your own in every acquire, or use the process that granted the first one",
    )
