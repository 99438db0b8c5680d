"""A versioned bucket keeps what is deleted: it comes back as it was, or goes for good. On a real server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from conformance.object_stores import make_bucket, versioned_bucket
from servers.seaweed import S3 as S3Server
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.connect import S3
from wrasse.clock import SystemClock
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome

KEY = "archives/a b/ä.tar"


@pytest.fixture
async def bucket(s3: S3Server) -> AsyncIterator[S3]:
    store = await S3.open(await versioned_bucket(s3), SystemClock())
    yield store
    await store.close()


async def put(store: S3, data: bytes) -> str:
    head = await store.objects.head(KEY)
    stored = await (
        store.objects.create(KEY, data, metadata={"kind": "archive"})
        if head is None
        else store.objects.replace(KEY, data, at=head.info.version)
    )
    assert stored.version is not None
    return stored.version


async def drop(store: S3, version: str) -> None:
    assert await store.objects.delete([ObjectDelete(KEY, version)]) == [Outcome.DONE]


async def content(store: S3) -> bytes:
    return b"".join([chunk async for chunk in store.objects.read(KEY)])


async def left(store: S3) -> list[bool]:
    """Of each version and each marker below the prefix whether it is a marker."""
    found, _ = await Client(store._wire).versions(store._wire.address.key_prefix.encode(), None)
    return [each.marker for each in found]


async def test_what_was_deleted_comes_back_as_it_was_and_nothing_is_left_over(bucket: S3) -> None:
    version = await put(bucket, b"one")
    before = await bucket.objects.head(KEY)
    await drop(bucket, version)
    assert await bucket.objects.keeps_deleted()
    assert await bucket.objects.deleted(KEY, at=version)
    assert await bucket.objects.undelete(KEY, at=version) is Outcome.DONE
    assert (await content(bucket), await bucket.objects.head(KEY)) == (b"one", before)
    assert await left(bucket) == [False]


async def test_of_a_key_with_a_past_the_version_that_was_asked_for_comes_back(bucket: S3) -> None:
    older = await put(bucket, b"older")
    version = await put(bucket, b"newer")
    await drop(bucket, version)
    assert await bucket.objects.undelete(KEY, at=older) is Outcome.DONE
    assert await content(bucket) == b"older"


async def test_what_stands_at_the_key_by_now_is_neither_replaced_nor_purged(bucket: S3) -> None:
    version = await put(bucket, b"one")
    await drop(bucket, version)
    await put(bucket, b"two")
    assert await bucket.objects.undelete(KEY, at=version) is Outcome.CONFLICT
    assert await bucket.objects.purge(KEY, at=version) is Outcome.DONE
    assert await content(bucket) == b"two"
    assert not await bucket.objects.deleted(KEY, at=version)


async def test_what_is_purged_is_gone_with_its_marker(bucket: S3) -> None:
    version = await put(bucket, b"one")
    await drop(bucket, version)
    assert await bucket.objects.purge(KEY, at=version) is Outcome.DONE
    assert await left(bucket) == []
    assert await bucket.objects.undelete(KEY, at=version) is Outcome.CONFLICT


async def test_opening_a_bucket_leaves_no_version_behind(bucket: S3) -> None:
    assert await left(bucket) == []


async def test_a_bucket_without_versions_keeps_nothing(s3: S3Server) -> None:
    store = await S3.open(await make_bucket(s3), SystemClock())
    assert not await store.objects.keeps_deleted()
    assert await store.objects.undelete(f"{secrets.token_hex(4)}/x", at="0" * 32) is Outcome.CONFLICT
    await store.close()
