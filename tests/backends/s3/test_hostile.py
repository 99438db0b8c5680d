"""A store that means harm, in every state of the client: an error of ours in time, bounded memory, and no hang."""

from __future__ import annotations

import asyncio
import gzip
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from backends.s3.scene import scene
from servers.hostile_http import Act, HostileHttp, endless, hostile_http, sends, sends_and_waits
from servers.strict_s3 import StrictS3
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.transport import ERROR_BYTES_MAX, RATE_MIN, Body, Deadline, NoAnswer, S3Request, S3Transport
from wrasse.clock import ManualClock
from wrasse.errors import ConfigError, StoreBroken, StoreUnavailable, WrasseError
from wrasse.ports.objects import ObjectDelete, OpenUpload
from wrasse.ports.records import Collection

OK = b"HTTP/1.1 200 OK\r\n"
LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated>"
PIECE = b"10000\r\n" + b"<" * 65536 + b"\r\n"
THINGS = Collection("things", "index", "buckets.json")

ACTS: dict[str, Act] = {
    "nothing": sends_and_waits(b""),
    "early close": sends(b""),
    "garbage": sends(b"\x00\xff SSH-2.0-OpenSSH\r\n\r\n"),
    "half a head": sends_and_waits(OK + b"ETag: "),
    "a trickled head": endless(OK + b"X: ", b"x", 0.05),
    "endless headers": endless(OK, b"X-Y: " + b"z" * 1000 + b"\r\n"),
    "an endless line": endless(OK + b"X: ", b"x" * 65536),
    "no length": endless(OK + b"\r\n", b"<" * 65536),
    "a trickled body": endless(OK + b"Content-Length: 9999999\r\n\r\n", b"<", 0.05),
    "endless chunks": endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", PIECE),
    "chunks of a negative size": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n0\r\n\r\n"),
    "a huge chunk": sends_and_waits(OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffff\r\nabc"),
    "a negative length": sends(OK + b"Content-Length: -1\r\n\r\nabc"),
    "a huge length": endless(OK + b"Content-Length: 99999999999999999999999\r\n\r\n", b"<" * 65536),
    "more than is sent": sends(OK + b"Content-Length: 100\r\nETag: x\r\n\r\nabc"),
    "less than is sent": sends(OK + b"Content-Length: 3\r\n\r\n" + b"x" * 5000),
    "a compressed answer": sends(OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(LISTING + bytes(1 << 20))),
    "an endless error": endless(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", PIECE),
    "an endless refusal": endless(b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n", PIECE),
    "continue for ever": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "an unknown status": sends(b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n"),
    "a redirect to nowhere": sends(b"HTTP/1.1 307 Go\r\nLocation: ://\r\nContent-Length: 0\r\n\r\n"),
}
HARMLESS = ("pulse", "deleted")  # an answer will do; a store that says nothing of versions has none


async def large() -> AsyncIterator[bytes]:
    for _ in range(9):
        yield bytes(1 << 20)


async def drained(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


def operations(store: S3, address: S3Address, clock: ManualClock) -> dict[str, Callable[[], Awaitable[object]]]:
    objects, records = store.objects, store.records(THINGS)
    begun = OpenUpload("a", "u", clock.now())
    return {
        "open": lambda: S3.open(address, clock, wire=quick(address, clock)),
        "pulse": store.health_sample,
        "page": lambda: objects.page("", None, 10),
        "namespaces": lambda: store.namespaces.page(None, 10),
        "head": lambda: objects.head("a"),
        "read": lambda: drained(objects.read("a")),
        "create": lambda: objects.create("b", b"1"),
        "replace": lambda: objects.replace("a", b"2", at="0" * 32),
        "large": lambda: objects.create("c", large()),
        "copy": lambda: objects.copy("a", "d", at="0" * 32),
        "delete": lambda: objects.delete([ObjectDelete("a", "0" * 32), ObjectDelete("b", "0" * 32)]),
        "uploads": lambda: objects.uploads("", None, 10),
        "abort": lambda: objects.abort([begun]),
        "deleted": lambda: objects.deleted("a", at="0" * 32),
        "record": lambda: records.get("a"),
        "new record": lambda: records.create("b", b"1"),
        "records": lambda: records.page("", None, 10),
        "due": lambda: records.due(None, None, 10),
    }


def quick(address: S3Address, clock: ManualClock) -> S3Transport:
    return S3Transport(address, clock, tries=2, silence_max=0.3, request_max=0.4)


@asynccontextmanager
async def between() -> AsyncIterator[tuple[HostileHttp, S3, S3Address, ManualClock]]:
    """A store behind a server that is honest until it gets a plan."""
    clock = ManualClock()
    honest = StrictS3(clock)
    await honest.start()
    async with hostile_http(int(honest.endpoint.rpartition(":")[2])) as hostile:
        address = S3Address("bucket", "", f"http://127.0.0.1:{hostile.port}", access_key="k", secret_key="s")
        store = await S3.open(address, clock, wire=S3Transport(address, clock))
        await store.objects.create("a", b"1")
        await store.close()
        store = S3(Client(quick(address, clock), await store.honours()))
        yield hostile, store, address, clock
        await store.close()
    await honest.close()


async def ended(operation: Callable[[], Awaitable[object]]) -> BaseException | object:
    try:
        return await operation()
    except Exception as error:
        return error


@pytest.mark.parametrize("name", ACTS)
async def test_any_answer_ends_every_operation_with_an_error_of_ours_in_time(name: str) -> None:
    async with between() as (hostile, store, address, clock):
        hostile.plan = lambda method, target: ACTS[name]
        asked = operations(store, address, clock)
        async with asyncio.timeout(30):
            found = dict(zip(asked, await asyncio.gather(*map(ended, asked.values())), strict=True))
        assert {each: error for each, error in found.items() if not isinstance(error, WrasseError)}.keys() <= {
            *HARMLESS
        }


STATES = {
    "the bucket at the start": ("open", "HEAD", "/bucket"),
    "the first probe": ("open", "PUT", "/c"),
    "a listing of the probe": ("open", "GET", "list-type"),
    "a batch of the probe": ("open", "POST", "delete="),
    "the begin of an upload": ("large", "POST", "uploads="),
    "a part": ("large", "PUT", "partNumber"),
    "the end of an upload": ("large", "POST", "uploadId"),
    "a create": ("create", "PUT", "/b"),
    "a record": ("new record", "PUT", "/things/b"),
    "a list of versions": ("deleted", "GET", "versioning"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", ["nothing", "a trickled body", "endless chunks", "garbage"])
async def test_one_bad_answer_in_any_state_is_overcome_or_an_error_of_ours(state: str, act: str) -> None:
    operation, method, part = STATES[state]
    async with between() as (hostile, store, address, clock):
        hostile.plan = lambda m, target: ACTS[act] if m == method and part in target else None
        async with asyncio.timeout(30):
            found = await ended(operations(store, address, clock)[operation])
        if isinstance(found, S3):
            await found.close()
        assert not isinstance(found, Exception) or isinstance(found, WrasseError)
        assert any(m == method and part in target for m, target in hostile.requests)


HEADS = st.lists(
    st.tuples(
        st.sampled_from([
            b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"ETag", b"Last-Modified", b"Content-Range",
            b"Date", b"Location", b"Connection", b"x-amz-meta-wrasse-nonce", b"x-amz-meta-wrasse-rest", b"Set-Cookie",
        ]),
        st.sampled_from([
            b"-1", b"0", b"5", b"1" * 40, b"chunked", b"gzip", b"deflate", b'"e1"', b"bytes 0-4/5", b"bytes -1--2/-3",
            b"Wed, 21 Oct 2015 07:28:00 GMT", b"Fri, 31 Dec 9999 23:59:59 -2359", b"close", b"%5B%5B", b"x=y", b"",
        ])
        | st.binary(max_size=20),
    ).map(lambda pair: pair[0] + b": " + pair[1] + b"\r\n"),
    max_size=8,
).map(b"".join)  # fmt: skip
ANSWERS = st.builds(
    lambda status, heads, body: b"HTTP/1.1 %d X\r\n%s\r\n%s" % (status, heads, body),
    st.sampled_from([100, 199, 200, 200, 200, 204, 206, 301, 304, 307, 400, 403, 404, 409, 412, 416, 500, 503]),
    HEADS,
    st.sampled_from([LISTING + b"</ListBucketResult>", b"5\r\nabcde\r\n0\r\n\r\n", b"<Error><Code>", b""])
    | st.binary(max_size=40),
)


@settings(max_examples=25, derandomize=True)
@given(answers=st.lists(ANSWERS | st.binary(max_size=60), min_size=1, max_size=3))
def test_random_answers_are_values_or_errors_of_ours(answers: list[bytes]) -> None:
    async def tried() -> None:
        clock = ManualClock()
        async with hostile_http() as hostile:
            address = S3Address("bucket", "", f"http://127.0.0.1:{hostile.port}", access_key="k", secret_key="s")
            store = S3(Client(S3Transport(address, clock, tries=1, silence_max=0.3, request_max=0.4)))
            left = iter(answers * 1000)
            hostile.plan = lambda method, target: sends(next(left))
            asked = operations(store, address, clock)
            for each in ("page", "head", "read", "copy", "deleted", "record", "uploads"):
                async with asyncio.timeout(20):
                    found = await ended(asked[each])
                assert not isinstance(found, Exception) or isinstance(found, WrasseError)
            await store.close()

    asyncio.run(tried())


async def test_memory_stays_bounded_whatever_is_sent() -> None:
    acts = [
        ACTS["endless chunks"],
        ACTS["no length"],
        ACTS["a huge length"],
        ACTS["an endless error"],
        ACTS["endless headers"],
        sends(OK + b"Content-Length: 8000000\r\n\r\n" + b"<a>" * 2_666_666 + b"xx"),
        sends(OK + b"Content-Length: 8000000\r\n\r\n<a " + b"b='' " * 1_600_000),
    ]
    async with between() as (hostile, _, address, _):
        left = iter(acts * 1000)
        hostile.plan = lambda method, target: next(left)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "backends.s3.hostile_child", address.endpoint, str(len(acts)),
            stdout=asyncio.subprocess.PIPE, cwd="tests", env={**os.environ, "PYTHONPATH": "."},
        )  # fmt: skip
        async with asyncio.timeout(120):
            said, _ = await child.communicate()
        before, after = map(int, said.split())
    assert after - before < 64 << 10  # kilobytes


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    async with hostile_http() as other, between() as (hostile, store, _, _):
        to = b"HTTP/1.1 %d Go\r\nLocation: http://127.0.0.1:%d/bucket/a\r\nContent-Length: 0\r\n\r\n"
        hostile.plan = lambda method, target: sends(to % (status, other.port))
        with pytest.raises((ConfigError, StoreUnavailable)):
            await store.objects.head("a")
        assert other.requests == []


async def test_a_cookie_is_not_sent_back() -> None:
    async with between() as (hostile, store, _, _):
        hostile.plan = lambda method, target: sends(OK + b"Set-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")
        await store.health_sample()
        await store.health_sample()
        assert not any(b"cookie" in head.lower() for head in hostile.heads)


async def test_an_answer_to_nothing_is_not_taken_for_the_next_one() -> None:
    async with hostile_http() as hostile:
        good = OK + b"Content-Length: 0\r\n\r\n"
        hostile.plan = lambda method, target: sends_and_waits(good + good.replace(b"200", b"404"))
        address = S3Address("bucket", "", f"http://127.0.0.1:{hostile.port}", access_key="k", secret_key="s")
        store = S3(Client(quick(address, ManualClock())))
        assert [isinstance(await ended(store.health_sample), Exception) for _ in range(3)] == [False] * 3
        await store.close()


async def test_a_refusal_is_known_by_its_beginning() -> None:
    body = b"<Error><Code>NoSuchBucket</Code>" + b" " * (4 * ERROR_BYTES_MAX)
    async with between() as (hostile, store, _, _):
        hostile.plan = lambda method, target: endless(b"HTTP/1.1 404 No\r\nContent-Length: 999999999\r\n\r\n", body)
        with pytest.raises(ConfigError, match="no bucket"):
            await store.objects.page("", None, 1)


@pytest.mark.parametrize(
    "head",
    [
        OK + b"Content-Length: 5\r\n",
        b"HTTP/1.1 206 Part\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\n",
    ],
)
async def test_a_read_goes_on_only_with_the_bytes_that_were_asked_for(head: bytes) -> None:
    tags = b'ETag: "e1"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
    answers = iter([sends(OK + b"Content-Length: 5\r\n" + tags + b"\r\nab"), sends(head + tags + b"\r\nabcde")])
    async with between() as (hostile, store, _, _):
        hostile.plan = lambda method, target: next(answers)
        with pytest.raises(StoreBroken, match="other bytes"):
            await drained(store.objects.read("a"))


async def test_a_request_whose_connection_breaks_after_it_was_sent_is_sent_once() -> None:
    """On a kept connection aiohttp itself would send a PUT or DELETE again."""
    sent: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            sent.append(head.split(b" ")[0])
            if sent[-1] != b"HEAD":
                break
            writer.write(OK + b"Content-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wire = S3Transport(
        S3Address("bucket", "", f"http://127.0.0.1:{port}", access_key="k", secret_key="s"), ManualClock()
    )
    for method in ("PUT", "DELETE", "POST"):
        await wire.ask(S3Request("HEAD"))
        with pytest.raises(NoAnswer):
            await wire.ask(S3Request(method, b"a", twice=False))
    await wire.close()
    server.close()
    assert sent == [b"HEAD", b"PUT", b"HEAD", b"DELETE", b"HEAD", b"POST"]


async def test_the_deadline_counts_the_body_and_gives_time_for_what_moves() -> None:
    async with scene() as now:
        await now.backend.objects.create("a", bytes(1 << 20))
        began = time.monotonic()
        deadline = Deadline(0.2)
        deadline.moved(RATE_MIN // 10)
        with pytest.raises(TimeoutError):
            await deadline.wait(asyncio.sleep(60))
        assert 0.25 < time.monotonic() - began < 10
        address = replace(now.backend._wire.address)
        slow = S3Transport(address, now.clock, request_max=0.5)
        async with slow.stream(S3Request("GET", b"here/a")) as (_, body):
            assert isinstance(body, Body)
            first = await body.next(1000)
            await asyncio.sleep(0.7)  # the reader's own time
            assert len(first) + len(await body.all()) == 1 << 20
        await slow.close()
