"""Context managers that lease one key, or several keys in one transaction, for the length of a block.

    options = LeaseOptions("me", ttl)
    async with lease_key(leases, "orders/42", options, clock) as lease:
        lease.state["paid"] = True         # the committed state, decoded
        await lease.save(lease.state)      # staged; committed when the block ends without an error

    async with transact(leases, id, options, clock) as change:
        mine, yours = await change.lease_all("accounts/a", "accounts/b")
        await mine.save(mine.state - 10)           # staged; invisible to others
        await yours.save(yours.state + 10)         # committed at the end of the block, both or neither

Each lease is renewed at a third of its time. When one is lost (another holder has the key, or it could not be renewed
before it ended on the local monotonic clock) the body is cancelled and LeaseLost is raised instead, so that no work
continues under an expired lease. Writes of the body to other systems should still carry `lease.token`: the lease avoids
duplicate work, the token protects data. If the body raises, what was staged is rolled back; a commit that comes too
late raises LeaseLost. LeaseLost from a transaction means that nothing was changed. StoreUnavailable at its end names
the transaction, so that its outcome can be queried later.

`Operations` are those on leased keys: `Leases` in this process, `LeaseClient` over HTTP. Same methods, same errors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import msgspec

from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.errors import LeaseLost, StoreUnavailable, UsageError
from wrasse.leases.attachments import CONTENT_TYPE, FilePieces, Sent
from wrasse.leases.lease import Attachment, KeyRecord, KeyRefused, Lease, Refusal
from wrasse.leases.transactions.states import Decision
from wrasse.ports.objects import Data

if TYPE_CHECKING:
    from wrasse.leases.attachments import Attachments
    from wrasse.leases.attachments_client import RemoteAttachments
    from wrasse.leases.client import LeaseClient
    from wrasse.leases.leases import Leases

Operations: TypeAlias = "Leases | LeaseClient"
Opening: TypeAlias = Callable[[], "Awaitable[Operations]"]  # opens them when they are first needed
AttachmentOperations: TypeAlias = "Attachments | RemoteAttachments"
RETRY = 0.25  # seconds between two attempts to renew while the store is unavailable
RELEASE_MAX = 5.0  # seconds; a lease that cannot be released expires
OVER = (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED, Refusal.FENCING_MISMATCH)
DECIDE_MAX = 15.0  # seconds in which the decision is retried while the store is unavailable


class Grantor(Protocol):
    """Renews and releases leases: a LeaseManager, or keys with state."""

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease | None:
        """Extends the lease to `ttl` from now; None or KeyRefused if it has ended."""
        ...

    async def release(self, lease: Lease, *, commit: bool) -> object:
        """Releases it; false if it had ended."""
        ...

    def term(self, lease: Lease) -> float:
        """The local monotonic time until which its holder may rely on it."""
        ...


class RenewedLease:
    """A lease that is renewed. Check `alive` before every step that needs it."""

    def __init__(self, grantor: Grantor, lease: Lease, ttl: timedelta, clock: Clock) -> None:
        self._grantor = grantor
        self._ttl = ttl
        self._clock = clock
        self._ends = grantor.term(lease)
        self.lease = lease
        self.lost = False

    @property
    def key(self) -> str:
        """The leased key."""
        return self.lease.key

    @property
    def owner(self) -> str:
        """Its holder."""
        return self.lease.owner

    @property
    def token(self) -> int:
        """The fencing token: constant during the lease; the next lease has a higher one."""
        return self.lease.token

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return self.lease.expires_at

    @property
    def alive(self) -> bool:
        """Whether the lease is still valid, by monotonic time and without a request."""
        return not self.lost and self._seconds_left() > 0

    async def keep(self) -> None:
        """Renews until the lease is lost; then returns."""
        try:
            await self._renew()
        except Exception:
            self.lost = True
            raise
        self.lost = True

    async def _renew(self) -> None:
        pause = third = self._renew_interval()
        while True:
            await asyncio.sleep(max(0.0, min(pause, self._seconds_left())))
            renewed = None
            pause = min(RETRY, third)
            if self._seconds_left() > 0:
                with contextlib.suppress(StoreUnavailable, TimeoutError):
                    async with asyncio.timeout(self._seconds_left()):
                        renewed = await self._renew_once()
                        if renewed is None:
                            return
            if renewed is not None:
                self.lease, self._ends = renewed, self._grantor.term(renewed)
                pause = third = self._renew_interval()
            elif self._seconds_left() <= 0:
                return

    async def _renew_once(self) -> Lease | None:
        try:
            return await self._grantor.renew(self.lease, self._ttl)
        except KeyRefused as refused:
            if refused.code in OVER:
                return None
            raise

    def _renew_interval(self) -> float:
        """A third of the granted time, which may be less than was requested."""
        return min(self._ttl.total_seconds(), self._seconds_left()) / 3

    def _seconds_left(self) -> float:
        return self._ends - self._clock.monotonic()

    async def release(self) -> bool:
        """Releases the lease; False if it had ended. If the store is unavailable, the lease expires."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_MAX):
                return bool(await self._grantor.release(self.lease, commit=False))
        return False


