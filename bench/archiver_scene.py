"""What the archiver is measured on: a filled stream, an archiver as the daemon builds it, and a bucket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis

from bench.redis_server import pack, serving
from servers.seaweed import seaweed
from wrasse.archives.archiver import ArchivePorts, Archiver
from wrasse.archives.batch import BatchLimits
from wrasse.archives.codec import Compression
from wrasse.archives.cursor import CURSORS
from wrasse.archives.naming import Form
from wrasse.archives.rule import Rule
from wrasse.backends.directory.connect import Directory
from wrasse.backends.nats.connect import Nats
from wrasse.backends.redis.connect import Redis
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.leases.core import leases_in
from wrasse.leases.manager import LeaseManager
from wrasse.ports.streams import Draft
from wrasse.streams.envelope import Envelope, encode

SUBJECT, KEY, GROUP = "gbe.events.audit.change", "gbe:events:audit:change", "archiver"
LEASES = leases_in(".wrasse")
Backend = Redis | Sqlite | Nats


@dataclass(frozen=True, slots=True)
class Place:
    """Where archives go: a directory, or a bucket."""

    directory: Path | None = None
    bucket: S3Address | None = None

    async def open(self) -> Directory | S3:
        """The store."""
        if self.bucket is not None:
            return await S3.open(self.bucket)
        assert self.directory is not None, "one of the two"
        return await Directory.open(self.directory)


class Raw:
    """One socket to one server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def send(self, *command: str | bytes | int) -> None:
        """Sends one command."""
        self._socket.sendall(pack(command))

    def answer(self) -> Any:
        """The next answer."""
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 20))
        return answer

    def ask(self, *command: str | bytes | int) -> Any:
        """One command and its answer."""
        self.send(*command)
        return self.answer()

    def cpu(self) -> float:
        """Seconds of processor time that the server has used."""
        lines = dict(line.split(":") for line in self.ask("INFO", "cpu").decode().splitlines() if ":" in line)
        return float(lines["used_cpu_user"]) + float(lines["used_cpu_sys"])

    def reset(self) -> None:
        """As if nothing had been archived: cursors and leases are in another database, the stream stays."""
        for group in self.ask("XINFO", "GROUPS", KEY):
            self.ask("XGROUP", "DESTROY", KEY, group[1])
        self.ask("SELECT", 1)
        self.ask("FLUSHDB")
        self.ask("SELECT", 0)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def filled(url: str, count: int, payload: int = 0) -> None:
    """Publishes so many messages, each with a little of everything."""
    asyncio.run(_fill(url, count, payload))


async def _fill(url: str, count: int, payload: int) -> None:
    ids, store = Ids(SystemClock()), await Redis.open(url)
    for start in range(0, count, 1_000):
        bodies = [made_body(ids.new(), number, payload) for number in range(start, start + 1_000)]
        await store.streams.append([Draft(SUBJECT, body) for body in bodies])
    await store.close()


def made_body(id: str, number: int, payload: int) -> bytes:
    """An envelope of about 300 bytes, or with so many random ones."""
    change = {"user": number, "action": "update", "ip": f"10.0.0.{number % 250}", "t": os.urandom(20).hex()}
    data = os.urandom(payload) if payload else json.dumps(change).encode()
    return encode(Envelope(id, SUBJECT, 1_771_027_200_000 + number, data))


async def archive_all(
    url: str, place: Place, size: int, count: int, codec: str = "gzip", bytes: int = 64 << 20
) -> float:
    """Archives the whole stream, as the daemon does; the seconds from open stores to the last event."""
    streams, engine = await Redis.open(url), await Redis.open(url[:-1] + "1")
    took = await archived(streams, engine, await place.open(), BatchLimits(size, bytes), count, Compression(codec))
    await engine.close()
    await streams.close()
    return took


async def archive_sqlite(path: Path, place: Place, size: int, count: int) -> float:
    """The same from a database."""
    sqlite = await Sqlite.open(path)
    took = await archived(sqlite, sqlite, await place.open(), BatchLimits(size, 64 << 20), count, Compression.GZIP)
    await sqlite.close()
    return took


async def fill_sqlite(path: Path, count: int) -> None:
    """Publishes so many messages into a database, all of it in one file afterwards."""
    ids, sqlite = Ids(SystemClock()), await Sqlite.open(path)
    for start in range(0, count, 1_000):
        bodies = [made_body(ids.new(), number, 0) for number in range(start, start + 1_000)]
        await sqlite.streams.append([Draft(SUBJECT, body) for body in bodies])
    await sqlite.close()


async def archived(
    streams: Backend, engine: Backend, store: Directory | S3, limits: BatchLimits, count: int, codec: Compression
) -> float:
    """Archives the whole stream from one backend, with cursors and leases in another; gives seconds."""
    clock = SystemClock()
    lease_manager = LeaseManager(engine.records(LEASES), clock)
    ports = ArchivePorts(streams.streams, streams.groups, engine.records(CURSORS), lease_manager)
    prefix = f"archive-{os.urandom(4).hex()}"
    rule = Rule(SUBJECT, store.objects, "bench", prefix, limits=limits, form=Form(codec=codec))
    began = clock.monotonic()
    found = await Archiver(ports, [rule], clock, "bench").drain()
    took = clock.monotonic() - began
    assert found == count, f"{found} of {count}"
    await store.close()
    return took


def limits_of(size: int) -> BatchLimits:
    """Batches of so many messages, whatever their bytes."""
    return BatchLimits(size, 64 << 20)


@contextlib.contextmanager
def bucket_of() -> Iterator[Place]:
    """A bucket on a SeaweedFS of its own."""
    with seaweed() as server:
        import boto3

        client = boto3.client("s3", endpoint_url=server.endpoint, aws_access_key_id=server.key,
                              aws_secret_access_key=server.secret, region_name="us-east-1")  # fmt: skip
        client.create_bucket(Bucket="bench")
        address = S3Address("bench", "", server.endpoint, access_key=server.key, secret_key=server.secret)
        yield Place(bucket=address)


def memory_of_a_large_batch(url: str, *, quick: bool) -> float:
    """The most memory, in MiB, of a process that archives batches of 64 MB."""
    done = subprocess.run([sys.executable, "-m", "bench.archiver_scene", "quick" if quick else "long"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    return float(done.stdout)


def _memory(quick: bool) -> float:
    """In a process of its own: the messages are published by another."""
    import multiprocessing
    import resource
    import tempfile

    count = 200_000 if quick else 1_000_000
    with serving() as server, tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place:
        filling = multiprocessing.get_context("spawn").Process(target=filled, args=(server.url, count))
        filling.start()
        filling.join()
        asyncio.run(archive_all(server.url, Place(Path(place)), 10_000_000, count))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(_memory(sys.argv[1] == "quick"))
