"""Objects in a bucket when replies are lost, streams break and objects are large. Facts that only S3 has."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from backends.s3.scene import once, scene
from conformance.object_stores import make_bucket, whole
from servers.proxy import proxy
from servers.seaweed import S3 as S3Server
from servers.strict_s3 import BUSY, BUSY_AFTER, CUT_AFTER, CUT_BEFORE
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import ABSENT, Client
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.objects import PART_BYTES, PARTS_AT_ONCE, from_headers, to_headers
from wrasse.backends.s3.transport import TRIES
from wrasse.clock import SystemClock
from wrasse.errors import Gone, StoreUnavailable, UsageError
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome

FAULTS = [BUSY, BUSY_AFTER, CUT_BEFORE, CUT_AFTER]


async def pieces(count: int, size: int = 1 << 20) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * size


# Lost replies


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_create_whose_reply_was_lost_is_known_for_ours(fault: str) -> None:
    async with scene() as now:
        now.server.plan = once(fault, "PUT")
        made = await now.backend.objects.create("a", b"mine", metadata={"n": "1"})
        again = await now.backend.objects.create("a", b"mine", metadata={"n": "1"})
        head = await now.backend.objects.head("a")
        assert head is not None
        assert (made.outcome, made.version, again.outcome) == (Outcome.DONE, head.info.version, Outcome.CONFLICT)
        assert dict(head.metadata) == {"n": "1"}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_replace_whose_reply_was_lost_is_known_for_ours(fault: str) -> None:
    async with scene() as now:
        first = await now.backend.objects.create("a", b"1")
        now.server.plan = once(fault, "PUT")
        made = await now.backend.objects.replace("a", b"2", at=first.version or "")
        assert (made.outcome, await whole(now.backend.objects, "a", at=made.version)) == (Outcome.DONE, b"2")


async def test_a_lost_reply_and_the_object_of_another_writer_is_unknown_and_never_a_conflict() -> None:
    async with scene() as now:
        other = await now.another()

        def overtaken(method: str, path: bytes) -> str | None:
            if method == "PUT" and path.endswith(b"/a") and b"here/a" not in now.server.things:
                now.server.plan = lambda method, path: None
                now.server._put({}, b"here/a", b"theirs", "e" * 32, {})
                return CUT_BEFORE
            return None

        now.server.plan = overtaken
        answer = await now.backend.objects.create("a", b"mine")
        await other.close()
        assert (answer.outcome, await whole(now.backend.objects, "a")) == (Outcome.UNKNOWN, b"theirs")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["k", "alone\x01"], ids=["in a batch", "alone, since XML cannot say it"])
async def test_a_delete_whose_reply_was_lost_is_never_called_a_conflict(fault: str, name: str) -> None:
    async with scene() as now:
        made = [await now.backend.objects.create(f"{name}{n}", b"%d" % n) for n in range(3)]
        now.server.plan = once(fault, "POST", "DELETE")
        deletes = [ObjectDelete(f"{name}{n}", each.version or "") for n, each in enumerate(made)]
        outcomes = await now.backend.objects.delete(deletes)
        left = (await now.backend.objects.page("", None, 10)).items
        assert (set(outcomes) <= {Outcome.DONE, Outcome.UNKNOWN}, left) == (True, ())


@pytest.mark.parametrize("name", ["k", "alone\x01"])
async def test_deletes_that_never_get_through_are_one_error(name: str) -> None:
    async with scene() as now:
        made = [await now.backend.objects.create(f"{name}{n}", b"%d" % n) for n in range(3)]
        now.server.plan = lambda method, path: CUT_BEFORE
        with pytest.raises(StoreUnavailable):
            await now.backend.objects.delete([ObjectDelete(f"{name}{n}", m.version or "") for n, m in enumerate(made)])


async def test_a_write_that_never_gets_through_is_an_error() -> None:
    async with scene() as now:
        now.server.plan = once(CUT_BEFORE, "PUT", times=TRIES)
        with pytest.raises(StoreUnavailable):
            await now.backend.objects.create("a", b"1")
        assert await now.backend.objects.head("a") is None


async def test_over_a_real_server_a_dropped_reply_is_recognised(s3: S3Server) -> None:
    address = await make_bucket(s3)
    port = int(address.endpoint.rpartition(":")[2])
    async with proxy(port) as between:
        through = S3Address(
            address.bucket, f"lost-{os.getpid()}", f"http://127.0.0.1:{between.port}",
            access_key=s3.key, secret_key=s3.secret,
        )  # fmt: skip
        backend = await S3.open(through)
        wire_put = backend._client.put

        async def put_unheard(*args: object) -> str | None:
            between.deaf = True
            backend._client.put = wire_put  # type: ignore[method-assign]
            try:
                return await wire_put(*args)  # type: ignore[arg-type]
            finally:
                between.deaf = False

        backend._client.put = put_unheard  # type: ignore[assignment,method-assign]
        made = await backend.objects.create("a", b"mine")
        dropped = between.replies_dropped
        await backend.close()
    assert (made.outcome, dropped) == (Outcome.DONE, 1)


# Reading


async def test_a_read_that_breaks_off_goes_on_where_it_was() -> None:
    async with scene() as now:
        data = os.urandom(6 << 20)
        await now.backend.objects.create("a", data)
        async with proxy(int(now.server.endpoint.rpartition(":")[2])) as between:
            address = S3Address("bucket", "here", f"http://127.0.0.1:{between.port}", access_key="k", secret_key="s")
            through = await S3.open(address, now.clock)
            got = bytearray()
            async for chunk in through.objects.read("a"):
                if not got:
                    between.cut()
                got += chunk
            await through.close()
        assert bytes(got) == data


async def test_a_read_that_breaks_off_does_not_go_on_in_another_version() -> None:
    async with scene() as now:
        large = bytes(48 << 20)  # more than all buffers on the way together can hold
        made = await now.backend.objects.create("a", large)
        async with proxy(int(now.server.endpoint.rpartition(":")[2])) as between:
            address = S3Address("bucket", "here", f"http://127.0.0.1:{between.port}", access_key="k", secret_key="s")
            through = await S3.open(address, now.clock)
            reading = through.objects.read("a")
            try:
                await anext(reading)
                await now.backend.objects.replace("a", b"x" + large[1:], at=made.version or "")
                between.cut()
                with pytest.raises(Gone):
                    async for _ in reading:
                        pass
            finally:
                await through.close()


# Large objects


async def test_a_large_object_is_streamed_both_ways_in_little_memory(s3: S3Server) -> None:
    address = await make_bucket(s3)
    place = S3Address(address.bucket, f"large-{os.getpid()}", s3.endpoint, access_key=s3.key, secret_key=s3.secret)
    backend = await S3.open(place)
    count = 12 * PART_BYTES >> 20
    tracemalloc.start()
    try:
        made = await backend.objects.create("a", pieces(count))
        size = 0
        async for chunk in backend.objects.read("a", at=made.version):
            size += len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await backend.close()
    assert (made.outcome, size) == (Outcome.DONE, count << 20)
    assert peak < (PARTS_AT_ONCE + 3) * PART_BYTES


async def test_a_large_object_is_created_once_and_its_parts_do_not_stay() -> None:
    async with scene() as now:
        first = await now.backend.objects.create("a", pieces(17))
        second = await now.backend.objects.create("a", pieces(17))
        assert (first.outcome, second.outcome, now.server.uploads) == (Outcome.DONE, Outcome.CONFLICT, {})


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_large_object_whose_last_reply_was_lost_is_known_for_ours(fault: str) -> None:
    async with scene() as now:

        def last(method: str, path: bytes) -> str | None:
            started = [raw for sent, raw in now.server.requests if sent == "POST" and raw.endswith("uploads=")]
            if method == "POST" and len(started) and now.server.requests[-1][1].startswith("/bucket/here/a?uploadId"):
                now.server.plan = lambda method, path: None
                return fault
            return None

        now.server.plan = last
        made = await now.backend.objects.create("a", pieces(17))
        head = await now.backend.objects.head("a")
        assert head is not None
        assert (made.outcome, made.version, now.server.uploads) == (Outcome.DONE, head.info.version, {})


async def test_a_stream_that_breaks_late_leaves_neither_object_nor_parts() -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for piece in pieces(18):
            yield piece
        raise RuntimeError("the source broke")

    async with scene() as now:
        with pytest.raises(RuntimeError, match="the source broke"):
            await now.backend.objects.create("a", broken())
        assert (await now.backend.objects.head("a"), now.server.uploads) == (None, {})


async def test_open_uploads_are_listed_page_by_page_and_can_be_aborted() -> None:
    async with scene() as now:
        client: Client = now.backend._client
        begun = {(key, await client.begin_upload(key, {})) for key in (b"a", b"a//b", b"\xff", b"a") for _ in range(2)}
        found, markers = await client.uploads(b"", None, 3)
        while markers is not None:
            more, markers = await client.uploads(b"", markers, 3)
            found += more
        for each in found:
            await client.abort_upload(each.key, each.id)
        assert ({(each.key, each.id) for each in found}, now.server.uploads) == (begun, {})


async def test_a_copy_is_made_of_one_version_and_overwrites_nothing() -> None:
    async with scene() as now:
        client: Client = now.backend._client
        etag = await client.put(b"a//b", b"1", None, {"x-amz-meta-n": "1"})
        assert etag is not None
        copies = [
            await client.copy(b"a//b", "0" * 32, b"c", ABSENT),
            await client.copy(b"a//b", etag, b"c", ABSENT),
            await client.copy(b"a//b", etag, b"c", ABSENT),
        ]
        seen = await client.head(b"c")
        assert (copies, seen and seen.headers["x-amz-meta-n"]) == ([None, etag, None], "1")


# Metadata and odd stores


@pytest.mark.parametrize(
    "metadata",
    [{}, {"plain": "x y"}, {"UPPER": "x"}, {"under_score": "x"}, {"a": "100%", "b": "é\n", "c": "", "wrasse-x": " y "}],
)
def test_metadata_comes_back_as_it_was_given(metadata: dict[str, str]) -> None:
    headers = to_headers(metadata, "n")
    assert (from_headers(headers), all(value.isascii() for value in headers.values())) == (metadata, True)


def test_metadata_of_others_is_taken_as_it_is() -> None:
    assert from_headers({"x-amz-meta-a": "100%25", "etag": "x"}) == {"a": "100%25"}


async def test_a_store_that_keeps_folders_refuses_what_it_would_confuse(s3: S3Server) -> None:
    address = await make_bucket(s3)
    place = S3Address(address.bucket, f"odd-{os.getpid()}", s3.endpoint, access_key=s3.key, secret_key=s3.secret)
    backend = await S3.open(place, SystemClock())
    try:
        await backend.objects.create("a/b", b"")
        for key in ("a//b", "a/", "./a", "a\\b", "a", "x" * 256):
            with pytest.raises(UsageError):
                await backend.objects.create(key, b"")
        shown = [info.key for info in await backend.objects.page("", None, 10)]
    finally:
        await backend.close()
    assert shown == ["a/b"]


async def test_names_of_probes_are_reserved_and_not_shown() -> None:
    async with scene() as now:
        now.server._put({}, b"here/.wrasse-probe/x", b"", "e" * 32, {})
        await now.backend.objects.create("z", b"")
        with pytest.raises(UsageError):
            await now.backend.objects.create(".wrasse-probe/y", b"")
        assert [info.key for info in await now.backend.objects.page("", None, 1)] == ["z"]