@contextlib.asynccontextmanager
async def renewing(holding: RenewedLease) -> AsyncIterator[RenewedLease]:
    """Renews a lease during a body that checks `alive` itself, and releases it at the end."""
    keeper = asyncio.create_task(holding.keep())
    try:
        yield holding
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
        if not keeper.cancelled():
            keeper.exception()  # retrieved and ignored: it ended the lease, and `alive` is False
        if not holding.lost:
            await holding.release()


class LeasedKey(RenewedLease):
    """A leased key: its token, its state, and methods to change it."""

    def __init__(self, operations: Operations, record: KeyRecord, ttl: timedelta, clock: Clock) -> None:
        super().__init__(operations, record.granted, ttl, clock)
        self._operations, self._empty = operations, record.state is None
        self.state: Any = None  # as committed last, or saved since; None if there is none
        self.staged = False

    async def load(self) -> None:
        """Reads the state of a key that was just leased; without a request if the acquire showed that there is none."""
        if not self._empty:
            seen = await self._operations.read(self.lease)
            self.state = None if seen is None else msgspec.json.decode(seen.data)

    async def save(self, state: Any) -> int:
        """Stages a new state, committed when the block ends without an error; returns the version after the commit."""
        try:
            data = msgspec.json.encode(state)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the state cannot be written as JSON: {error}", do="use dicts, lists, texts and numbers"
            ) from None
        version, _ = await self._operations.update(self.lease, data)
        self.state, self.staged = state, True
        return version

    async def remove(self) -> bool:
        """Stages the removal of the state; False if there is none."""
        removed = await self._operations.remove(self.lease) is not None
        self.state, self.staged = None, self.staged or removed
        return removed

    async def attach(self, name: str, data: Data | Path, *, content_type: str = CONTENT_TYPE) -> Attachment:
        """Stages a file beside the state: bytes, a path, or chunks. It is committed when the block ends without an
        error, and only this holder sees it before."""
        pieces = FilePieces(data) if isinstance(data, Path) else data
        attached = await self._files.attach(self.lease, Sent(name, content_type), pieces)
        self.staged = True
        return attached.attachment

    async def attachments(self) -> Sequence[Attachment]:
        """The attachments, including staged changes, in the order of names."""
        return await self._files.list(self.lease)

    async def fetch(self, name: str) -> AsyncGenerator[bytes]:
        """The bytes of an attachment as a stream: `async for piece in lease.fetch(name)`."""
        async with contextlib.aclosing((await self._files.fetch(self.lease, name=name)).chunks) as chunks:
            async for chunk in chunks:
                yield chunk

    async def detach(self, name: str) -> bool:
        """Stages the removal of an attachment; False if there is none of this name."""
        count, _ = await self._files.remove(self.lease, name=name)
        self.staged = self.staged or bool(count)
        return bool(count)

    @property
    def _files(self) -> AttachmentOperations:
        return self._operations.attachments


