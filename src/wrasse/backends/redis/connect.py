"""Jobs, records and streams on Redis or Valkey, for any number of processes on any number of machines.

How safe a confirmed write is depends on the server's persistence: `wrasse doctor` reports it. `health` asks the server
for its version, role and persistence settings, and `judge`, which is pure, states their consequences. Plain locks are a
string key with its owner and an expiry, as `SET NX PX` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.backends.redis.client.client import RedisClient, sections
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.client.transport import RedisRefusal
from wrasse.backends.redis.fsck_check import RedisFsck
from wrasse.backends.redis.groups import RedisGroups
from wrasse.backends.redis.jobs.lists import RedisLists, RedisStrays
from wrasse.backends.redis.jobs.queue import RedisJobs
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.limiter import RedisLimiter
from wrasse.backends.redis.options import OWN_CLIENT, RedisOptions
from wrasse.backends.redis.records import RecordWriter, RedisFlatRecords, RedisNamespaces, RedisRecords
from wrasse.backends.redis.replies import WRONG_TYPE_ADVICE, KeyTypes, reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.streams import NAMELESS_ADVICE, RedisStreams, check_streams
from wrasse.clock import Clock, SystemClock, from_micros
from wrasse.errors import Refused, StoreUnavailable, WrasseError
from wrasse.ports.backend import FAIL, OK, WARN, Capabilities, Finding, JobStore, StreamStore, full_groups
from wrasse.ports.groups import Groups
from wrasse.ports.guard import HealthSample
from wrasse.ports.records import Collection
from wrasse.ports.streams import Streams, Surveys

_MILLISECOND = timedelta(milliseconds=1)
_SETTINGS = ("maxmemory-policy", "appendfsync", "save", "min-replicas-to-write")
_OLD_KEYS = (("LLEN", ""), ("ZCARD", ":delayed"))
_OLDEST = (6, 2)
_FULL = 0.9  # of maxmemory
_SYNC_COSTS = {
    "always": (OK, "always: no confirmed write is lost in any crash; each write waits for the disk", ""),
    "everysec": (OK, "everysec: a machine's crash loses about the last second, a server's crash nothing", ""),
    "no": (
        WARN,
        "no: a crash of the machine loses what the system had not written, about 30 s",
        "set appendfsync everysec or always",
    ),
}


@reads_replies
class Redis(JobStore, StreamStore):
    """One open Redis. Made by `open`; it serves the event loop that opened it, until `close`."""

    capabilities = full_groups(
        Capabilities(
            jobs=True,
            job_extras=True,
            streams=True,
            limiter=True,
            surveys=True,
            fsck=True,
            strays=True,
            named_locks=True,
            lists=True,
            status_index=True,
            shared=True,
        )
    )

    def __init__(self, client: RedisClient, clock: Clock, *, done_max: int, to_read: bool = False) -> None:
        self.client = self._client = client
        self.jobs: RedisJobs = RedisJobs(client, clock, done_max=done_max)
        self.limiter = RedisLimiter(client)
        self.namespaces = RedisNamespaces(client)
        self._streams = RedisStreams(client, clock, to_read=to_read)
        self.streams: Streams = self._streams
        self.groups: Groups = RedisGroups(client, clock)
        self.surveys: Surveys = self._streams
        self.strays = RedisStrays(client)
        self.fsck = RedisFsck(client)
        self.named_locks = RedisNamedLocks(client)
        self.lists = RedisLists(client)

    @classmethod
    async def open(
        cls,
        options: RedisOptions | str,
        clock: Clock = SystemClock(),  # noqa: B008  # it has no state
        *,
        done_max: int = 10_000,
        time: Clock | None = None,
        to_read: bool = False,
    ) -> Redis:
        """Connects once, so that errors in the address or the login are raised now. `time`: see RedisClient. `to_read`:
        streams of other programs that are found are not registered."""
        wanted = RedisOptions.of(options) if isinstance(options, str) else options
        return cls(await _client(wanted, time), clock, done_max=done_max, to_read=to_read)

    async def check_streams(self) -> None:
        """Refuses a server that is too old for streams. Jobs and records still work there."""
        await check_streams(self.client)

    def records(self, collection: Collection) -> RedisRecords | RedisFlatRecords:
        """The records of one collection."""
        return RedisFlatRecords(self.client, collection) if collection.flat else RedisRecords(self.client, collection)

    async def forget(self, collection: Collection) -> None:
        writer = RecordWriter(self.client, collection)
        await self.client.run(load("records.forget"), [writer.names, writer.writes, writer.gone, writer.meta])

    async def health_sample(self) -> HealthSample:
        """The server's identity (another after a restart or a failover), its clock, and its count of evictions."""
        asked = ("INFO", "server"), ("INFO", "replication"), ("INFO", "stats"), ("TIME",)
        try:
            server, replication, stats, time = await self.client.ask_many(asked)
        except StoreUnavailable:
            raise
        except WrasseError as error:
            raise StoreUnavailable(error.message, do=error.do) from error
        known = sections(server + replication + stats)
        now = from_micros(self.client.time_in(time))
        identity = f"{known.get('run_id', '')}/{known.get('master_replid', '')}"
        return HealthSample(identity, now, int(known.get("evicted_keys", "0")))

    async def examine(self) -> Sequence[Finding]:
        """The checks of this server's settings, and jobs in keys that no worker reads."""
        found = judge(await health(self.client), cluster=self.client.options.cluster)
        misfits = await KeyTypes(self.client, RedisKeys(self.client.options)).everywhere()
        wrong = [Finding("keys", FAIL, str(each), WRONG_TYPE_ADVICE) for each in misfits]
        return (*found, *wrong, *await self._jobs_in_old_keys(), *await self._nameless_streams())

    async def _nameless_streams(self) -> Sequence[Finding]:
        keys = await self._streams.nameless()
        what = f"{len(keys)} streams are skipped, since their keys are not subjects, such as {keys[:1]}"
        return (
            [Finding("streams", WARN, what, f"if one is to be archived or trimmed, {NAMELESS_ADVICE}")] if keys else []
        )

    async def _jobs_in_old_keys(self) -> Sequence[Finding]:
        """Jobs that an earlier version stored below the root, of queues that are keys themselves now."""
        root = self.client.options.root
        queues = sorted(each for each in self.client.options.literal_queues if not each.startswith(f"{root}:"))
        asked = [(which, f"{root}:queue:{name}{end}") for name in queues for which, end in _OLD_KEYS]
        counts = await self.client.ask_many(asked) if asked else ()
        return [
            Finding("jobs", WARN, f"{count} jobs wait in {key}, which no worker reads: the queue is a key itself now",
                    f"redis-cli RENAME {key} {key.removeprefix(f'{root}:queue:')}, if that key does not exist")
            for (_, key), count in zip(asked, counts, strict=True) if count
        ]  # fmt: skip

    async def close(self) -> None:
        """Ends the connections. Claims that wait end without a job."""
        await self.jobs.close()
        await self.client.close()


