"""What can be done with leased keys: here by `Leases`, in another process by `LeaseClient`. Same calls, same errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from wrasse.leases.attachments import Attached, Fetched, Sent
from wrasse.leases.leases import Leased, Seen
from wrasse.leases.meta import Attachment, Meta, State
from wrasse.leases.rules import Held
from wrasse.leases.transaction import Decision
from wrasse.ports.objects import Data

LASTS = "X-Lease-Lasts"  # the header that says for how many seconds a lease may be relied on, from when the call came


class AttachmentOperations(Protocol):
    """Attachments, wherever the store is. `whose`: a `Held` for what its holder sees, a key for what is committed."""

    async def attach(self, namespace: str, held: Held, sent: Sent, data: Data) -> Attached:
        """Stages an attachment."""
        ...

    async def list(self, namespace: str, whose: Held | str) -> Sequence[Attachment]:
        """All attachments, in the order of their names."""
        ...

    async def fetch(self, namespace: str, whose: Held | str, *, name: str = "", id: str = "") -> Fetched:
        """One attachment with its bytes, by its name or its id."""
        ...

    async def remove(
        self, namespace: str, held: Held, *, name: str = "", id: str = "", every: bool = False
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
    ) -> Leased:
        """The lease, or a refusal."""
        ...

    async def renew(self, namespace: str, held: Held, ttl: timedelta) -> Leased:
        """The lease, `ttl` from now."""
        ...

    async def read(self, namespace: str, held: Held) -> Seen | None:
        """The state as its holder sees it."""
        ...

    async def read_public(self, namespace: str, key: str) -> Seen | None:
        """The committed state."""
        ...

    async def update(
        self, namespace: str, held: Held, data: bytes, *, if_version: int | None = None, if_etag: str | None = None
    ) -> tuple[int, State]:
        """Stages a new state."""
        ...

    async def remove(
        self, namespace: str, held: Held, *, if_version: int | None = None, if_etag: str | None = None
    ) -> int | None:
        """Stages the removal of the state."""
        ...

    async def release(self, namespace: str, held: Held, *, commit: bool = True) -> Meta | None:
        """Gives the key back, with what is staged or without it."""
        ...

    async def decide(self, transaction: str, *, commit: bool) -> Decision:
        """Commits or rolls back every key of a transaction; gives what counts."""
        ...

    def term(self, leased: Leased) -> float:
        """Our monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        ...