class Keeper:
    """Renews the leases of the current task, and cancels the task when one of them is lost."""

    def __init__(self) -> None:
        body = asyncio.current_task()
        assert body is not None, "a lease needs a task"
        self._body, self._cancelling = body, body.cancelling()
        self._tasks: list[asyncio.Task[None]] = []
        self.lost: RenewedLease | None = None
        self._cause: Exception | None = None
        self.ending = False

    def keep(self, holding: RenewedLease) -> None:
        """Renews this lease as well."""
        self._tasks.append(asyncio.create_task(self._keep(holding)))

    async def stop(self) -> None:
        """Stops renewing."""
        self.ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def raise_if_lost(self, error: BaseException | None, what: str, do: str) -> None:
        """Called at the end of a body that ended with this error. As in asyncio.timeout, only our own cancellation
        becomes LeaseLost; a cancellation from outside is not changed."""
        if self.lost is None:
            return
        from_outside = self._body.uncancel() > self._cancelling
        cancelled = isinstance(error, asyncio.CancelledError)
        if not (cancelled and from_outside) and (cancelled or error is None):
            raise LeaseLost(f"the lease of {self.lost.key!r} {what}", do=do) from self._cause

    async def _keep(self, holding: RenewedLease) -> None:
        try:
            await holding.keep()
        except Exception as error:
            self._cause = error
        if self.lost is None and not self.ending:
            self.lost = holding
            self._body.cancel()


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """How keys are leased. `wait`: how long to wait for a key that another holder has, None for ever."""

    owner: str
    ttl: timedelta
    namespace: str = ""
    wait: timedelta | None = None


async def acquire_key(
    operations: Operations, key: str, options: LeaseOptions, clock: Clock, *, transaction: str = ""
) -> LeasedKey:
    """The leased key; LeaseLost if another holder had it for the whole wait."""
    owner, wait = options.owner, options.wait
    try:
        record = await operations.acquire(
            key, owner, namespace=options.namespace, ttl=options.ttl, wait=wait, transaction=transaction
        )
    except KeyRefused as refused:
        if refused.code is not Refusal.WAITING or wait is None:
            raise
        raise LeaseLost(
            f"another holder had the lease of {key!r} for all of {format_duration(wait)}",
            do="wait longer, see who has it, or lease several keys in one order everywhere, as lease_all does",
        ) from None
    return LeasedKey(operations, record, options.ttl, clock)


class lease_key:
    """The context manager for one key, in lower case like asyncio.timeout."""

    def __init__(self, operations: Operations | Opening, key: str, options: LeaseOptions, clock: Clock) -> None:
        self._opening, self._key, self._options, self._clock = operations, key, options, clock

    async def __aenter__(self) -> LeasedKey:
        self._operations = await self._opening() if callable(self._opening) else self._opening
        self._leased = await acquire_key(self._operations, self._key, self._options, self._clock)
        self._keeper = Keeper()
        self._keeper.keep(self._leased)
        try:
            await self._leased.load()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._leased

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leased = self._leased
        try:
            await self._keeper.stop()
        finally:
            if not leased.lost:
                await (self._commit() if error is None and leased.staged else leased.release())
        self._keeper.raise_if_lost(
            error,
            f"with token {leased.token} ended while it was needed",
            "do it again under a new lease; writes that carry the old token are refused",
        )

    async def _commit(self) -> None:
        try:
            await self._operations.release(self._leased.lease, commit=True)
        except KeyRefused as refused:
            if refused.code not in OVER:
                raise
            message = f"the lease of {self._leased.key!r} ended before its commit: nothing was changed"
            raise LeaseLost(message, do=refused.do) from refused


class transact:
    """The context manager for a transaction, in lower case like asyncio.timeout. `id` is its name, by which other
    processes can query its outcome. A limit to the wait resolves deadlocks of two transactions that wait for each
    other's keys."""

    def __init__(self, operations: Operations | Opening, id: str, options: LeaseOptions, clock: Clock) -> None:
        self.id = id
        self._opening, self._options, self._clock = operations, options, clock
        self._leased: list[LeasedKey] = []

    async def __aenter__(self) -> Self:
        self._operations = await self._opening() if callable(self._opening) else self._opening
        self._keeper = Keeper()
        return self

    async def lease(self, key: str, *, namespace: str | None = None) -> LeasedKey:
        """Adds a key to the transaction; waits for it up to `wait`."""
        if self._keeper.ending:
            raise UsageError(f"the transaction {self.id} is over", do="lease every key inside the block")
        options = self._options if namespace is None else replace(self._options, namespace=namespace)
        leased = await acquire_key(self._operations, key, options, self._clock, transaction=self.id)
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
