"""Listing a bucket: processor time per key of our client, beside boto3's paginator, on the same pages.

The server is a process of its own that sends pages made beforehand, so that what is measured is the client alone. Both
sides go through all pages and look at every key, size, tag and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from bench.measure import Benchmark, Rate, Ratio, Result, take_turns

TARGET = 8.0
PAGE = 1_000


def run(quick: bool) -> Result:
    """Lists the same bucket in turns."""
    count = 10_000 if quick else 50_000
    with _serving(count) as endpoint:
        took = take_turns(
            {
                "wrasse": lambda place: asyncio.run(_ours(endpoint, count)),
                "boto3": lambda place: _boto3(endpoint, count),
            },
            rounds=3 if quick else 5,
        )
    rates = tuple(Rate(f"{who}, keys per CPU second", count / cpu, "keys/s") for who, cpu in took.items())
    ratio = Ratio("list: CPU per key of boto3 to wrasse", took["boto3"] / took["wrasse"], TARGET)
    return Result(BENCHMARK.name, BENCHMARK.about, rates, (ratio,))


BENCHMARK = Benchmark("s3_list", "processor time to list a bucket, against boto3's paginator", run)


async def _ours(endpoint: str, count: int) -> float:
    from wrasse.backends.s3.address import S3Address
    from wrasse.backends.s3.client import Client
    from wrasse.backends.s3.objects import S3Objects
    from wrasse.backends.s3.transport import S3Transport
    from wrasse.clock import SystemClock

    wire = S3Transport(S3Address("bucket", "", endpoint, access_key="k", secret_key="s"), SystemClock())
    objects = S3Objects(Client(wire), b"")
    began, seen, after = time.process_time(), 0, None
    while True:
        page = await objects.page("", after, PAGE)
        seen += len([info for info in page if info.key and info.version and info.size and info.modified_at])
        after = page.cursor
        if after is None:
            break
    took = time.process_time() - began
    await wire.close()
    assert seen == count
    return took


def _boto3(endpoint: str, count: int) -> float:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    began, seen = time.process_time(), 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bucket"):
        found = page["Contents"]
        seen += sum(1 for each in found if each["Key"] and each["ETag"] and each["Size"] and each["LastModified"])
    took = time.process_time() - began
    assert seen == count
    return took


def _key(number: int) -> str:
    return f"archives/0b5c7f8e-6d1c-4f5e-9a54-{number:012}/01J9ZK3V5T8X7Q2W4E6R8T0Y2U/data.tar.zst"


def _page(begin: int, count: int) -> bytes:
    end = min(begin + PAGE, count)
    entries = "".join(
        f"<Contents><Key>{_key(number)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
        f"<ETag>&quot;{number:032x}&quot;</ETag><Size>{number + 1}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for number in range(begin, end)
    )
    token = f"<NextContinuationToken>{_key(end - 1)}</NextContinuationToken>" if end < count else ""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bucket</Name><EncodingType>url</EncodingType><KeyCount>{end - begin}</KeyCount>"
        f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{token}{entries}</ListBucketResult>"
    ).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _serve(count: int, ready: Connection) -> None:
    pages = {begin: _page(begin, count) for begin in range(0, count, PAGE)}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).decode()
                after = re.search(r"(?:start-after|continuation-token)=[^& ]*-(\d{12})", asked)
                writer.write(pages[0 if after is None else int(after[1]) + 1])
                await writer.drain()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    asyncio.run(serve())


@contextlib.contextmanager
def _serving(count: int) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(count, theirs), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()