async def _client(options: RedisOptions, time: Clock | None) -> RedisClient:
    if options.client == OWN_CLIENT:
        return await OwnRedisClient.open(options, time)
    from wrasse.backends.redis.client.redis_py import RedisPyClient  # an optional extra

    return await RedisPyClient.open(options, time)


@reads_replies
class RedisNamedLocks:
    """See NamedLocks."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def hold(self, key: str, owner: str, ttl: timedelta) -> str:
        return await self._run(key, owner, str(ttl // _MILLISECOND))

    async def holder(self, key: str) -> str:
        return await self._run(key, "", "")  # no owner: another owner's lock is not changed

    async def release(self, key: str, owner: str) -> bool:
        return not await self._run(key, owner, "")

    async def _run(self, key: str, owner: str, lasts: str) -> str:
        where = f"{self._client.options.streams_prefix}{key}"
        holder = await self._client.run(load("plain_lock"), (where,), (owner, lasts))
        return str(holder.decode("utf-8", "backslashreplace"))


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
        answers = await client.ask_many([("CONFIG", "GET", name) for name in _SETTINGS])
    except (Refused, RedisRefusal):  # a managed server may refuse it with a message of its own
        return {}, False
    pairs = [answer for answer in answers if len(answer) == 2]
    return {name.decode(): value.decode() for name, value in pairs}, True


def judge(health: RedisHealth, *, cluster: bool) -> Iterator[Finding]:
    """Every check of one server. `cluster`: whether it is configured as one."""
    text = f"{health.server} {'.'.join(map(str, health.version))}"
    if health.server == "redis" and health.version < _OLDEST:
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
    elif share > _FULL:
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
        state, cost, do = _SYNC_COSTS.get(sync, (OK, "on; how often it is synced cannot be read", ""))
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
