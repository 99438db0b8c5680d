"""What can be done with leased keys: here by `Leases`, in another process by `LeaseClient`. Same calls, same errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from wrasse.leases.attachments import Attached, Fetched, Sent
from wrasse.leases.lease import Attachment, KeyRecord, Lease, State
from wrasse.leases.leases import Seen
from wrasse.leases.transaction import Decision
from wrasse.ports.objects import Data

LASTS = "X-Lease-Lasts"  # the header that says for how many seconds a lease may be relied on, from when the call came


class AttachmentOperations(Protocol):
    """Attachments, wherever the store is. `whose`: the lease of a holder, or `public`."""

    async def attach(self, held: Lease, sent: Sent, data: Data) -> Attached:
        """Stages an attachment."""
        ...

    async def list(self, whose: Lease) -> Sequence[Attachment]:
        """All attachments, in the order of their names."""
        ...

    async def fetch(self, whose: Lease, *, name: str = "", id: str = "") -> Fetched:
        """One attachment with its bytes, by its name or its id."""
        ...

    async def remove(
        self, held: Lease, *, name: str = "", id: str = "", every: bool = False
    ) -> tuple[int, int]:
        """Stages the removal of one attachment, or of every one; gives how many, and the version there will be."""
        ...


class Operations(Protocol):
    """Leases and state, wherever the store is."""

    @property
    def attachments(self) -> AttachmentOperations:
        """Files that ride along with the state."""
        ...

    async def acquire(
        self,
        key: str,
        owner: str,
        *,
        namespace: str = "",
        ttl: timedelta = ...,
        wait: timedelta | None = ...,
        if_not_exists: bool = False,
        id: str = "",
        transaction: str = "",
    ) -> KeyRecord:
        """The key with the lease on it, or a refusal."""
        ...

    async def renew(self, held: Lease, ttl: timedelta) -> Lease:
        """The lease, `ttl` from now."""
        ...

    async def read(self, held: Lease) -> Seen | None:
        """The state as its holder sees it."""
        ...

    async def read_public(self, namespace: str, key: str) -> Seen | None:
        """The committed state."""
        ...

    async def update(
        self, held: Lease, data: bytes, *, if_version: int | None = None, if_etag: str | None = None
    ) -> tuple[int, State]:
        """Stages a new state."""
        ...

    async def remove(
        self, held: Lease, *, if_version: int | None = None, if_etag: str | None = None
    ) -> int | None:
        """Stages the removal of the state."""
        ...

    async def release(self, held: Lease, *, commit: bool = True) -> KeyRecord | None:
        """Gives the key back, with what is staged or without it."""
        ...

    async def decide(self, transaction: str, *, commit: bool) -> Decision:
        """Commits or rolls back every key of a transaction; gives what counts."""
        ...

    def term(self, held: Lease) -> float:
        """Our monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        ...
