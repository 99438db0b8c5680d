"""What a NATS says about itself, as far as it matters for what is kept there. `advice.py` judges it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from wrasse.backends.nats.kv_bucket import Bucket
from wrasse.backends.nats.link import Link

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Health:
    """The facts."""

    version: str
    numbers: tuple[int, ...]
    max_payload: int
    domain: str
    storage_used: int
    storage_max: int  # of this account; UNLIMITED: the server's disk
    memory_max: int
    streams: int
    streams_max: int
    clustered: bool
    storage: str  # of our bucket: file or memory
    replicas: int
    replicas_wanted: int
    replicas_behind: int
    bucket_bytes: int
    bucket_bytes_max: int


class _Limits(msgspec.Struct):
    max_memory: int = UNLIMITED
    max_storage: int = UNLIMITED
    max_streams: int = UNLIMITED


class _Tier(msgspec.Struct):
    storage: int = 0
    streams: int = 0
    limits: _Limits = msgspec.field(default_factory=_Limits)


class _Account(_Tier):
    domain: str = ""
    tiers: dict[str, _Tier] = {}


_account = msgspec.json.Decoder(_Account).decode


async def health(link: Link, bucket: Bucket) -> Health:
    """Asks the server about itself, our account and our bucket."""
    account = _account(await bucket.ask("INFO"))
    info = await bucket.info()
    replicas = info.config.num_replicas
    tier = account.tiers.get(f"R{replicas}", account)  # some accounts have room by the number of copies
    return Health(
        version=link.server.version,
        numbers=link.server.numbers,
        max_payload=link.server.max_payload,
        domain=account.domain,
        storage_used=tier.storage,
        storage_max=tier.limits.max_storage,
        memory_max=tier.limits.max_memory,
        streams=tier.streams,
        streams_max=tier.limits.max_streams,
        clustered=bool(info.cluster.name),
        storage=info.config.storage,
        replicas=replicas,
        replicas_wanted=link.options.replicas,
        replicas_behind=sum(1 for each in info.cluster.replicas if each.offline or not each.current),
        bucket_bytes=info.state.bytes,
        bucket_bytes_max=info.config.max_bytes,
    )
