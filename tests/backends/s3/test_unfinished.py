"""Uploads in parts that were never completed: found by prefix, aborted once, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conformance.object_stores import BUCKET, make_bucket
from servers.seaweed import S3 as S3Server
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.clock import SystemClock
from wrasse.ports.objects import OpenUpload
from wrasse.ports.outcome import Outcome


@pytest.fixture
async def store(s3: S3Server) -> AsyncIterator[S3]:
    await make_bucket(s3)
    address = S3Address(BUCKET, "unfinished", s3.endpoint, access_key=s3.key, secret_key=s3.secret)
    store = await S3.open(address, SystemClock())
    yield store
    await store.close()


async def begun(store: S3, key: str) -> str:
    return await store.objects._client.begin_upload(store.objects._raw(key), {})


async def every(store: S3, prefix: str) -> list[OpenUpload]:
    found, after = [], None
    while True:
        page = await store.objects.multipart.uploads(prefix, after, 1)
        found += page.items
        if not page.more:
            return found
        after = page.cursors[-1]


async def test_unfinished_uploads_are_listed_by_prefix_and_given_up_once(store: S3) -> None:
    ids = {key: await begun(store, key) for key in ("archives/ws1/a/big", "archives/ws2/b/big", "other/x")}
    found = await every(store, "archives/")
    assert {each.key: each.id for each in found} == {key: id for key, id in ids.items() if key != "other/x"}
    now = (await store.health_sample()).at
    assert all(abs((now - each.begun_at).total_seconds()) < 120 for each in found)
    assert list(await store.objects.abort([found[0], found[0]])) == [Outcome.DONE, Outcome.CONFLICT]
    assert [each.key for each in await every(store, "archives/")] == [found[1].key]
    await store.objects.abort([found[1], *await every(store, "other/")])
