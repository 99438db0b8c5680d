"""A change that was carried out already: its caller never heard so, and asks again with the version it saw then.

What the lease has staged is then in the way of its own condition. It is the same change if it was staged over the
version that the caller names, be that committed or staged before by the same lease, and says the same.
"""

from __future__ import annotations

from wrasse.errors import Gone
from wrasse.leases.keys import Keys
from wrasse.leases.meta import Meta, Over, Staged
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.rules import Held


async def staged_over(
    keys: Keys, held: Held, refused: KeyRefused, if_version: int | None, if_etag: str | None
) -> Staged | None:
    """What this lease has staged over the version that a refused caller saw; None if the refusal stands."""
    if refused.code not in (Refusal.VERSION_CONFLICT, Refusal.ETAG_MISMATCH):
        return None
    meta = await keys.read_held(held)
    return meta.staged if _saw(meta, if_version, if_etag) else None


async def holds(keys: Keys, staged: Staged, data: bytes) -> bool:
    """Whether it is this state that is staged."""
    state = staged.state
    if state is None or staged.same or state.size != len(data):
        return False
    try:
        return await keys.versions.read(state) == data
    except Gone:
        return False


def _saw(meta: Meta, if_version: int | None, if_etag: str | None) -> bool:
    befores = [Over(meta.version, meta.etag)]
    if meta.staged is not None and isinstance(meta.staged.over, Over):
        befores.append(meta.staged.over)
    return any(
        if_version in (None, over.version) and (if_etag is None or if_etag.strip('"') == over.etag) for over in befores
    )
