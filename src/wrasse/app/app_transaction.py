"""`async with app.transaction() as change`: several keys that change together or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import TracebackType

from wrasse.clock import Clock
from wrasse.leases.operations import Operations
from wrasse.leases.transact import transact
from wrasse.leases.xid import Xids


class AppTransaction:
    """A transaction of a program. `change.hold(key)` takes a key into it; it is committed when the block ends well."""

    def __init__(
        self,
        leases: Callable[[], Awaitable[Operations]],
        clock: Clock,
        owner: str,
        ttl: timedelta,
        wait: timedelta | None,
        namespace: str,
    ) -> None:
        self._leases, self._clock = leases, clock
        self._asked = (owner, ttl, wait, namespace)
        self._transaction: transact | None = None

    async def __aenter__(self) -> transact:
        owner, ttl, wait, namespace = self._asked
        id = Xids(self._clock).unmarked()
        self._transaction = transact(
            await self._leases(), id, owner, ttl, self._clock, namespace=namespace, wait=wait
        )
        return await self._transaction.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._transaction is not None, "left before it was entered"
        await self._transaction.__aexit__(kind, error, traceback)
