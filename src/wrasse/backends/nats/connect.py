"""NATS with JetStream as the home of streams and records, for any number of processes on any number of machines.

What is answered is as safe as the server's storage and copies make it: `wrasse doctor` says what its settings cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from wrasse.backends.nats.advice import OLDEST, health, judge, judge_durables, loses_writes
from wrasse.backends.nats.durables import giving_up
from wrasse.backends.nats.flows import Flows
from wrasse.backends.nats.kv_bucket import Bucket
from wrasse.backends.nats.link import Link
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.nats.records import NatsNamespaces, NatsRecords
from wrasse.backends.nats.stream_time import MARGIN
from wrasse.clock import Clock, SystemClock
from wrasse.errors import Refused, StoreUnavailable, WrasseError
from wrasse.ports.backend import StreamStore
from wrasse.ports.capabilities import Capabilities
from wrasse.ports.finding import Finding
from wrasse.ports.pulse import Pulse
from wrasse.ports.records import Collection
from wrasse.ports.surveys import Surveys


class Nats(StreamStore):
    """One open NATS. Make it with `open`; it serves the event loop that opened it, until `close`."""

    capabilities = Capabilities(streams=True, surveys=True, ages=True)
    margin = MARGIN  # how far the time it tells may be off

    def __init__(self, link: Link, bucket: Bucket, flows: Flows, clock: Clock) -> None:
        self.link = link
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
        """Connects once, so that what is wrong with the address, the login or JetStream is said now. `time` instead of
        the server's clock decides what is due. Without `create` nothing is made: what is not there is empty."""
        wanted = NatsOptions.of(options) if isinstance(options, str) else options
        link = await Link.open(wanted)
        try:
            if link.server.numbers < OLDEST:
                raise Refused(f"{wanted.where} is nats-server {link.server.version}", do="use 2.9 or newer")
            _refuse_copies(link, wanted.replicas)
            bucket = Bucket(link, clock, time)
            await bucket.open(create=create)
            _refuse_copies(link, bucket.replicas)
            flows = await Flows.open(link, clock, bucket.time, patterns=wanted.patterns, create=create)
        except BaseException:
            await link.close()
            raise
        return cls(link, bucket, flows, clock)

    def records(self, collection: Collection) -> NatsRecords:
        """The records of one collection; the same ones each time."""
        if collection not in self._records:
            self._records[collection] = NatsRecords(self._bucket, collection, self._clock)
        return self._records[collection]

    async def pulse(self) -> Pulse:
        """Which server it is (another after a restart), or who leads the bucket where there are copies; its clock."""
        try:
            info = await self._bucket.info()
            at = self._bucket.time.read(info.ts) if info.ts is not None else await self._bucket.time.now()
        except StoreUnavailable:
            raise
        except WrasseError as error:
            raise StoreUnavailable(error.message, do=error.do) from error
        leads = f"{info.cluster.leader}/{info.cluster.leader_since}"
        return Pulse(leads if info.cluster.name else self.link.server.id, at)

    async def examine(self) -> Sequence[Finding]:
        """What this server's settings cost."""
        limited = await giving_up(self.flows.lanes.js, self.flows.lanes.layout)
        return (*judge(await health(self.link, self._bucket)), *judge_durables(limited))

    async def close(self) -> None:
        """Ends the connection."""
        await self.flows.groups.close()
        await self.link.close()


def _refuse_copies(link: Link, replicas: int) -> None:
    if loses_writes(link.server.numbers, replicas):
        raise Refused(
            f"{link.options.where} is nats-server {link.server.version}, which with {replicas} copies may confirm "
            "two writes of which it keeps one",
            do="use 2.9.21 or newer, or one copy: nats.replicas: 1",
        )
