"""S3 as a backend: objects and records, for any number of processes anywhere.

Opening probes the store and refuses one on which the promises would not hold. A store that is opened to read writes
nothing: what a reader must know is found out by reading, and the probe waits for the first change. Time is the store's,
estimated from its replies.

A store may answer every request and still ignore its condition. So the probe sends requests whose conditions must fail,
for a few small objects under a reserved name, checks the objects afterwards and removes them. A process that is killed
meanwhile leaves at most a dozen, and the first probe ten minutes later removes them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import ABSENT, ALL, PROBES, BucketVersions, Client, Condition, Conditions, gather_bounded
from wrasse.backends.s3.object_listing import Lister
from wrasse.backends.s3.objects import S3Objects
from wrasse.backends.s3.records import S3Namespaces, S3Records
from wrasse.backends.s3.transport import MARGIN, NoAnswer, S3Transport
from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreBroken, StoreUnavailable, UsageError, WrasseError
from wrasse.ports.backend import Capabilities, ObjectStore
from wrasse.ports.guard import HealthSample
from wrasse.ports.records import Collection

PROBE_MAX = 60.0
"""Seconds for the whole probe of a store."""
LEFT_AFTER = timedelta(minutes=10)
"""The age at which objects of a probe are leftovers; the next probe removes them, a page at a time."""
_WRONG = "0" * 32
_ORDERED = (b"o", b"o-x", b"o/x")  # a tree of folders lists o/x before o-x
_ODD = b"r//x"
_PLAIN = b"r/x"


async def probe(client: Client, prefix: bytes) -> Conditions:
    """Probes the store. Raises Refused if it does not honour enough, and our errors if it does not answer."""
    client = Client(client.wire)  # a client without a probe
    try:
        async with _in_time(client.where):
            found = await _Probe(client, prefix + PROBES + secrets.token_hex(8).encode() + b"/").found()
            with suppress(StoreUnavailable, StoreBroken, UsageError):
                await _remove_left(client, prefix + PROBES)
    except NoAnswer as unknown:
        raise unknown.why from unknown
    found.check(client.where)
    return found


async def read_conditions(client: Client, prefix: bytes) -> Conditions:
    """Finds out by reading what a reader must know. A store in byte order lists the folder `x` after `x.~`; one that
    lists by folder has passed it by then, and keeps no unusual keys either. In a bucket without folders the two list
    alike."""
    token, page_loop = None, PageLoop(client.where, "a listing")
    async with _in_time(client.where):
        while True:
            page_loop.turn(token)
            page = await client.list(prefix, token=token, by_folder=True)
            for folder in page.folders:
                if folder != prefix + PROBES and (ordered := await _orders(client, folder)) is not None:
                    return Conditions(ordered=ordered, raw_keys=ordered)
            token = page.token
            if token is None:
                return ALL


async def _orders(client: Client, folder: bytes) -> bool | None:
    """Whether this folder comes in byte order; None if nothing in it stays long enough to find out."""
    keys = [each.key for each in (await client.list(folder)).objects if each.etag]
    if not keys:
        return None
    after = await client.list(folder[:-1], after=folder[:-1] + b".~")
    if any(each.key.startswith(folder) for each in after.objects):
        return True
    return None if await client.head(keys[0]) is None else False


@asynccontextmanager
async def _in_time(where: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PROBE_MAX):
            yield
    except TimeoutError:
        raise StoreUnavailable(f"{where} took too long to probe", do="check the endpoint and the network") from None


async def _remove_left(client: Client, place: bytes) -> None:
    """Removes leftovers of killed probes. What cannot be removed now is tried again by the next probe."""
    before = client.wire.time.now() - LEFT_AFTER
    versions = BucketVersions(client)

    async def remove(key: bytes) -> None:
        await client.remove(key)
        await versions.wipe(key)

    await gather_bounded(remove, [each.key for each in (await client.list(place)).objects if each.modified_at < before])
    for each in (await client.uploads(place, None))[0]:
        if each.begun_at < before:
            await client.abort_upload(each.key, each.id)


class _Probe:
    def __init__(self, client: Client, place: bytes) -> None:
        self._client = client
        self._place = place

    async def found(self) -> Conditions:
        try:
            create = await self._create()
            # A store that fails here is refused; its other properties do not matter.
            replace = await self._replace()
            delete = await self._delete()
            if not (create and replace and delete):
                return Conditions(create, replace, delete)
            return Conditions(
                batch_delete=await self._batch_delete(),
                multipart=await self._multipart(),
                ordered=await self._ordered(),
                raw_keys=await self._raw_keys(),
            )
        finally:
            await self._remove()

    async def _create(self) -> bool:
        first = await self._client.put(self._key(b"c"), b"1", ABSENT)
        second = await self._client.put(self._key(b"c"), b"2", ABSENT)
        return first is not None and second is None and await self._holds(b"c", b"1")

    async def _replace(self) -> bool:
        made = await self._client.put(self._key(b"u"), b"1", None)
        assert made is not None, "a write without a condition cannot fail it"
        newer = await self._client.put(self._key(b"u"), b"2", Condition(made))
        stale = await self._client.put(self._key(b"u"), b"3", Condition(made))
        missing = await self._client.put(self._key(b"n"), b"4", Condition(made))
        return newer is not None and stale is None and missing is None and await self._holds(b"u", b"2")

    async def _delete(self) -> bool:
        made = await self._client.put(self._key(b"d"), b"1", None)
        assert made is not None, "a write without a condition cannot fail it"
        refused = not await self._quietly_deleted(b"d", _WRONG)
        return refused and await self._holds(b"d", b"1") and await self._quietly_deleted(b"d", made)

    async def _quietly_deleted(self, name: bytes, etag: str) -> bool:
        try:
            return await self._client.delete(self._key(name), etag)
        except NoAnswer:
            return False  # some stores answer an error instead of a refusal

    async def _batch_delete(self) -> bool:
        keys = [self._key(name) for name in (b"b1", b"b2")]
        tags = [await self._client.put(key, b"1", None) for key in keys]
        assert tags[0] is not None, "a write without a condition cannot fail it"
        try:
            refusals = await self._client.delete_many([(keys[0], tags[0]), (keys[1], _WRONG)])
        except (NoAnswer, WrasseError):
            return False
        gone = await self._client.head(keys[0]) is None
        return gone and {each.key for each in refusals} == {keys[1]} and await self._holds(b"b2", b"1")

    async def _multipart(self) -> bool:
        key = self._key(b"m")
        await self._client.put(key, b"1", None)
        upload = await self._client.begin_upload(key, {})
        try:
            part = await self._client.put_part(key, upload, 1, b"2")
            completed = await self._client.complete_upload(key, upload, [part], ABSENT)
        except (NoAnswer, StoreUnavailable):
            completed = ""
        with suppress(StoreUnavailable):
            await self._client.abort_upload(key, upload)
        return completed is None and await self._holds(b"m", b"1")

    async def _ordered(self) -> bool:
        for name in _ORDERED:
            await self._client.put(self._key(name), b"", None)
        whole = await self._client.list(self._key(b"o"))
        rest = await self._client.list(self._key(b"o"), after=self._key(_ORDERED[0]))
        wanted = [self._key(name) for name in _ORDERED]
        return [each.key for each in whole.objects] == wanted and [each.key for each in rest.objects] == wanted[1:]

    async def _raw_keys(self) -> bool:
        try:
            await self._client.put(self._key(_ODD), b"odd", None)
        except (UsageError, StoreUnavailable):
            return False
        shown = await self._client.list(self._key(b"r"))
        plain = await self._client.head(self._key(_PLAIN))
        return [each.key for each in shown.objects] == [self._key(_ODD)] and plain is None

    async def _holds(self, name: bytes, data: bytes) -> bool:
        got = await self._client.get(self._key(name))
        return got is not None and got.data == data

    async def _remove(self) -> None:
        # Also what a store made of unusual names; and each by name too, for a store that cannot list.
        names = [b"c", b"u", b"n", b"d", b"b1", b"b2", b"m", *_ORDERED, _ODD, _PLAIN]
        versions = BucketVersions(self._client)
        for name in names:
            with suppress(StoreUnavailable, UsageError):
                await self._client.remove(self._key(name))
                await versions.wipe(self._key(name))

    def _key(self, name: bytes) -> bytes:
        return self._place + name


_SYSTEM = SystemClock()


class S3(ObjectStore):
    """A backend: objects, records and a health sample. Made by `open`."""

    capabilities = Capabilities(jobs=True, objects=True, billed=True, copies=True, multipart=True, versions=True)
    margin = MARGIN  # by how much its time may be off

    def __init__(self, client: Client) -> None:
        self._client, self._wire = client, client.wire
        self._prefix = client.wire.address.key_prefix.encode()
        self.objects = S3Objects(client, self._prefix)
        self.namespaces = S3Namespaces(client, Lister(client), self._prefix)
        self._records: dict[Collection, S3Records] = {}

    @classmethod
    async def open(
        cls, address: S3Address, clock: Clock = _SYSTEM, *, wire: S3Transport | None = None, to_read: bool = False
    ) -> S3:
        """Opens the bucket, which must exist. `wire` sends its requests."""
        wire = wire if wire is not None else S3Transport(address, clock)
        prefix = address.key_prefix.encode()
        try:
            client = Client(wire)
            await client.bucket_is_there()
            if to_read:
                return cls(Client(wire, await read_conditions(client, prefix), lambda: probe(client, prefix)))
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

    async def health_sample(self) -> HealthSample:
        """Checks that the bucket answers, and reads the store's clock."""
        try:
            return HealthSample(f"s3-{self._wire.address}", await self._client.bucket_is_there())
        except StoreUnavailable:
            raise
        except WrasseError as why:
            raise StoreUnavailable(why.message, do=why.do) from why

    async def close(self) -> None:
        """Closes the connections; no call is accepted afterwards."""
        await self._wire.close()
