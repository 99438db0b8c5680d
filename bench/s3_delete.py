"""Conditional deletes in a bucket that is 30 ms away: a thousand in one request, beside one request each.

The server is a process of its own that refuses nothing, so that what is measured is how many requests the client makes
and what each costs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from bench.measure import Benchmark, Rate, Ratio, Result, take_turns
from wrasse.ports.objects import DELETES_MAX, ObjectDelete

TARGET = 300.0
AWAY = 0.03  # seconds
ETAG = "0123456789abcdef0123456789abcdef"
_NOTHING = b'<?xml version="1.0" encoding="UTF-8"?>\n<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'


def run(quick: bool) -> Result:
    """Deletes in turns, in batches and one by one."""
    batches, single = (2, 20) if quick else (10, 100)
    with _serving() as endpoint:
        took = take_turns(
            {
                "batches": lambda place: asyncio.run(_delete(endpoint, batches, DELETES_MAX)),
                "single": lambda place: asyncio.run(_delete(endpoint, single, 1)),
            },
            rounds=3,
        )
    rates = {"batches": batches * DELETES_MAX / took["batches"], "single": single / took["single"]}
    ratio = Ratio("delete: in batches to one by one, 30 ms away", rates["batches"] / rates["single"], TARGET)
    shown = tuple(Rate(f"delete, {how}", rate, "objects/s") for how, rate in rates.items())
    return Result(BENCHMARK.name, BENCHMARK.about, shown, (ratio,))


BENCHMARK = Benchmark("s3_delete", "conditional deletes in a bucket 30 ms away, in batches and one by one", run)


async def _delete(endpoint: str, times: int, each: int) -> float:
    from wrasse.backends.s3.address import S3Address
    from wrasse.backends.s3.client import Client
    from wrasse.backends.s3.objects import S3Objects
    from wrasse.backends.s3.transport import S3Transport
    from wrasse.clock import SystemClock
    from wrasse.ports.outcome import Outcome

    wire = S3Transport(S3Address("bucket", "", endpoint, access_key="k", secret_key="s"), SystemClock())
    objects = S3Objects(Client(wire), b"")
    await objects.delete(_asked(0, 1))  # the connection is there
    began = time.perf_counter()
    for number in range(times):
        ends = await objects.delete(_asked(number * each, each))
        assert set(ends) == {Outcome.DONE}
    took = time.perf_counter() - began
    await wire.close()
    return took


def _asked(begin: int, count: int) -> Sequence[ObjectDelete]:
    key = "archives/0b5c7f8e-6d1c-4f5e-9a54-{:012}/01J9ZK3V5T8X7Q2W4E6R8T0Y2U/data.tar.zst"
    return [ObjectDelete(key.format(number), ETAG) for number in range(begin, begin + count)]


def _serve(ready: Connection) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(_NOTHING)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", asked)
                await reader.readexactly(int(length[1]) if length else 0)
                await asyncio.sleep(AWAY)
                writer.write(head + _NOTHING)
                await writer.drain()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    asyncio.run(serve())


@contextlib.contextmanager
def _serving() -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()
