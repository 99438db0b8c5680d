"""A durable create-only put into a directory, against the raw sequence of system calls that it cannot do without.

The raw loop writes a temporary file, syncs it, links it to its name, syncs the directory and removes the temporary
name; no port, event loop, threads, locks or versions. Both sides put one object after another.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock

DATA = os.urandom(64 << 10)
TARGET = 1.3
FOLDERS = 4


def run(quick: bool) -> Result:
    """Puts objects of 64 KB, spread over a few directories."""
    count = 100 if quick else 300
    took = take_turns(
        {
            "put, wrasse": lambda place: asyncio.run(_put(place, count)),
            "put, raw": lambda place: _raw_put(place, count),
        },
        rounds=5 if quick else 9,
    )
    rates = tuple(Rate(who, count / time, "objects/s") for who, time in took.items())
    ratio = Ratio("put: time of wrasse to raw", took["put, wrasse"] / took["put, raw"], TARGET, least=False)
    return Result(BENCHMARK.name, BENCHMARK.about, rates, (ratio,))


BENCHMARK = Benchmark("directory_put", "create-only put of 64 KB into a directory, durable", run)


def _key(number: int) -> str:
    return f"archive/audit/{number % FOLDERS:02}/{number:06}.jsonl.gz"


async def _put(place: Path, count: int) -> float:
    directory = await Directory.open(place)
    for number in range(FOLDERS):  # the directories are there on both sides
        await directory.objects.create(_key(number), b"")
    clock = SystemClock()
    began = clock.monotonic()
    for number in range(FOLDERS, FOLDERS + count):
        assert await directory.objects.create(_key(number), DATA)
    took = clock.monotonic() - began
    await directory.close()
    return took


def _raw_put(place: Path, count: int) -> float:
    (place / "temp").mkdir()
    for number in range(FOLDERS):
        (place / _key(number)).parent.mkdir(parents=True, exist_ok=True)
    return seconds(lambda: _raw_puts(place, count))


def _raw_puts(place: Path, count: int) -> None:
    for number in range(FOLDERS, FOLDERS + count):
        temp, name = f"{place}/temp/{number}", f"{place}/{_key(number)}"
        file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.write(file, DATA)
        os.fsync(file)
        os.close(file)
        os.link(temp, name)
        folder = os.open(os.path.dirname(name), os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        os.unlink(temp)
