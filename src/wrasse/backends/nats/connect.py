"""Streams and records on NATS with JetStream, for any number of processes on any number of machines.

How safe a confirmed write is depends on the server's storage and copies: `wrasse doctor` reports both.

Streams and groups share one connection and the objects made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wrasse.backends.nats.advice import OLDEST, health, judge, judge_durables, loses_writes
from wrasse.backends.nats.append import Appender
from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.client.server_clock import MARGIN, ServerTime
from wrasse.backends.nats.durables import Durables, giving_up
from wrasse.backends.nats.group_cursors import Marks
from wrasse.backends.nats.groups import NatsGroups
from wrasse.backends.nats.kv.store import KvBucket
from wrasse.backends.nats.layout import NatsNames
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.nats.page_reader import PageReader
from wrasse.backends.nats.records import NatsNamespaces, NatsRecords
from wrasse.backends.nats.stream_map import StreamMap
from wrasse.backends.nats.streams import NatsStreams
from wrasse.clock import Clock, SystemClock
from wrasse.errors import Refused, StoreUnavailable, WrasseError
from wrasse.ports.backend import StreamStore
from wrasse.ports.capabilities import Capabilities
from wrasse.ports.health_check import HealthSample
from wrasse.ports.records import Collection
from wrasse.ports.rules.check_result import Finding
from wrasse.ports.surveys import Surveys


@dataclass(frozen=True, slots=True)
class Flows:
    """The two ports."""

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
        """Makes the stream of books if it does not exist and `create` is true. `at` is the server's clock. `patterns`:
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
            if connection.server.numbers < OLDEST:
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
