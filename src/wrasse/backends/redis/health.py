"""What a Redis is and how it keeps its data, in one look: for the doctor, who says what each of it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.info import sections
from wrasse.backends.redis.wire import Refusal
from wrasse.errors import Refused

_ASKED = ("maxmemory-policy", "appendfsync", "save", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class Health:
    """The facts. Settings are empty where this user may not see them: managed servers often forbid CONFIG."""

    server: str  # redis or valkey
    version: tuple[int, ...]
    role: str
    clustered: bool
    cluster_state: str
    memory_used: int
    memory_max: int
    policy: str
    append_only: bool
    append_sync: str
    save: str
    saving_fails: bool
    replicas: int
    replicas_needed: int
    sees_settings: bool


async def health(link: Link) -> Health:
    """Asks the server about itself."""
    known = sections(await link.ask("INFO"))
    settings, seen = await _settings(link)
    clustered = known.get("cluster_enabled") == "1"
    state = sections(await link.ask("CLUSTER", "INFO")).get("cluster_state", "") if clustered else ""
    version = known.get("valkey_version") or known.get("redis_version", "0")
    return Health(
        server="valkey" if "valkey_version" in known else "redis",
        version=tuple(int(part) for part in version.split(".") if part.isdecimal()),
        role=known.get("role", ""),
        clustered=clustered,
        cluster_state=state,
        memory_used=int(known.get("used_memory", "0")),
        memory_max=int(known.get("maxmemory", "0")),
        policy=known.get("maxmemory_policy") or settings.get("maxmemory-policy", ""),
        append_only=known.get("aof_enabled") == "1",
        append_sync=settings.get("appendfsync", ""),
        save=settings.get("save", ""),
        saving_fails="err" in (known.get("rdb_last_bgsave_status"), known.get("aof_last_write_status")),
        replicas=int(known.get("connected_slaves", "0")),
        replicas_needed=int(settings.get("min-replicas-to-write") or "0"),
        sees_settings=seen,
    )


async def _settings(link: Link) -> tuple[Mapping[str, str], bool]:
    try:
        answers = await link.ask_many([("CONFIG", "GET", name) for name in _ASKED])
    except (Refused, Refusal):  # a managed server that forbids it says so in words of its own
        return {}, False
    pairs = [answer for answer in answers if len(answer) == 2]
    return {name.decode(): value.decode() for name, value in pairs}, True
