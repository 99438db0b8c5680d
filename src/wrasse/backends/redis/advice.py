"""Health, version and persistence settings of a Redis, with their consequences: for the doctor. `judge` is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wrasse.backends.redis.client.client import RedisClient, sections
from wrasse.backends.redis.client.transport import RedisRefusal
from wrasse.errors import Refused
from wrasse.ports.rules.check_result import FAIL, OK, WARN, Finding

_ASKED = ("maxmemory-policy", "appendfsync", "save", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class RedisHealth:
    """The facts. Settings are empty if this user may not read them: managed servers often forbid CONFIG."""

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


async def health(client: RedisClient) -> RedisHealth:
    """Asks the server about itself."""
    known = sections(await client.ask("INFO"))
    settings, seen = await _settings(client)
    clustered = known.get("cluster_enabled") == "1"
    state = sections(await client.ask("CLUSTER", "INFO")).get("cluster_state", "") if clustered else ""
    version = known.get("valkey_version") or known.get("redis_version", "0")
    return RedisHealth(
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


async def _settings(client: RedisClient) -> tuple[Mapping[str, str], bool]:
    try:
        answers = await client.ask_many([("CONFIG", "GET", name) for name in _ASKED])
    except (Refused, RedisRefusal):  # a managed server may refuse it with a message of its own
        return {}, False
    pairs = [answer for answer in answers if len(answer) == 2]
    return {name.decode(): value.decode() for name, value in pairs}, True


OLDEST = (6, 2)
FULL = 0.9  # of maxmemory
_SYNC = {
    "always": (OK, "always: no confirmed write is lost in any crash; each write waits for the disk", ""),
    "everysec": (OK, "everysec: a machine's crash loses about the last second, a server's crash nothing", ""),
    "no": (
        WARN,
        "no: a crash of the machine loses what the system had not written, about 30 s",
        "set appendfsync everysec or always",
    ),
}


def judge(health: RedisHealth, *, cluster: bool) -> Iterator[Finding]:
    """Every check of one server. `cluster`: whether it is configured as one."""
    text = f"{health.server} {'.'.join(map(str, health.version))}"
    if health.server == "redis" and health.version < OLDEST:
        yield Finding("redis", FAIL, f"{text} is too old", "use Redis 6.2 or newer, or Valkey")
    elif health.role != "master":
        what = f"{text} is a {health.role}, which accepts no writes"
        yield Finding("redis", FAIL, what, "point redis.addr at the master")
    else:
        yield Finding("redis", OK, text)
    yield from _eviction(health)
    yield from _persistence(health)
    yield from _replicas(health)
    yield from _cluster(health, cluster)
    if not health.sees_settings:
        yield Finding(
            "redis",
            WARN,
            "this user may not read the server's settings",
            "check maxmemory-policy noeviction and appendonly yes yourself",
        )


def _eviction(health: RedisHealth) -> Iterator[Finding]:
    if not health.memory_max:
        yield Finding("eviction", OK, "no maxmemory: nothing is evicted, and the machine's memory is the limit")
        return
    share = health.memory_used / health.memory_max
    if health.policy.startswith("volatile"):
        what = f"maxmemory-policy {health.policy} drops heartbeats when memory is short: running jobs are run again"
        yield Finding("eviction", WARN, what, "set maxmemory-policy noeviction")
    elif health.policy != "noeviction":
        what = f"maxmemory-policy {health.policy or 'unknown'} drops jobs without a trace when memory is short"
        yield Finding("eviction", FAIL, what, "set maxmemory-policy noeviction: then enqueues are refused instead")
    elif share > FULL:
        what = f"{share:.0%} of maxmemory is used; at 100 % every enqueue is refused"
        yield Finding("eviction", WARN, what, "raise maxmemory, or start more workers")
    else:
        yield Finding("eviction", OK, f"noeviction; {share:.0%} of maxmemory is used")


def _persistence(health: RedisHealth) -> Iterator[Finding]:
    if health.saving_fails:
        yield Finding(
            "persistence", FAIL, "the server's last write to disk failed", "see its log; it may soon refuse all writes"
        )
    if health.append_only:
        sync = health.append_sync
        state, cost, do = _SYNC.get(sync, (OK, "on; how often it is synced cannot be read", ""))
        yield Finding("persistence", state, f"append-only file, appendfsync {cost}", do)
    elif health.save or not health.sees_settings:
        rules = f" (save {health.save})" if health.save else ""
        what = f"snapshots only{rules}: a restart loses every job enqueued or finished since the last one"
        yield Finding("persistence", WARN, what, "set appendonly yes")
    else:
        what = "none: a restart of the server loses every job"
        yield Finding("persistence", WARN, what, "set appendonly yes, unless every job may be lost")


def _replicas(health: RedisHealth) -> Iterator[Finding]:
    if not health.replicas:
        yield Finding("replicas", OK, "none: if this machine is lost, so are the jobs since its last backup")
        return
    needed = health.replicas_needed
    held = f", writes are refused below {needed}" if needed else ""
    what = f"{health.replicas}{held}; replication is asynchronous: a failover may lose the last moments"
    yield Finding("replicas", OK, what)


def _cluster(health: RedisHealth, cluster: bool) -> Iterator[Finding]:
    if health.clustered and not cluster:
        yield Finding("cluster", FAIL, "the server is a node of a cluster", "set redis.cluster: true")
    elif health.clustered and health.cluster_state != "ok":
        what = f"the cluster's state is {health.cluster_state}"
        yield Finding("cluster", FAIL, what, "see CLUSTER NODES: every slot needs a master")
    elif health.clustered:
        yield Finding("cluster", OK, "every slot is served")
