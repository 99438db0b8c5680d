"""A context manager that changes several keys in one transaction.

    async with transact(leases, id, owner, ttl, clock) as change:
        mine, yours = await change.lease_all("accounts/a", "accounts/b")
        await mine.save(mine.state - 10)           # staged; invisible to others
        await yours.save(yours.state + 10)
    # committed here, both or neither; a body that raises changes nothing

Every lease is renewed separately; when one is lost, the body is cancelled and everything is rolled back. LeaseLost
means that nothing was changed. StoreUnavailable at the end names the transaction, so that its outcome can be queried
later.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from types import TracebackType
from typing import Self

from wrasse.clock import Clock
from wrasse.errors import LeaseLost, StoreUnavailable, UsageError
from wrasse.leases.lease_scope import RELEASE_MAX, RETRY, Keeper, LeasedKey, acquire_held
from wrasse.leases.operations import Opening, Operations
from wrasse.leases.refusal import KeyRefused
from wrasse.leases.transactions.states import Decision

WAIT = timedelta(seconds=30)  # resolves deadlocks between two transactions that wait for each other's keys
DECIDE_MAX = 15.0  # seconds in which the decision is retried while the store is unavailable


class transact:
    """The context manager, in lower case like asyncio.timeout, and the keys of one transaction. `id` is its name, by
    which other processes can query its outcome. `wait`: how long to wait for each key, None for ever."""

    def __init__(
        self,
        operations: Operations | Opening,
        id: str,
        owner: str,
        ttl: timedelta,
        clock: Clock,
        *,
        namespace: str = "",
        wait: timedelta | None = WAIT,
    ) -> None:
        self.id = id
        self._opening, self._clock, self._namespace = operations, clock, namespace
        self._owner, self._ttl, self._wait = owner, ttl, wait
        self._leased: list[LeasedKey] = []

    async def __aenter__(self) -> Self:
        self._operations = await self._opening() if callable(self._opening) else self._opening
        self._keeper = Keeper()
        return self

    async def lease(self, key: str, *, namespace: str | None = None) -> LeasedKey:
        """Adds a key to the transaction; waits for it up to `wait`."""
        if self._keeper.ending:
            raise UsageError(f"the transaction {self.id} is over", do="lease every key inside the block")
        leased = await acquire_held(
            self._operations,
            key,
            self._owner,
            self._ttl,
            self._clock,
            namespace=self._namespace if namespace is None else namespace,
            wait=self._wait,
            transaction=self.id,
        )
        self._leased.append(leased)
        self._keeper.keep(leased)
        await leased.load()
        return leased

    async def lease_all(self, *keys: str) -> list[LeasedKey]:
        """Leases several keys, always in sorted order, so that two transactions never wait for each other; returns them
        in the order of the arguments."""
        leased = {key: await self.lease(key) for key in sorted(set(keys))}
        return [leased[key] for key in keys]

    async def _end(self, *, commit: bool) -> Decision | None:
        """Commits or rolls back, and releases every key; returns the decision. None: there was nothing to decide."""
        await self._keeper.stop()
        state: Decision | None = None
        try:
            if any(leased.staged for leased in self._leased):
                state = await self._decide_with_retry(commit=commit)
        finally:
            # A key that staged nothing is only released; without a commit decision that must not commit.
            for leased in self._leased:
                if not leased.lost and not (leased.staged and state is not None):
                    await self._release(leased, commit=state is Decision.COMMIT)
        return state

    async def _decide_with_retry(self, *, commit: bool) -> Decision:
        give_up = self._clock.monotonic() + (DECIDE_MAX if commit else RELEASE_MAX)
        while True:
            try:
                return await self._operations.decide(self.id, commit=commit)
            except StoreUnavailable as error:
                if self._clock.monotonic() + RETRY > give_up:
                    raise StoreUnavailable(
                        f"it is unknown whether the transaction {self.id} was "
                        f"{'committed' if commit else 'rolled back'}: {error.message}",
                        do=f"ask later with `wrasse leases transaction {self.id}`; all of its keys have it, or none",
                    ) from error
            await asyncio.sleep(RETRY)

    async def _release(self, leased: LeasedKey, *, commit: bool) -> None:
        with contextlib.suppress(KeyRefused, StoreUnavailable, TimeoutError):  # the lease expires
            async with asyncio.timeout(RELEASE_MAX):
                await self._operations.release(leased.lease, commit=commit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        commit = error is None and self._keeper.lost is None
        state = None
        if commit:
            state = await self._end(commit=True)
        else:
            with contextlib.suppress(StoreUnavailable):  # it is rolled back once its leases have expired
                state = await self._end(commit=False)
        if commit and state is Decision.ROLLBACK:
            raise LeaseLost(
                f"the transaction {self.id} was rolled back before its commit: nothing was changed",
                do="one of its leases ended, or another process decided so; do it again in a new transaction",
            )
        self._keeper.raise_if_lost(
            error,
            f"ended while the transaction {self.id} needed it",
            "nothing was changed; do it again in a new transaction",
        )
