"""Streams on Redis: publishing, and reading as a group with acks, against the bare protocol with the same envelopes.

The raw loops have one socket and the same parser, send XADD, XREADGROUP and XACK of a batch at a time, and do nothing
else: no deadline beside a delivery, no limits, no sizes, no port, event loop or dataclasses. On our side two tasks work
at a time, as in a program, and making the envelope is part of publishing; the raw loop's are ready before its clock
starts. Client and server run in the real-time class where that is allowed, on cores that are kept awake.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any

import hiredis

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from bench.peers.quiet import conditions, hurried, hurry
from bench.redis_server import pack, serving
from wrasse.backends.redis.connect import Redis
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import Draft
from wrasse.streams.envelope import Envelope, encode
from wrasse.streams.publisher import Publication, Publisher

SUBJECT, KEY, GROUP = "gbe.events.audit.change", "gbe:events:audit:change", "readers"
BATCH = 1_000
TASKS = 2
PAYLOAD = b"x" * 192
TIMEOUT = timedelta(seconds=30)
TARGET = 0.7


def run(quick: bool) -> Result:
    """Publishes all in batches, or reads and acks all in batches."""
    count = 20_000 if quick else 200_000
    with serving() as server, conditions(), hurried():
        hurry(server.pid, 2)
        url, port = server.url, server.port
        took = take_turns(
            {
                "publish, wrasse": lambda place: asyncio.run(_publish(url, port, count)),
                "publish, raw": lambda place: _raw_publish(port, count),
                "read and ack, wrasse": lambda place: asyncio.run(_read(url, port, count)),
                "read and ack, raw": lambda place: _raw_read(port, count),
            },
            rounds=3 if quick else 5,
        )
    rates = tuple(Rate(who, count / time, "messages/s") for who, time in took.items())
    ratios = tuple(
        Ratio(f"{what}: wrasse to raw", took[f"{what}, raw"] / took[f"{what}, wrasse"], TARGET)
        for what in ("publish", "read and ack")
    )
    return Result(BENCHMARK.name, BENCHMARK.about, rates, ratios)


BENCHMARK = Benchmark("streams_redis", f"streams on Redis, {len(PAYLOAD)} bytes a payload", run)


class _Raw:
    """One socket to one server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def ask(self, packed: bytes, answers: int = 1) -> list[Any]:
        """Sends commands and gives what they answer."""
        self._socket.sendall(packed)
        found: list[Any] = []
        while len(found) < answers:
            answer = self._reader.gets()
            if answer is False:
                self._reader.feed(self._socket.recv(1 << 20))
            else:
                found.append(answer)
        return found

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def _envelopes(count: int) -> list[bytes]:
    clock = SystemClock()
    ids = Ids(clock)
    return [encode(Envelope(ids.new(), SUBJECT, 1_700_000_000_000, PAYLOAD)) for _ in range(count)]


def _emptied(port: int, count: int = 0) -> _Raw:
    """A connection to a server with nothing but so many entries."""
    raw = _Raw(port)
    raw.ask(pack(("FLUSHALL",)))
    _add(raw, _envelopes(count))
    return raw


def _add(raw: _Raw, envelopes: Sequence[bytes]) -> None:
    for start in range(0, len(envelopes), BATCH):
        batch = envelopes[start : start + BATCH]
        packed = b"".join([pack(("XADD", KEY, "*", "envelope", each)) for each in batch])
        raw.ask(packed, len(batch))


def _raw_publish(port: int, count: int) -> float:
    raw, envelopes = _emptied(port), _envelopes(count)
    took = seconds(lambda: _add(raw, envelopes))
    raw.close()
    return took


def _raw_read(port: int, count: int) -> float:
    raw = _emptied(port, count)
    raw.ask(pack(("XGROUP", "CREATE", KEY, GROUP, "0")))
    read = pack(("XREADGROUP", "GROUP", GROUP, "c1", "COUNT", str(BATCH), "STREAMS", KEY, ">"))

    def loop() -> None:
        while (found := raw.ask(read)[0]) is not None:
            raw.ask(pack(("XACK", KEY, GROUP, *(id for id, _ in found[0][1]))))

    took = seconds(loop)
    raw.close()
    return took


async def _publish(url: str, port: int, count: int) -> float:
    _emptied(port).close()
    store = await Redis.open(url)
    publisher = Publisher(store.streams, SystemClock())
    batch = [Publication(SUBJECT, PAYLOAD)] * BATCH

    async def publish(batches: int) -> None:
        for _ in range(batches):
            await publisher.publish_many(batch)

    return await _timed(store, [publish(count // BATCH // TASKS) for _ in range(TASKS)])


async def _read(url: str, port: int, count: int) -> float:
    _emptied(port).close()
    store = await Redis.open(url)
    await store.groups.join(SUBJECT, GROUP, StartAt(first=True))
    envelopes = _envelopes(count)
    for start in range(0, count, BATCH):
        await store.streams.append([Draft(SUBJECT, body) for body in envelopes[start : start + BATCH]])

    async def consume(name: str) -> None:
        while found := await store.groups.deliver([SUBJECT], GROUP, name, BATCH, ack_timeout=TIMEOUT):
            await store.groups.answer([Ack(SUBJECT, GROUP, delivery.entry.id) for delivery in found])

    return await _timed(store, [consume(f"c{n}") for n in range(TASKS)])


async def _timed(store: Redis, tasks: list[Coroutine[None, None, None]]) -> float:
    clock = SystemClock()
    began = clock.monotonic()
    await asyncio.gather(*tasks)
    took = clock.monotonic() - began
    await store.close()
    return took
