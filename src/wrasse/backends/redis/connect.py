"""Jobs, records and streams on Redis or Valkey, for any number of processes on any number of machines.

How safe a confirmed write is depends on the server's persistence: `wrasse doctor` reports it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wrasse.backends.redis import streams
from wrasse.backends.redis.advice import health, judge
from wrasse.backends.redis.client.client import RedisClient, sections
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.flat_records import RedisFlatRecords
from wrasse.backends.redis.fsck.check import RedisFsck
from wrasse.backends.redis.groups import RedisGroups
from wrasse.backends.redis.jobs.lists import RedisLists
from wrasse.backends.redis.jobs.queue import RedisJobs
from wrasse.backends.redis.jobs.strays import RedisStrays
from wrasse.backends.redis.key_types import DO, KeyTypes
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.limiter import RedisLimiter
from wrasse.backends.redis.named_locks import RedisPlainLocks
from wrasse.backends.redis.namespaces import RedisNamespaces
from wrasse.backends.redis.options import OWN_CLIENT, RedisOptions
from wrasse.backends.redis.record_writes import RecordWriter
from wrasse.backends.redis.records import RedisRecords
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.streams import RedisStreams, check_streams
from wrasse.clock import Clock, SystemClock, from_micros
from wrasse.errors import StoreUnavailable, WrasseError
from wrasse.ports.backend import JobStore, StreamStore
from wrasse.ports.capabilities import Capabilities, full_groups
from wrasse.ports.groups import Groups
from wrasse.ports.health_check import HealthSample
from wrasse.ports.records import Collection
from wrasse.ports.rules.check_result import FAIL, WARN, Finding
from wrasse.ports.streams import Streams
from wrasse.ports.surveys import Surveys

_OLD_KEYS = (("LLEN", ""), ("ZCARD", ":delayed"))


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
            damages=True,
            strays=True,
            plain_locks=True,
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
        streams = RedisStreams(client, clock, to_read=to_read)
        self.streams: Streams = streams
        self.groups: Groups = RedisGroups(client, clock)
        self.surveys: Surveys = streams
        self._nameless = streams.nameless
        self.strays = RedisStrays(client)
        self.damages = RedisFsck(client)
        self.plain_locks = RedisPlainLocks(client)
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
        await self.client.run(load("record_forget"), [writer.names, writer.writes, writer.gone, writer.meta])

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
        wrong = [Finding("keys", FAIL, str(each), DO) for each in misfits]
        return (*found, *wrong, *await self._old_places(), *await self._passed_over())

    async def _passed_over(self) -> Sequence[Finding]:
        keys = await self._nameless()
        what = f"{len(keys)} streams are skipped, since their keys are not subjects, such as {keys[:1]}"
        return [Finding("streams", WARN, what, f"if one is to be archived or trimmed, {streams.DO}")] if keys else []

    async def _old_places(self) -> Sequence[Finding]:
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
