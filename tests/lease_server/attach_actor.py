"""A server on a directory and a client, each a process of its own, and one attachment of so many bytes through both.

    python attach_actor.py <folder> <bytes>

Prints how much the peak memory of each grew beyond what it had before the first byte, in MiB.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock
from wrasse.config.urls import Address
from wrasse.lease_server.access import Access
from wrasse.lease_server.server import LeaseServer
from wrasse.leases.attachments import Sent
from wrasse.leases.client import LeaseClient
from wrasse.leases.lease import public
from wrasse.leases.leases import Leases

PIECE = 1 << 18


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def serve(folder: Path, told: int, ends: int) -> None:
    clock = SystemClock()
    store = await Directory.open(folder / "data", clock)
    server = LeaseServer(Leases(store.records, store.objects, clock), clock, Access())
    address = await server.listen(Address("127.0.0.1", 0))
    before = peak()
    os.write(told, f"{address}\n".encode())
    await asyncio.to_thread(os.read, ends, 1)
    os.write(told, f"{(peak() - before) >> 10}\n".encode())
    await server.close()
    await store.close()


async def send(url: str, size: int) -> tuple[int, int]:
    piece = os.urandom(PIECE)

    async def stream() -> AsyncIterator[bytes]:
        for _ in range(size // PIECE):
            yield piece

    async with LeaseClient(url, SystemClock()) as client:
        leased = await client.acquire("big", "me", ttl=timedelta(minutes=20))
        before = peak()
        made = await client.attachments.attach(leased.granted, Sent("big", size=size), stream())
        await client.release(leased.granted)
        summed, read = hashlib.sha256(), 0
        async for chunk in (await client.attachments.fetch(public("default", "big"), name="big")).chunks:
            summed.update(chunk)
            read += len(chunk)
        assert summed.hexdigest() == made.attachment.sha256
        return read, (peak() - before) >> 10


def main() -> None:
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    told_read, told_write = os.pipe()
    ends_read, ends_write = os.pipe()
    child = os.fork()
    if child == 0:
        asyncio.run(serve(folder, told_write, ends_read))
        os._exit(0)
    with os.fdopen(told_read) as told:
        url = f"http://{told.readline().strip()}"
        read, client = asyncio.run(send(url, size))
        os.write(ends_write, b"x")
        print(json.dumps({"read": read, "client": client, "server": int(told.readline())}))
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
