"""The archiver on NATS: a stream into durable jsonl.gz files, beside nats-py's fetch-and-ack loop that writes the same.

nats-py fetches 1,000 at once from a durable consumer, writes them with the same compressor into as large a file, and
acks each when its file is there. Cursors of ours are in a database beside, as where `engine.backend` says so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
from isal import isal_zlib
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from bench.archiver import LARGE, stored
from bench.archiver_scene import GROUP, SUBJECT, Place, archived, limits_of, made_body
from bench.group_reader import STREAM
from bench.measure import Benchmark, Rate, Ratio, Result, take_turns
from bench.streams_nats import emptied
from servers.nats import nats as nats_server
from wrasse.archives.codec import Compression
from wrasse.backends.nats.connect import Nats
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.ports.streams import Draft

BATCH = 1_000


def run(quick: bool) -> Result:
    """Drains the same messages in turns."""
    count = 50_000 if quick else 200_000
    with nats_server() as server:
        url = server.url
        took = take_turns(
            {
                "wrasse": lambda place: asyncio.run(_ours(url, place, count)),
                "nats-py": lambda place: asyncio.run(_peer(url, place, count)),
            },
            rounds=3 if quick else 5,
        )
    rates = tuple(Rate(who, count / each, "messages/s") for who, each in took.items())
    ratio = Ratio("wrasse to nats-py", took["nats-py"] / took["wrasse"], 8.0)
    return Result(BENCHMARK.name, BENCHMARK.about, rates, (ratio,))


BENCHMARK = Benchmark("archiver_nats", "a stream on NATS into archives, about 300 bytes a message", run)


async def _filled(url: str, count: int) -> Nats:
    await emptied(url)
    ids, store = Ids(SystemClock()), await Nats.open(url)
    for start in range(0, count, BATCH):
        bodies = [made_body(ids.new(), number, 0) for number in range(start, start + BATCH)]
        await store.streams.append([Draft(SUBJECT, body) for body in bodies])
    return store


async def _ours(url: str, place: Path, count: int) -> float:
    store, engine = await _filled(url, count), await Sqlite.open(place / "engine.db")
    directory = await Place(place / "data").open()
    took = await archived(store, engine, directory, limits_of(LARGE), count, Compression.GZIP)
    await engine.close()
    await store.close()
    return took


async def _peer(url: str, place: Path, count: int) -> float:
    await (await _filled(url, count)).close()
    client, clock = await nats.connect(url), SystemClock()
    config = ConsumerConfig(durable_name=GROUP, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=-1, ack_wait=600)
    reader = await client.jetstream().pull_subscribe(SUBJECT, GROUP, stream=STREAM, config=config)
    began, done = clock.monotonic(), 0
    while done < count:
        press, parts, unacked = isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31), list[bytes](), list[Msg]()
        while len(unacked) < min(LARGE, count - done):
            found = await reader.fetch(min(BATCH, count - done - len(unacked)), timeout=10)
            lines = [m.data[:-1] + b',"stream_id":"%d"}\n' % m.metadata.sequence.stream for m in found]
            parts.append(press.compress(b"".join(lines)))
            unacked += found
        stored(place, f"after-{done}.jsonl.gz", b"".join([*parts, press.flush()]))
        for message in unacked:
            await message.ack()
        done += len(unacked)
    took = clock.monotonic() - began
    await client.close()
    return took
