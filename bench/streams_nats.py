"""Streams on NATS: publishing against the bare protocol with the same envelopes, reading as a group with acks against
nats-py's fetch-and-ack loop.

The raw loop has one socket, sends a batch of PUBs with a reply subject and counts the confirmations; its envelopes are
ready before its clock starts. It checks nothing and its entries have no ids. We have published for two seconds when the
clock starts: from then on a stream that nobody else writes to takes long batches faster. On our side two tasks work at
a time, as in a program, and making the envelope is part of publishing. nats-py fetches as many at once as we do, from a
durable consumer with explicit acks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.js import JetStream
from wrasse.backends.nats.link import Link
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import Draft
from wrasse.streams.envelope import Envelope, encode
from wrasse.streams.publisher import Message, Publisher

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from servers.nats import nats as nats_server  # the tests are no package

SUBJECT, STREAM, GROUP = "gbe.events.audit.change", "gbe-events-audit-change", "readers"
BATCH = 1_000
TASKS = 2
PAYLOAD = b"x" * 192
TIMEOUT = timedelta(seconds=30)
SETTLED = 2.0  # seconds until a process knows that it alone writes to a stream


def run(quick: bool) -> Result:
    """Publishes all in batches, or reads and acks all in batches."""
    count = 20_000 if quick else 100_000
    with nats_server() as server:
        url = server.url
        took = take_turns(
            {
                "publish, wrasse": lambda place: asyncio.run(_publish(url, count)),
                "publish, raw": lambda place: _raw_publish(url, server.port, count),
                "read and ack, wrasse": lambda place: asyncio.run(_read(url, count)),
                "read and ack, nats-py": lambda place: asyncio.run(_peer_read(url, count)),
            },
            rounds=3 if quick else 5,
        )
    rates = tuple(Rate(who, count / time, "messages/s") for who, time in took.items())
    ratios = (
        Ratio("publish: wrasse to raw", took["publish, raw"] / took["publish, wrasse"], 0.7),
        Ratio("read and ack: wrasse to nats-py", took["read and ack, nats-py"] / took["read and ack, wrasse"], 5.0),
    )
    return Result(BENCHMARK.name, BENCHMARK.about, rates, ratios)


BENCHMARK = Benchmark("streams_nats", f"streams on NATS, {len(PAYLOAD)} bytes a payload", run)


def _envelopes(count: int) -> list[bytes]:
    ids = Ids(SystemClock())
    return [encode(Envelope(ids.new(), SUBJECT, 1_700_000_000_000, PAYLOAD)) for _ in range(count)]


async def _emptied(url: str) -> None:
    """A server with no streams but those of records."""
    link = await Link.open(NatsOptions.of(url))
    js = JetStream(link)
    names = (await js.call("STREAM.NAMES")).get("streams") or []
    await asyncio.gather(*(js.call(f"STREAM.DELETE.{name}") for name in names))
    await link.close()


def _raw_publish(url: str, port: int, count: int) -> float:
    asyncio.run(_emptied(url))
    asyncio.run(_made(url))
    with _socket(port) as sock:
        batches = [
            b"".join([b"PUB %b _IN.1 %d\r\n%b\r\n" % (SUBJECT.encode(), len(each), each) for each in _envelopes(BATCH)])
            for _ in range(count // BATCH)
        ]
        return seconds(lambda: [_confirmed(sock, batch) for batch in batches])


async def _made(url: str) -> None:
    link = await Link.open(NatsOptions.of(url))
    await JetStream(link).call(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [SUBJECT], "storage": "file"})
    await link.close()


@contextlib.contextmanager
def _socket(port: int) -> Iterator[socket.socket]:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.recv(1 << 16)
    sock.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB _IN.* 1\r\n')
    yield sock
    sock.close()


def _confirmed(sock: socket.socket, batch: bytes) -> None:
    sock.sendall(batch)
    left, tail = BATCH, b""
    while left:
        data = tail + sock.recv(1 << 20)
        left -= data.count(b'"seq":') - tail.count(b'"seq":')
        tail = data[-5:]


async def _publish(url: str, count: int) -> float:
    await _emptied(url)
    store = await Nats.open(url)
    publisher = Publisher(store.streams, SystemClock())
    batch = [Message(SUBJECT, PAYLOAD)] * BATCH
    await publisher.publish_many(batch)
    await asyncio.sleep(SETTLED)
    await publisher.publish_many(batch)

    async def publish(batches: int) -> None:
        for _ in range(batches):
            await publisher.publish_many(batch)

    return await _timed(store, [publish(count // BATCH // TASKS) for _ in range(TASKS)])


async def _filled(url: str, count: int) -> Nats:
    await _emptied(url)
    store = await Nats.open(url)
    envelopes = _envelopes(count)
    for start in range(0, count, BATCH):
        await store.streams.append([Draft(SUBJECT, body) for body in envelopes[start : start + BATCH]])
    return store


async def _read(url: str, count: int) -> float:
    store = await _filled(url, count)
    await store.groups.join(SUBJECT, GROUP, StartAt(first=True))

    async def consume(name: str) -> None:
        while found := await store.groups.deliver([SUBJECT], GROUP, name, BATCH, ack_timeout=TIMEOUT):
            await store.groups.answer([Ack(SUBJECT, GROUP, delivery.entry.id) for delivery in found])

    return await _timed(store, [consume(f"c{n}") for n in range(TASKS)])


async def _peer_read(url: str, count: int) -> float:
    await (await _filled(url, count)).close()
    client = await nats.connect(url)
    config = ConsumerConfig(durable_name=GROUP, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=-1)
    reader = await client.jetstream().pull_subscribe(SUBJECT, GROUP, stream=STREAM, config=config)
    clock = SystemClock()
    began = clock.monotonic()
    left = count
    while left:
        for message in await reader.fetch(min(BATCH, left), timeout=10):
            await message.ack()
            left -= 1
    took = clock.monotonic() - began
    await client.close()
    return took


async def _timed(store: Nats, tasks: list[Coroutine[None, None, None]]) -> float:
    clock = SystemClock()
    began = clock.monotonic()
    await asyncio.gather(*tasks)
    took = clock.monotonic() - began
    await store.close()
    return took
