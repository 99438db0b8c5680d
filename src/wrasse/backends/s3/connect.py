"""A bucket as a backend: objects and records, for any number of processes anywhere.

Opening probes the store and refuses one on which the promises would not hold. Whoever opens it to read writes nothing:
what a reader must know is asked by reading, and the probe waits for a first change. Time is the store's, as far as its
replies tell it.
"""

from __future__ import annotations

from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.conditions import Conditions
from wrasse.backends.s3.listing import Lister
from wrasse.backends.s3.namespaces import S3Namespaces
from wrasse.backends.s3.objects import S3Objects
from wrasse.backends.s3.probe import look, probe
from wrasse.backends.s3.records import S3Records
from wrasse.backends.s3.wire import MARGIN, Wire
from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreUnavailable, WrasseError
from wrasse.ports.backend import ObjectStore
from wrasse.ports.capabilities import Capabilities
from wrasse.ports.pulse import Pulse
from wrasse.ports.records import Collection

_SYSTEM = SystemClock()


class S3(ObjectStore):
    """A backend: objects, records and a pulse. Made by `open`."""

    capabilities = Capabilities(jobs=True, objects=True, billed=True, copies=True, multipart=True, versions=True)
    margin = MARGIN  # how far the time it tells may be off

    def __init__(self, client: Client) -> None:
        self._client, self._wire = client, client.wire
        self._prefix = client.wire.address.key_prefix.encode()
        self.objects = S3Objects(client, self._prefix)
        self.namespaces = S3Namespaces(client, Lister(client), self._prefix)
        self._records: dict[Collection, S3Records] = {}

    @classmethod
    async def open(
        cls, address: S3Address, clock: Clock = _SYSTEM, *, wire: Wire | None = None, to_read: bool = False
    ) -> S3:
        """Opens the bucket, which must be there. `wire` is what sends its requests."""
        wire = wire if wire is not None else Wire(address, clock)
        prefix = address.key_prefix.encode()
        try:
            client = Client(wire)
            await client.bucket_is_there()
            if to_read:
                return cls(Client(wire, await look(client, prefix), lambda: probe(client, prefix)))
            client.conditions = await probe(client, prefix)
            return cls(client)
        except BaseException:
            await wire.close()
            raise

    @property
    def requests(self) -> int:
        """How many requests were sent so far."""
        return self._wire.requests

    def records(self, collection: Collection) -> S3Records:
        """The records of one collection; the same ones each time."""
        if collection not in self._records:
            self._records[collection] = S3Records(self._client, self._prefix, collection)
        return self._records[collection]

    async def honours(self) -> Conditions:
        return await self._client.probed()

    async def pulse(self) -> Pulse:
        """That the bucket answers, and the store's clock."""
        try:
            return Pulse(f"s3-{self._wire.address}", await self._client.bucket_is_there())
        except StoreUnavailable:
            raise
        except WrasseError as why:
            raise StoreUnavailable(why.message, do=why.do) from why

    async def close(self) -> None:
        """Closes the connections; nothing may be asked afterwards."""
        await self._wire.close()
