"""A store is probed when it is opened: what it honours is known, a careless one is refused, nothing stays."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from datetime import timedelta

import pytest

from backends.s3.scene import scene
from conformance.object_stores import make_bucket
from servers.seaweed import S3 as S3Server
from servers.strict_s3 import BUSY
from wrasse.backends.s3 import connect
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import Client, Conditions
from wrasse.backends.s3.connect import LEFT_AFTER, S3
from wrasse.backends.s3.transport import S3Transport
from wrasse.clock import SystemClock
from wrasse.errors import ConfigError, Refused, StoreUnavailable


async def test_seaweedfs_honours_conditions_and_lists_by_folder(s3: S3Server) -> None:
    address = await make_bucket(s3)
    backend = await S3.open(address)
    try:
        found = await backend.honours()
        wire = Client(S3Transport(address, SystemClock()))
        left = (await wire.list(b".wrasse-probe/")).objects
        await wire.wire.close()
    finally:
        await backend.close()
    assert (found, [each for each in left if each.etag]) == (Conditions(ordered=False, raw_keys=False), [])


async def test_a_strict_store_honours_all_and_nothing_stays() -> None:
    async with scene() as now:
        assert (await now.backend.honours(), now.server.keys, now.server.uploads) == (Conditions(), [], {})


CHILD = """
import asyncio, sys
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
asyncio.run(S3.open(S3Address("bucket", "here", sys.argv[1], access_key="k", secret_key="s")))
"""


@pytest.mark.parametrize("killed_at", ["/c", "/u", "delete=", "uploads=", "partNumber", "list-type"])
async def test_what_a_killed_process_left_is_removed_by_a_later_start_and_not_by_one_beside_it(killed_at: str) -> None:
    async with scene() as now:
        child: asyncio.subprocess.Process | None = None

        def kill(method: str, path: bytes) -> None:
            if child is not None and child.returncode is None and killed_at in now.server.requests[-1][1]:
                with suppress(ProcessLookupError):
                    child.kill()

        now.server.plan = kill
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, now.server.endpoint)
        async with asyncio.timeout(60):
            assert await child.wait() == -signal.SIGKILL
        left = (list(now.server.keys), dict(now.server.uploads))
        assert 1 <= len(left[0]) <= 12
        await (await now.another()).close()
        assert (now.server.keys, now.server.uploads) == left  # it may be running
        now.clock.advance(LEFT_AFTER + timedelta(seconds=2))
        await (await now.another()).close()
        assert (now.server.keys, now.server.uploads) == ([], {})


async def test_what_a_killed_process_left_on_seaweedfs_goes(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = await make_bucket(s3, "left")
    client = Client(S3Transport(address, SystemClock()))
    await client.put(b".wrasse-probe/0123456789abcdef/o/x", b"1", None)
    await client.begin_upload(b".wrasse-probe/0123456789abcdef/m", {})
    monkeypatch.setattr(connect, "LEFT_AFTER", timedelta(seconds=-5))
    await (await S3.open(address)).close()
    left = [each for each in (await client.list(b".wrasse-probe/")).objects if each.etag]
    uploads = (await client.uploads(b".wrasse-probe/", None))[0]
    await client.wire.close()
    assert (left, uploads) == ([], ())


async def test_a_store_that_ignores_conditions_is_refused(careless_store: S3Server) -> None:
    address = await make_bucket(careless_store, "careless")
    with pytest.raises(Refused, match="ignores the condition of a create"):
        await S3.open(address)
    wire = S3Transport(address, SystemClock())
    left = (await Client(wire).list(b"")).objects
    await wire.close()
    assert left == ()


@pytest.mark.parametrize("lacking", ["create", "replace", "delete"])
def test_each_condition_is_needed(lacking: str) -> None:
    with pytest.raises(Refused, match=lacking):
        Conditions(**{lacking: False}).check("s3://bucket")


async def test_a_store_without_conditions_in_batches_deletes_one_by_one() -> None:
    async with scene() as now:
        honest = now.server._delete_many
        now.server._delete_many = lambda body: honest(body.replace(b"ETag", b"Tag"))  # type: ignore[method-assign]
        careless = await now.another()
        await careless.close()
        assert await careless.honours() == Conditions(batch_delete=False)


async def test_a_store_without_conditions_for_large_objects_refuses_those() -> None:
    async def large():  # type: ignore[no-untyped-def]
        yield bytes(9 << 20)

    async with scene() as now:
        honest = now.server._refused

        def careless(headers, key):  # type: ignore[no-untyped-def]
            return None if headers.get("Content-Type") == "application/xml" else honest(headers, key)

        now.server._refused = careless  # type: ignore[method-assign]
        backend = await now.another()
        try:
            with pytest.raises(Refused, match="large"):
                await backend.objects.create("a", large())
            assert (await backend.objects.create("a", b"small")).version
        finally:
            await backend.close()
        assert await backend.honours() == Conditions(multipart=False)


async def test_a_bucket_that_is_not_there_is_told_by_name(s3: S3Server) -> None:
    with pytest.raises(ConfigError, match="no-such-bucket"):
        await S3.open(S3Address("no-such-bucket", "", s3.endpoint, access_key=s3.key, secret_key=s3.secret))


async def test_wrong_credentials_are_told(s3: S3Server) -> None:
    address = await make_bucket(s3)
    wrong = S3Address(address.bucket, "", s3.endpoint, access_key=s3.key, secret_key="wrong")
    with pytest.raises((ConfigError, StoreUnavailable), match=r"credentials|denies"):
        await S3.open(wrong)


async def test_a_store_that_is_busy_at_the_start_is_no_careless_one() -> None:
    async with scene() as now:
        now.server.plan = lambda method, path: BUSY if method == "PUT" else None
        with pytest.raises(StoreUnavailable):
            await now.another()
