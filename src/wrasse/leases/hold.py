"""Holding a lease for as long as something takes.

    async with hold(lessor, "orders/42", owner, ttl, clock) as holding:
        ...                        # holding.token is the fencing token

The lease is renewed at a third of its time. When it is lost (changed hands, or could not be renewed before its term
ended on this host's monotonic clock) the body is cancelled and LeaseLost is raised in its place, so that nobody goes
on working under a lease that somebody else may hold. What the body writes should still carry the token: the lease
saves work, the token saves data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Protocol

from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.errors import LeaseLost, StoreUnavailable
from wrasse.leases.lease import Lease

RETRY = 0.25  # seconds between two tries to renew while the store does not answer
RELEASE_MAX = 5.0  # seconds; a lease that cannot be given back ends by itself


class Grantor(Protocol):
    """Who grants, renews and takes back: a Lessor, or keys with state under it."""

    async def acquire(self, key: str, owner: str, ttl: timedelta, *, wait: timedelta | None) -> Lease | None:
        """The lease, or None if somebody else held it for the whole wait."""
        ...

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease | None:
        """The same lease, `ttl` from now; None if it is over."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Gives it back; False if it was over."""
        ...

    def term(self, lease: Lease) -> float:
        """Our monotonic time until which its holder may rely on it."""
        ...


class Holding:
    """A lease that is kept alive. `alive` is what to ask before every step that needs it."""

    __slots__ = ("_clock", "_ends", "_lessor", "_ttl", "lease", "lost")

    def __init__(self, lessor: Grantor, lease: Lease, ttl: timedelta, clock: Clock) -> None:
        self._lessor = lessor
        self._ttl = ttl
        self._clock = clock
        self._ends = lessor.term(lease)
        self.lease = lease
        self.lost = False

    @property
    def key(self) -> str:
        """What is held."""
        return self.lease.key

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self.lease.owner

    @property
    def token(self) -> int:
        """The fencing token: it does not change while the lease is held, and the next holder's is higher."""
        return self.lease.token

    @property
    def until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return self.lease.until

    @property
    def alive(self) -> bool:
        """Whether the lease is still ours, by monotonic time and without asking anybody."""
        return not self.lost and self._left() > 0

    async def keep(self) -> None:
        """Renews until the lease is lost; then returns."""
        try:
            await self._renew()
        except Exception:
            self.lost = True
            raise
        self.lost = True

    async def _renew(self) -> None:
        pause = third = self._third()
        while True:
            await asyncio.sleep(max(0.0, min(pause, self._left())))
            renewed = None
            pause = min(RETRY, third)
            if self._left() > 0:
                with contextlib.suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(self._left()):
                        renewed = await self._lessor.renew(self.lease, self._ttl)
                        if renewed is None:
                            return
            if renewed is not None:
                self.lease, self._ends = renewed, self._lessor.term(renewed)
                pause = third = self._third()
            elif self._left() <= 0:
                return

    def _third(self) -> float:
        """A third of the time that was granted, which may be less than was asked for."""
        return min(self._ttl.total_seconds(), self._left()) / 3

    def _left(self) -> float:
        return self._ends - self._clock.monotonic()

    async def release(self) -> bool:
        """Gives the lease back; False if it was over. A store that does not answer lets it end by itself."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_MAX):
                return await self._lessor.release(self.lease)
        return False


@contextlib.asynccontextmanager
async def kept(holding: Holding) -> AsyncIterator[Holding]:
    """Keeps a lease alive around a body that asks `alive` itself, and gives it back at the end."""
    keeper = asyncio.create_task(holding.keep())
    try:
        yield holding
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
        if not keeper.cancelled():
            keeper.exception()  # whatever it was, it ended the lease, and `alive` has said so
        if not holding.lost:
            await holding.release()


class hold:
    """The context manager, a verb like asyncio.timeout. It waits for the key up to `wait` (None: for ever) and raises
    LeaseLost after that."""

    __slots__ = ("_asked", "_body", "_cancelling", "_cause", "_clock", "_holding", "_keeper", "_lessor", "_ours")

    def __init__(
        self,
        lessor: Grantor,
        key: str,
        owner: str,
        ttl: timedelta,
        clock: Clock,
        *,
        wait: timedelta | None = None,
    ) -> None:
        self._asked = (key, owner, ttl, wait)
        self._lessor = lessor
        self._clock = clock

    async def __aenter__(self) -> Holding:
        key, owner, ttl, wait = self._asked
        lease = await self._lessor.acquire(key, owner, ttl, wait=wait)
        if lease is None:
            assert wait is not None, "an acquire without end came back empty"
            raise LeaseLost(
                f"{key!r} was held by somebody else for all of {format_duration(wait)}",
                do="wait longer, or see who holds it",
            )
        body = asyncio.current_task()
        assert body is not None, "a lease is held by a task"
        self._body, self._cancelling = body, body.cancelling()
        self._ours = False
        self._cause: Exception | None = None
        self._holding = Holding(self._lessor, lease, ttl, self._clock)
        self._keeper = asyncio.create_task(self._keep())
        return self._holding

    async def _give_back(self, error: BaseException | None) -> None:
        """At the end of the body, which may have failed."""
        await self._holding.release()

    async def _keep(self) -> None:
        try:
            await self._holding.keep()
        except Exception as error:
            self._cause = error
        self._ours = True
        self._body.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keeper.cancel()
        try:
            await asyncio.wait([self._keeper])
        finally:
            if not self._holding.lost:
                await self._give_back(error)
        if not self._ours:
            return
        # As in asyncio.timeout: only our own cancellation becomes LeaseLost; one from outside goes on as it is.
        from_outside = self._body.uncancel() > self._cancelling
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and from_outside:
            return
        if cancelled or error is None:
            raise LeaseLost(
                f"the lease of {self._holding.key!r} with token {self._holding.token} ended while it was needed",
                do="do it again under a new lease; writes that carry the old token are refused",
            ) from self._cause
