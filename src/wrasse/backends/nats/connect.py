"""Streams and records on NATS with JetStream, for any number of processes on any number of machines.

How safe a confirmed write is depends on the server's storage and copies: `wrasse doctor` reports both. `health` asks
the server for its facts and settings, and `judge`, which is pure, states their consequences. Streams and groups share
one connection and the objects that `Flows` makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from wrasse.backends.nats.append import Appender
from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.client.jetstream import MARGIN, JetStream, ServerTime
from wrasse.backends.nats.durables import Durables, giving_up
from wrasse.backends.nats.group_cursors import Marks
from wrasse.backends.nats.groups import NatsGroups
from wrasse.backends.nats.kv_store import KvBucket
from wrasse.backends.nats.message_codec import NatsNames
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.nats.page_reader import PageReader
from wrasse.backends.nats.records import NatsNamespaces, NatsRecords
from wrasse.backends.nats.stream_map import StreamMap
from wrasse.backends.nats.streams import NatsStreams
from wrasse.clock import Clock, SystemClock
from wrasse.errors import Refused, StoreUnavailable, WrasseError
from wrasse.ports.backend import FAIL, OK, WARN, Capabilities, Finding, StreamStore
from wrasse.ports.guard import HealthSample
from wrasse.ports.records import VALUE_BYTES_MAX, Collection
from wrasse.ports.streams import Surveys

UNLIMITED = -1
_OLDEST, _SENDS_TIME = (2, 9), (2, 10)
# Before, a cluster confirmed two writes that expected the same last message (nats-server #4320).
_CHECKS_CONDITIONS = (2, 9, 21)
_FULL = 0.9  # of a limit
_ENVELOPE = 4 << 10
_SMALL_PAYLOAD = 256 << 10
_MIB = 1 << 20


class Nats(StreamStore):
    """One open NATS. Made by `open`; it serves the event loop that opened it, until `close`."""

    capabilities = Capabilities(streams=True, surveys=True, ages=True)
    margin = MARGIN  # by how much its time may be off

    def __init__(self, connection: NatsConnection, bucket: KvBucket, flows: Flows, clock: Clock) -> None:
        self.connection = connection
        self.flows = flows
        self.streams, self.groups, self.ages = flows.streams, flows.groups, flows.streams
        self.surveys: Surveys = flows.streams
        self._bucket = bucket
        self.there = bucket.there
        self._clock = clock
        self.namespaces = NatsNamespaces(bucket)
        self._records: dict[Collection, NatsRecords] = {}

    @classmethod
    async def open(
        cls,
        options: NatsOptions | str,
        clock: Clock = SystemClock(),  # noqa: B008  # it has no state
        *,
        time: Clock | None = None,
        create: bool = True,
    ) -> Nats:
        """Connects once, so that errors in the address, the login or JetStream are raised now. `time` replaces the
        server's clock. Without `create` nothing is made: a missing bucket or stream is empty."""
        wanted = NatsOptions.of(options) if isinstance(options, str) else options
        connection = await NatsConnection.open(wanted)
        try:
            if connection.server.numbers < _OLDEST:
                raise Refused(f"{wanted.where} is nats-server {connection.server.version}", do="use 2.9 or newer")
            _refuse_copies(connection, wanted.replicas)
            bucket = KvBucket(connection, clock, time)
            await bucket.open(create=create)
            _refuse_copies(connection, bucket.replicas)
            flows = await Flows.open(connection, clock, bucket.time, patterns=wanted.patterns, create=create)
        except BaseException:
            await connection.close()
            raise
        return cls(connection, bucket, flows, clock)

    def records(self, collection: Collection) -> NatsRecords:
        """The records of one collection; the same ones each time."""
        if collection not in self._records:
            self._records[collection] = NatsRecords(self._bucket, collection, self._clock)
        return self._records[collection]

    async def health_sample(self) -> HealthSample:
        """The server's identity (another after a restart), or the bucket's leader if there are copies; its clock."""
        try:
            info = await self._bucket.info()
            at = self._bucket.time.read(info.ts) if info.ts is not None else await self._bucket.time.now()
        except StoreUnavailable:
            raise
        except WrasseError as error:
            raise StoreUnavailable(error.message, do=error.do) from error
        leads = f"{info.cluster.leader}/{info.cluster.leader_since}"
        return HealthSample(leads if info.cluster.name else self.connection.server.id, at)

    async def examine(self) -> Sequence[Finding]:
        """The checks of this server's settings."""
        limited = await giving_up(self.flows.stream_map.js, self.flows.stream_map.layout)
        return (*judge(await health(self.connection, self._bucket)), *judge_durables(limited))

    async def close(self) -> None:
        """Ends the connection."""
        await self.flows.groups.close()
        await self.connection.close()


