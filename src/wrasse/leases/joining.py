"""Joining a transaction that an acquire made up by itself: from then on it is an explicit one for its first key, too.

Such an id carries a mark, so that an id which a client made is known as such and costs nothing. The key is known to the
process that granted its lease. Elsewhere it is looked for among the leases of the namespace, then of the others; who
cannot be sure to have seen all of them refuses, rather than let one of two keys be committed alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.leases.keys import Keys
from wrasse.leases.lessor import leases_in
from wrasse.leases.meta import decode_listed
from wrasse.leases.names import DEFAULT_NAMESPACE
from wrasse.leases.transaction import takes_part
from wrasse.leases.xid import is_marked
from wrasse.ports.namespaces import Namespaces
from wrasse.ports.records import Collection, Records

MADE_MAX = 10_000
LOOKED_MAX = 1_000  # leases
NAMESPACES_MAX = 100
PAGE = 100
AHEAD = timedelta(days=36_500)  # further than any lease lasts


class Joining:
    """Finds the first key of a transaction that was made here or elsewhere."""

    def __init__(
        self,
        keys: Callable[[str], Keys],
        records: Callable[[Collection], Records],
        clock: Clock,
        namespaces: Namespaces | None,
    ) -> None:
        self._keys, self._records, self._clock, self._namespaces = keys, records, clock, namespaces
        self._made: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def made(self, transaction: str, namespace: str, key: str) -> None:
        """This id was made up for this key."""
        self._made[transaction] = (namespace, key)
        if len(self._made) > MADE_MAX:
            self._made.popitem(last=False)

    async def join(self, transaction: str, namespace: str) -> None:
        """Makes it explicit for its first key, if it has one and was not explicit from the beginning."""
        where = self._made.get(transaction)
        if where is None and is_marked(transaction):
            where = await self._search(transaction, namespace or DEFAULT_NAMESPACE)
        if where is not None:
            await self._keys(where[0]).part.join(where[1], transaction)

    async def _search(self, transaction: str, first: str) -> tuple[str, str] | None:
        left = LOOKED_MAX
        for namespace in [first, *await self._others(first)]:
            after: str | None = None
            while True:
                page = await self._records(leases_in(namespace)).due(self._clock.now() + AHEAD, after, PAGE)
                for record in page:
                    kept = decode_listed(record)
                    if kept is not None and takes_part(kept.meta, transaction, 0) is not None:
                        return namespace, record.key
                left -= len(page)
                after = page.cursor
                if after is None:
                    break
                if left <= 0:
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
