"""The archiver on Redis: a stream into durable jsonl.gz files, beside a straight-line loop that writes the same lines,
and beside the obvious program.

The straight line has one socket, the same parser and the same checks, sends its next request before it looks at the
last answer, compresses with the same library, syncs and links the file, syncs its directory and moves the group: all
that the result needs, and no port, event loop, cursor, lease, event or metric. The obvious program is what one writes
first: redis-py, a group that is read 1,000 at a time and acked, json for each, zlib 6, a file written in place.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import redis
from isal import isal_zlib

from bench.archiver_scene import GROUP, KEY, Place, Raw, archive_all, bucket_of, filled, memory_of_a_large_batch
from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from bench.redis_server import serving
from wrasse.streams.envelope import are_envelopes

LARGE, SMALL, PAGE = 50_000, 1_000, 1_000
Read = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]  # what XREADGROUP answers, by stream


def run(quick: bool) -> Result:
    """Drains the same stream in turns."""
    count = 100_000 if quick else 300_000
    with ExitStack() as stack:
        server = stack.enter_context(serving())
        bucket = stack.enter_context(bucket_of())
        filled(server.url, count)
        cpu: dict[str, list[float]] = {}

        def timed(who: str, work: Callable[[Path], float]) -> Callable[[Path], float]:
            def contest(place: Path) -> float:
                raw = Raw(server.port)
                raw.reset()
                before = raw.cpu()
                took = work(place)
                cpu.setdefault(who, []).append((raw.cpu() - before) / count * 1e6)
                raw.close()
                return took

            return contest

        url, port = server.url, server.port
        contestants = {
            "straight line": lambda place: seconds(lambda: _straight(port, place, LARGE)),
            "wrasse": lambda place: asyncio.run(archive_all(url, Place(place), LARGE, count)),
            "wrasse, zstd": lambda place: asyncio.run(archive_all(url, Place(place), LARGE, count, "zstd")),
            "wrasse, to SeaweedFS": lambda place: asyncio.run(archive_all(url, bucket, LARGE, count)),
            "wrasse, 1,000 an archive": lambda place: asyncio.run(archive_all(url, Place(place), SMALL, count)),
            "straight line, 1,000 an archive": lambda place: seconds(lambda: _straight(port, place, SMALL)),
            "obvious": lambda place: seconds(lambda: _obvious(port, place)),
        }
        took = take_turns({who: timed(who, work) for who, work in contestants.items()}, 3 if quick else 5)
        memory = memory_of_a_large_batch(url, quick=quick)
    rates = [Rate(who, count / each, "messages/s") for who, each in took.items()]
    rates += [Rate(f"server CPU ns a message, {who}", min(each) * 1_000, "ns") for who, each in cpu.items()]
    rates.append(Rate("memory of 64 MB batches", memory, "MiB"))
    ratios = (
        Ratio("wrasse to straight line", took["straight line"] / took["wrasse"], 0.8),
        Ratio("wrasse to obvious", took["obvious"] / took["wrasse"], 4.0),
        Ratio("SeaweedFS to directory", took["wrasse"] / took["wrasse, to SeaweedFS"], 0.7),
        Ratio("server CPU us a message", min(cpu["wrasse"]), 0.6, least=False),
        Ratio("memory of 64 MB batches, MiB", memory, 200.0, least=False),
    )
    return Result(BENCHMARK.name, BENCHMARK.about, tuple(rates), ratios)


BENCHMARK = Benchmark("archiver", "a stream on Redis into archives, about 300 bytes a message", run)


def _straight(port: int, place: Path, size: int) -> None:
    raw, after, done = Raw(port), b"0-0", False
    raw.ask("XGROUP", "CREATE", KEY, GROUP, "0", "MKSTREAM")
    while not done:
        start, count, crc, parts = after, 0, hashlib.sha256(), []
        press = isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31)
        raw.send("XRANGE", KEY, b"(" + after, "+", "COUNT", PAGE)
        while True:
            found = raw.answer()
            if not found:
                done = True
                break
            after = found[-1][0]
            count += len(found)
            if count < size:
                raw.send("XRANGE", KEY, b"(" + after, "+", "COUNT", PAGE)
            data = _lines(found)
            crc.update(data)
            parts.append(press.compress(data))
            if count >= size:
                break
        if count:
            parts.append(press.flush())
            stored(place, f"after-{start.decode()}.jsonl.gz", b"".join(parts))
            raw.ask("XGROUP", "SETID", KEY, GROUP, after)
    raw.close()


def _lines(found: Sequence[tuple[bytes, Sequence[bytes]]]) -> bytes:
    bodies = [words[1] for _, words in found]
    every = b"".join(bodies)
    plain = every.isascii() and b"\n" not in every and b"\r" not in every and b"\\" not in every
    assert plain, "as they were made"
    assert b"stream_id" not in every, "as they were made"
    assert are_envelopes(bodies), "as they were made"
    return b"".join([body[:-1] + b',"stream_id":"' + id + b'"}\n' for (id, _), body in zip(found, bodies, strict=True)])


def stored(place: Path, name: str, data: bytes) -> None:
    """Writes a file as durably as it goes, if it is not there."""
    temp = place / f"{name}.tmp"
    file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    os.link(temp, place / name)
    os.unlink(temp)
    folder = os.open(place, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _obvious(port: int, place: Path) -> None:
    client = redis.Redis(port=port)
    client.xgroup_create(KEY, GROUP, "0")
    number = 0
    while found := cast(Read, client.xreadgroup(GROUP, "archiver-1", {KEY: ">"}, count=SMALL)):
        ((_, entries),) = found
        lines = []
        for id, fields in entries:
            message = json.loads(fields[b"envelope"])
            message["stream_id"] = id.decode()
            lines.append(json.dumps(message))
        number += 1
        (place / f"batch_{number:06}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 6))
        client.xack(KEY, GROUP, *(id for id, _ in entries))
    client.close()