def _refuse_copies(connection: NatsConnection, replicas: int) -> None:
    if loses_writes(connection.server.numbers, replicas):
        raise Refused(
            f"{connection.options.where} is nats-server {connection.server.version}, which with {replicas} "
            "copies may confirm two conflicting writes and keep one",
            do="use 2.9.21 or newer, or one copy: nats.replicas: 1",
        )


@dataclass(frozen=True, slots=True)
class Flows:
    """The ports over one connection that concern streams, and the map of streams that they share."""

    streams: NatsStreams
    groups: NatsGroups
    stream_map: StreamMap

    @classmethod
    async def open(
        cls,
        connection: NatsConnection,
        clock: Clock,
        at: ServerTime,
        *,
        patterns: tuple[str, ...] = (),
        batches: bool | None = None,
        atomic: bool | None = None,
        create: bool = True,
    ) -> Flows:
        """Makes the stream of notes if it does not exist and `create` is true. `at` is the server's clock. `patterns`:
        subjects that match one of them are kept together in one stream. `batches` and `atomic` say whether the server
        has batched reads and atomic writes; None decides by its version."""
        js, layout = JetStream(connection), NatsNames.of(connection.options, patterns)
        reader = PageReader(js, batches=batches)
        stream_map = StreamMap(js, layout, reader, clock)
        if create:
            await stream_map.open()
        marks, durables = Marks(js, layout, reader), Durables(js)
        appender = Appender(stream_map, at, clock, atomic=atomic)
        return cls(
            NatsStreams(stream_map, marks, durables, appender, at),
            NatsGroups(connection, stream_map, marks, durables, appender, at),
            stream_map,
        )


@dataclass(frozen=True, slots=True)
class NatsHealth:
    """The facts."""

    version: str
    numbers: tuple[int, ...]
    max_payload: int
    domain: str
    storage_used: int
    storage_max: int  # of this account; UNLIMITED: limited by the server's disk only
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


async def health(connection: NatsConnection, bucket: KvBucket) -> NatsHealth:
    """Asks the server about itself, our account and our bucket."""
    account = _account(await bucket.ask("INFO"))
    info = await bucket.info()
    replicas = info.config.num_replicas
    tier = account.tiers.get(f"R{replicas}", account)  # some accounts have limits by the number of copies
    return NatsHealth(
        version=connection.server.version,
        numbers=connection.server.numbers,
        max_payload=connection.server.max_payload,
        domain=account.domain,
        storage_used=tier.storage,
        storage_max=tier.limits.max_storage,
        memory_max=tier.limits.max_memory,
        streams=tier.streams,
        streams_max=tier.limits.max_streams,
        clustered=bool(info.cluster.name),
        storage=info.config.storage,
        replicas=replicas,
        replicas_wanted=connection.options.replicas,
        replicas_behind=sum(1 for each in info.cluster.replicas if each.offline or not each.current),
        bucket_bytes=info.state.bytes,
        bucket_bytes_max=info.config.max_bytes,
    )


def judge(health: NatsHealth) -> Iterator[Finding]:
    """Every check of one server."""
    yield from _version(health)
    yield from _room(health)
    yield from _storage(health)
    yield from _replicas(health)
    yield from _payload(health)
    if health.domain:
        yield Finding("domain", OK, f"JetStream is in the domain {health.domain}")


def judge_durables(limited: Iterable[tuple[str, str, int]]) -> Iterator[Finding]:
    """Durables whose ack floor proves nothing: stream, name, and their maximum of deliveries."""
    for stream, name, most in limited:
        what = (
            f"the durable {name!r} of {stream!r} gives up after {most} deliveries: its ack floor passes messages that"
            " were not acked, so it protects nothing, and a trim that names it removes nothing"
        )
        edit = f"nats consumer edit {stream} {name} --max-deliver=-1"
        yield Finding("groups", WARN, what, f"{edit}; handle what it gave up first: it counts as acked after that")


def loses_writes(numbers: tuple[int, ...], replicas: int) -> bool:
    """Whether two concurrent changes of a record may both be confirmed."""
    return replicas > 1 and numbers < _CHECKS_CONDITIONS


