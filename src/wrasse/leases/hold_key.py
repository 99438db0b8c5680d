"""Holding a key with its state, for as long as something takes.

    async with hold_key(leases, "orders/42", owner, ttl, clock) as lease:
        lease.state["paid"] = True         # what was committed last, decoded
        await lease.save(lease.state)      # staged; committed when the block ends well

The lease is renewed by itself, and the body is cancelled when it is lost. A body that raises changes nothing: what was
staged is rolled back. A commit that came too late is told by LeaseLost, never in silence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from wrasse.clock import Clock
from wrasse.errors import LeaseLost, UsageError
from wrasse.leases.attachments import CONTENT_TYPE, Sent
from wrasse.leases.attachments_files import FilePieces
from wrasse.leases.hold import Holding, hold
from wrasse.leases.lease import Lease
from wrasse.leases.leases import Leased
from wrasse.leases.meta import Attachment
from wrasse.leases.operations import AttachmentOperations, Operations
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.ports.objects import Data

_OVER = (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED, Refusal.FENCING_MISMATCH)


class KeyGrantor:
    """Makes leased keys look like leases to `hold`."""

    def __init__(self, operations: Operations, namespace: str, transaction: str = "") -> None:
        self.operations, self.namespace, self.transaction = operations, namespace, transaction
        self.leased: Leased | None = None

    async def acquire(self, key: str, owner: str, ttl: timedelta, *, wait: timedelta | None) -> Lease | None:
        """The lease, or None if somebody else held the key for the whole wait."""
        try:
            leased = await self.operations.acquire(
                key, owner, namespace=self.namespace, ttl=ttl, wait=wait, transaction=self.transaction
            )
        except KeyRefused as refused:
            if refused.code is Refusal.WAITING:
                return None
            raise
        return self._noted(leased)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease | None:
        """The same lease, `ttl` from now; None if it is over."""
        leased = self.current
        try:
            return self._noted(await self.operations.renew(leased.namespace, leased.held, ttl))
        except KeyRefused as refused:
            if refused.code in _OVER:
                return None
            raise

    async def release(self, lease: Lease) -> bool:
        """Gives it back, and throws away what is staged; False if it was over."""
        leased = self.current
        return await self.operations.release(leased.namespace, leased.held, commit=False) is not None

    def term(self, lease: Lease) -> float:
        """Our monotonic time until which its holder may rely on it."""
        return self.operations.term(self.current)

    @property
    def current(self) -> Leased:
        """The lease as it was granted or renewed last."""
        assert self.leased is not None, "nothing is held before the acquire"
        return self.leased

    def _noted(self, leased: Leased) -> Lease:
        self.leased = leased
        grant = leased.grant
        return Lease(leased.held.key, grant.owner, grant.token, grant.until, "")


async def read_state(grantor: KeyGrantor) -> Any:
    """The state of a key that was just leased, decoded; None if it has none, which costs nothing to know."""
    leased = grantor.current
    if leased.meta.state is None:
        return None
    seen = await grantor.operations.read(leased.namespace, leased.held)
    return None if seen is None else msgspec.json.decode(seen.data)


class HeldKey:
    """A key that is held: its token, its state, and a way to change it."""

    def __init__(self, holding: Holding, grantor: KeyGrantor, state: Any) -> None:
        self._holding, self._grantor = holding, grantor
        self.state = state  # as it was committed last, or saved since; None if there is none
        self.staged = False

    @property
    def key(self) -> str:
        """What is held."""
        return self._holding.key

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self._holding.owner

    @property
    def token(self) -> int:
        """The fencing token: it does not change while the key is held, and the next holder's is higher."""
        return self._holding.token

    @property
    def until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return self._holding.until

    @property
    def alive(self) -> bool:
        """Whether the lease is still ours, by monotonic time and without asking anybody."""
        return self._holding.alive

    async def save(self, state: Any) -> int:
        """Stages a new state, which is committed when the block ends well; gives the version it will have."""
        try:
            data = msgspec.json.encode(state)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the state cannot be written as JSON: {error}", do="use dicts, lists, texts and numbers"
            ) from None
        leased = self._grantor.current
        version, _ = await self._grantor.operations.update(leased.namespace, leased.held, data)
        self.state, self.staged = state, True
        return version

    async def remove(self) -> bool:
        """Stages the removal of the state; False if there is none."""
        leased = self._grantor.current
        removed = await self._grantor.operations.remove(leased.namespace, leased.held) is not None
        self.state, self.staged = None, self.staged or removed
        return removed

    async def attach(self, name: str, data: Data | Path, *, content_type: str = CONTENT_TYPE) -> Attachment:
        """Stages a file that rides along with the state: bytes, a path, or pieces as they come. It is committed when
        the block ends well, and nobody else sees it before."""
        leased = self._grantor.current
        pieces = FilePieces(data) if isinstance(data, Path) else data
        attached = await self._files.attach(leased.namespace, leased.held, Sent(name, content_type), pieces)
        self.staged = True
        return attached.attachment

    async def attachments(self) -> Sequence[Attachment]:
        """What is attached, staged changes included, in the order of names."""
        leased = self._grantor.current
        return await self._files.list(leased.namespace, leased.held)

    async def fetch(self, name: str) -> AsyncGenerator[bytes]:
        """The bytes of an attachment, as they come: `async for piece in lease.fetch(name)`."""
        leased = self._grantor.current
        async with aclosing((await self._files.fetch(leased.namespace, leased.held, name=name)).chunks) as chunks:
            async for chunk in chunks:
                yield chunk

    async def detach(self, name: str) -> bool:
        """Stages the removal of an attachment; False if there is none of this name."""
        leased = self._grantor.current
        count, _ = await self._files.remove(leased.namespace, leased.held, name=name)
        self.staged = self.staged or bool(count)
        return bool(count)

    @property
    def _files(self) -> AttachmentOperations:
        return self._grantor.operations.attachments


class hold_key(hold):
    """The context manager. `wait`: how long to wait for the key, None for ever."""

    def __init__(
        self,
        operations: Operations,
        key: str,
        owner: str,
        ttl: timedelta,
        clock: Clock,
        *,
        namespace: str = "",
        wait: timedelta | None = None,
    ) -> None:
        self._grantor = KeyGrantor(operations, namespace)
        super().__init__(self._grantor, key, owner, ttl, clock, wait=wait)
        self._held: HeldKey | None = None

    async def __aenter__(self) -> HeldKey:  # type: ignore[override]  # a HeldKey says all that a Holding does
        holding = await super().__aenter__()
        try:
            state = await read_state(self._grantor)
        except BaseException as error:
            await super().__aexit__(type(error), error, error.__traceback__)
            raise
        self._held = HeldKey(holding, self._grantor, state)
        return self._held

    async def _give_back(self, error: BaseException | None) -> None:
        if error is not None or self._held is None or not self._held.staged:
            await super()._give_back(error)
            return
        leased = self._grantor.current
        try:
            await self._grantor.operations.release(leased.namespace, leased.held, commit=True)
        except KeyRefused as refused:
            if refused.code not in _OVER:
                raise
            raise LeaseLost(
                f"the lease of {leased.held.key!r} ended before its commit: nothing was changed", do=refused.do
            ) from refused
