"""Changing several keys together, for as long as something takes.

    async with transact(leases, id, owner, ttl, clock) as change:
        mine, yours = await change.lease_all("accounts/a", "accounts/b")
        await mine.save(mine.state - 10)           # staged; nobody else sees it
        await yours.save(yours.state + 10)
    # committed here, both or neither; a body that raises changes nothing

Every lease is renewed by itself; when one is lost, the body is cancelled and everything is rolled back. LeaseLost says
that nothing was changed. StoreUnavailable at the end names the transaction: what became of it can be asked later.
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

WAIT = timedelta(seconds=30)  # two that wait for each other's keys must not wait for ever
DECIDE_MAX = 15.0  # seconds that a store which does not answer is asked for the decision


class transact:
    """The context manager, a verb like asyncio.timeout, and the keys of one transaction. `id` is its name, by which
    others can ask what became of it. `wait`: how long to wait for each key, None for ever."""

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
        self._held: list[LeasedKey] = []

    async def __aenter__(self) -> Self:
        self._operations = await self._opening() if callable(self._opening) else self._opening
        self._keeper = Keeper()
        return self

    async def lease(self, key: str, *, namespace: str | None = None) -> LeasedKey:
        """Takes one more key into the transaction and waits for it as long as the transaction waits for keys."""
        if self._keeper.ending:
            raise UsageError(f"the transaction {self.id} is over", do="lease every key inside the block")
        held = await acquire_held(
            self._operations,
            key,
            self._owner,
            self._ttl,
            self._clock,
            namespace=self._namespace if namespace is None else namespace,
            wait=self._wait,
            transaction=self.id,
        )
        self._held.append(held)
        self._keeper.keep(held)
        await held.load()
        return held

    async def lease_all(self, *keys: str) -> list[LeasedKey]:
        """Takes several keys, always in one order, so that two transactions never wait for each other; gives them in
        the order in which they were asked for."""
        held = {key: await self.lease(key) for key in sorted(set(keys))}
        return [held[key] for key in keys]

    async def _end(self, *, commit: bool) -> Decision | None:
        """Commits or rolls back, and gives every key back; what counts. None: there was nothing to decide."""
        await self._keeper.stop()
        state: Decision | None = None
        try:
            if any(held.staged for held in self._held):
                state = await self._decided(commit=commit)
        finally:
            # A key that staged nothing is only given back. If it may have, after all, that must not be a commit.
            for held in self._held:
                if not held.lost and not (held.staged and state is not None):
                    await self._give_back(held, commit=state is Decision.COMMIT)
        return state

    async def _decided(self, *, commit: bool) -> Decision:
        give_up = self._clock.monotonic() + (DECIDE_MAX if commit else RELEASE_MAX)
        while True:
            try:
                return await self._operations.decide(self.id, commit=commit)
            except StoreUnavailable as error:
                if self._clock.monotonic() + RETRY > give_up:
                    raise StoreUnavailable(
                        f"whether the transaction {self.id} was {'committed' if commit else 'rolled back'} is not "
                        f"known: {error.message}",
                        do=f"ask later with `wrasse leases transaction {self.id}`; all of its keys have it, or none",
                    ) from error
            await asyncio.sleep(RETRY)

    async def _give_back(self, held: LeasedKey, *, commit: bool) -> None:
        with contextlib.suppress(KeyRefused, StoreUnavailable, TimeoutError):  # it ends by itself
            async with asyncio.timeout(RELEASE_MAX):
                await self._operations.release(held.lease, commit=commit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        commit = error is None and self._keeper.lost is None
        state = None
        if commit:
            state = await self._end(commit=True)
        else:
            with contextlib.suppress(StoreUnavailable):  # it is rolled back once its leases have ended
                state = await self._end(commit=False)
        if commit and state is Decision.ROLLBACK:
            raise LeaseLost(
                f"the transaction {self.id} was rolled back before its commit: nothing was changed",
                do="a lease of it ended, or somebody decided so; do it again in a new transaction",
            )
        self._keeper.raise_if_lost(
            error,
            f"ended while the transaction {self.id} needed it",
            "nothing was changed; do it again in a new transaction",
        )