def _version(health: NatsHealth) -> Iterator[Finding]:
    text = f"nats-server {health.version}"
    if health.numbers < _OLDEST:
        yield Finding("nats", FAIL, f"{text} is too old", "use 2.9 or newer")
    elif loses_writes(health.numbers, max(health.replicas, health.replicas_wanted)):
        yield Finding("nats", FAIL, f"{text} loses writes with replicas", "use 2.9.21 or newer, or one copy")
    elif health.numbers < _SENDS_TIME:
        what = f"{text} does not send its time: it is read from a stored message; listings cost by all keys"
        yield Finding("nats", WARN, what, "use 2.10 or newer")
    else:
        yield Finding("nats", OK, text)


def _room(health: NatsHealth) -> Iterator[Finding]:
    used, most = health.storage_used, health.storage_max
    if health.storage == "memory":
        most = health.memory_max
    if most > 0 and used > _FULL * most:
        what = f"{used / most:.0%} of the account's JetStream storage is used; at 100 % every write is refused"
        yield Finding("jetstream", WARN, what, "give the account more room (max_file), or keep less")
    elif most == 0:
        yield Finding("jetstream", FAIL, "the account may store nothing", "give it storage: max_file in the settings")
    else:
        limit = f"{most / _MIB:.0f} MiB" if most > 0 else "the server's storage (max_file_store)"
        yield Finding("jetstream", OK, f"{health.streams} streams use {used / _MIB:.1f} MiB of {limit}")
    if 0 < health.streams_max <= health.streams + 1:
        what = f"the account has {health.streams} of {health.streams_max} streams: new subjects may get none"
        yield Finding("jetstream", WARN, what, "raise max_streams")
    if 0 < health.bucket_bytes_max < health.bucket_bytes / _FULL:
        what = f"our bucket has {health.bucket_bytes / health.bucket_bytes_max:.0%} of its max_bytes"
        yield Finding("jetstream", WARN, what, "raise it: nats stream edit --max-bytes")


def _storage(health: NatsHealth) -> Iterator[Finding]:
    if health.storage == "memory":
        what = "memory: a restart of the server loses every record"
        yield Finding("storage", WARN, what, "set nats.storage: file, unless every record may be lost")
        return
    crash = "on file: a crash of the server loses nothing"
    if health.replicas > 1:
        yield Finding("storage", OK, f"{crash}; a crash of the machine loses nothing that a majority has")
    else:
        what = f"{crash}; a crash of the machine loses unsynced writes: up to sync_interval, by default 2 minutes"
        yield Finding("storage", WARN, what, "set jetstream { sync_interval: always }, or keep 3 copies")


def _replicas(health: NatsHealth) -> Iterator[Finding]:
    if health.replicas_wanted > health.replicas:
        what = f"our bucket has {health.replicas} copies, and nats.replicas is {health.replicas_wanted}"
        yield Finding("replicas", WARN, what, f"nats stream edit --replicas {health.replicas_wanted}")
    elif health.clustered and health.replicas == 1:
        what = "a cluster, and one copy: while its server is down nothing is read or written"
        yield Finding("replicas", WARN, what, "set nats.replicas: 3 before the first start, or edit the stream")
    elif health.replicas_behind:
        what = f"{health.replicas_behind} of {health.replicas} copies are behind or down"
        yield Finding("replicas", WARN, what, "see `nats server report jetstream`; one more may stop all writes")
    elif health.replicas == 1:
        what = "none: while the server is down no request succeeds; if its disk is lost, so is all data"
        yield Finding("replicas", OK, what)
    else:
        what = f"{health.replicas} copies; each write waits for a majority, and reads go to the leader"
        yield Finding("replicas", OK, what)


def _payload(health: NatsHealth) -> Iterator[Finding]:
    size = f"max_payload is {health.max_payload >> 10} KiB"
    if health.max_payload < _SMALL_PAYLOAD:
        what = f"{size}: longer messages and records are refused"
        yield Finding("max_payload", WARN, what, "set max_payload: 8MB in the settings of nats-server")
    elif health.max_payload < VALUE_BYTES_MAX + _ENVELOPE:
        what = f"{size}: longer messages are refused, and the longest records unless they can be compressed"
        yield Finding("max_payload", OK, what)
    else:
        yield Finding("max_payload", OK, size)
