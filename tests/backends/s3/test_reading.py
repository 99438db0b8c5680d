"""A bucket that is opened to read: nothing is written there, what must be known is asked by reading, and the probe
waits for a first change."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from itertools import count

import pytest
from aiohttp import web

from backends.s3.scene import Scene, scene
from conformance.object_stores import listed, make_bucket, whole
from servers.seaweed import READER, S3 as S3Server
from servers.strict_s3 import DENIED
from wrasse.backends import page_loop
from wrasse.backends.s3.client import Conditions
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.records import RETIRED_AFTER, STALE
from wrasse.errors import OnlyReads, Refused, StoreBroken, UsageError
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.records import Collection, Record

KEYS = ("x", "x-y", "x.z", "x/y", "x/z/1", "x0")
ODD = ("a//b", "x\\y")
NOTES = Collection.named("notes", width=timedelta(minutes=1))


async def reader(now: Scene) -> S3:
    return await S3.open(now.backend._wire.address, now.clock, to_read=True)


def changes(now: Scene) -> list[tuple[str, str]]:
    return [each for each in now.server.requests if each[0] not in ("GET", "HEAD")]


async def test_a_reader_of_a_store_in_byte_order_reads_all_and_sends_nothing_but_questions() -> None:
    async with scene() as now:
        for key in (*KEYS, *ODD):
            await now.backend.objects.create(key, key.encode())
        now.server.requests.clear()
        store = await reader(now)
        found = [each.key for each in await listed(store.objects)]
        bytes_of = [await whole(store.objects, key) for key in ODD]
        await store.close()
        assert (found, bytes_of) == (sorted((*KEYS, *ODD)), [key.encode() for key in ODD])
        assert changes(now) == []


async def test_a_reader_of_a_store_of_folders_may_have_no_right_to_write(s3: S3Server) -> None:
    address = dataclasses.replace(await make_bucket(s3), prefix=secrets.token_hex(6))
    writer = await S3.open(address)
    for key in KEYS:
        await writer.objects.create(key, b"1")
    wanted = [each.key for each in await listed(writer.objects)]
    await writer.close()
    store = await S3.open(dataclasses.replace(address, access_key=READER[0], secret_key=READER[1]), to_read=True)
    try:
        assert [each.key for each in await listed(store.objects)] == wanted == sorted(KEYS)
        assert await whole(store.objects, "x/y") == b"1"
        with pytest.raises(UsageError, match="does not keep keys like this one unchanged"):
            await store.objects.head("x//y")
        with pytest.raises(OnlyReads):
            await store.objects.create("new", b"1")
    finally:
        await store.close()


async def test_a_bucket_without_folders_is_probed_before_the_first_write(s3: S3Server) -> None:
    address = dataclasses.replace(await make_bucket(s3), prefix=secrets.token_hex(6))
    store = await S3.open(address, to_read=True)
    try:
        assert await listed(store.objects) == []
        with pytest.raises(UsageError, match="does not keep keys like this one unchanged"):
            await store.objects.create("x//y", b"1")
        for key in KEYS:
            await store.objects.create(key, b"1")
        assert [each.key for each in await listed(store.objects)] == sorted(KEYS)
        assert await store.honours() == Conditions(ordered=False, raw_keys=False)
    finally:
        await store.close()


@pytest.mark.parametrize("change", ["create", "replace", "delete", "copy", "record"])
async def test_a_careless_store_that_was_opened_to_read_is_refused_before_the_first_change(
    careless_store: S3Server, change: str
) -> None:
    address = dataclasses.replace(await make_bucket(careless_store, "careless"), prefix=secrets.token_hex(6))
    store = await S3.open(address, to_read=True)
    asked = {
        "create": lambda: store.objects.create("a", b"1"),
        "replace": lambda: store.objects.replace("a", b"1", at="0" * 32),
        "delete": lambda: store.objects.delete([ObjectDelete("a", "0" * 32)]),
        "copy": lambda: store.objects.copies.copy("a", "b", at="0" * 32),
        "record": lambda: store.records(NOTES).create("a", b"1"),
    }
    try:
        with pytest.raises(Refused, match="ignores the condition of a create"):
            await asked[change]()
        assert await listed(store.objects) == []
    finally:
        await store.close()


async def test_a_reader_sees_what_is_due_and_leaves_the_due_index_as_it_is() -> None:
    async with scene() as now:
        records, begin = now.backend.records(NOTES), now.clock.now()
        for name, minutes in (("moved", 1), ("deleted", 2), ("kept", 3)):
            await records.create(name, b"1", due_at=begin + timedelta(minutes=minutes), nonce=name)
        now.server.plan = lambda method, path: DENIED if method == "DELETE" else None  # so that old entries stay
        versions = {record.key: record.version for record in await records.page("", None, 10)}
        await records.put("moved", b"2", at=versions["moved"], due_at=begin + timedelta(minutes=4))
        await records.delete("deleted", at=versions["deleted"], nonce="gone")
        now.server.plan = lambda method, path: None
        now.clock.advance(timedelta(hours=2) + STALE + RETIRED_AFTER)
        now.server._drop(f"here/{NOTES.buckets.strip('/')}".encode())  # so that folders are found by looking
        things = dict(now.server.things)
        now.server.requests.clear()
        store = await reader(now)
        found = [each.key async for each in _due(store)]
        await store.close()
        assert (found, changes(now), now.server.things) == (["kept", "moved"], [], things)
        other = await now.another()
        assert [each.key async for each in _due(other)] == found
        await other.close()
        assert now.server.things != things, "a process that may write tidies up"


async def _due(store: S3) -> AsyncIterator[Record]:
    after: str | None = None
    while True:
        page = await store.records(NOTES).due(None, after, 1)
        for each in page:
            yield each
        after = page.cursor
        if after is None:
            return


async def test_a_folder_that_is_emptied_meanwhile_says_nothing_of_a_store() -> None:
    async with scene() as now:
        for key in ("a/1", "b/1", *ODD):
            await now.backend.objects.create(key, b"1")

        def empty(method: str, path: bytes) -> None:
            if "start-after" in now.server.requests[-1][1]:
                now.server._drop(b"here/a/1")
                now.server._drop(b"here/a//b")

        now.server.plan = empty
        store = await reader(now)
        assert [each.key for each in await listed(store.objects)] == ["b/1", "x\\y"]
        assert await whole(store.objects, "x\\y") == b"1"
        await store.close()


async def test_a_store_that_shows_no_folder_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_loop, "ROUNDS_MAX", 20)
    tokens = count()

    def endless(query: Mapping[str, str]) -> web.Response:
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{next(tokens)}</NextContinuationToken>"
        return web.Response(text=f"<ListBucketResult>{more}</ListBucketResult>")

    async with scene() as now:
        now.server._list = endless  # type: ignore[method-assign]
        with pytest.raises(StoreBroken, match="without end"):
            await reader(now)
