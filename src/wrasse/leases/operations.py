"""What can be done with leased keys: here by `Leases`, in another process by `LeaseClient`. Same calls, same errors."""

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
"""What opens them, once they are needed."""
AttachmentOperations: TypeAlias = "Attachments | RemoteAttachments"
