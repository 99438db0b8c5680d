"""The operations on leased keys: `Leases` in this process, `LeaseClient` over HTTP. Same methods, same errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from wrasse.leases.attachments import Attachments
    from wrasse.leases.attachments_client import RemoteAttachments
    from wrasse.leases.client import LeaseClient
    from wrasse.leases.leases import Leases

Operations: TypeAlias = "Leases | LeaseClient"
Opening: TypeAlias = Callable[[], "Awaitable[Operations]"]
"""Opens them when they are first needed."""
AttachmentOperations: TypeAlias = "Attachments | RemoteAttachments"
