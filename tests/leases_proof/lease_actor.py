"""Lease servers as processes of their own, made to be killed: each line on stdin starts one more, in a fork.

    python lease_actor.py <port> directory <path>
    python lease_actor.py <port> s3 <endpoint> <bucket> <prefix> <access key> <secret key>

The parent imports everything once and serves nothing, so that a new server is there in milliseconds. A server writes
its pid when it listens; when stdin ends, the parent ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from wrasse.app.addresses import Address
from wrasse.app.leases_http.access import Access
from wrasse.app.leases_http.server import LeaseServer
from wrasse.backends.directory.connect import Directory
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.clock import SystemClock
from wrasse.leases.leases import Leases


async def opened(kind: str, where: list[str], clock: SystemClock) -> Directory | S3:
    if kind == "directory":
        return await Directory.open(where[0], clock)
    endpoint, bucket, prefix, key, secret = where
    return await S3.open(S3Address(bucket, prefix, endpoint, access_key=key, secret_key=secret), clock)


async def serve(port: int, kind: str, where: list[str]) -> None:
    clock = SystemClock()
    backend = await opened(kind, where, clock)
    server = LeaseServer(Leases(backend.records, backend.objects, clock), clock, Access())
    await server.listen(Address("127.0.0.1", port))
    print(os.getpid(), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    port, kind, *where = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who was killed is gone at once
    for _ in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(serve(int(port), kind, where))


if __name__ == "__main__":
    main()
