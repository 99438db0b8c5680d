"""What a peer's file is told by whoever started it, and what its jobs do.

The no-op job appends one 8-byte timestamp to a file, some 2 us: the same for threads, forks and event loops, and no
cost for the broker. CLOCK_MONOTONIC is shared by all processes of a machine, so the conductor can subtract.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time

PORT = int(os.environ["BENCH_PORT"])
URL = f"redis://127.0.0.1:{PORT}/0"
MODE = os.environ["BENCH_MODE"]
SETTING = os.environ.get("BENCH_SETTING", "default")  # default, or tuned: as fast a recovery as the peer allows
TUNED = SETTING == "tuned"
_MARKS = os.environ["BENCH_MARKS"]
_STARTS = os.environ.get("BENCH_STARTS", "")

_file: int | None = None


def mark() -> None:
    """The whole body of the no-op job."""
    global _file
    if _file is None:
        _file = os.open(_MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_file, struct.pack("<d", time.monotonic()))


def count_marks() -> int:
    """How many jobs have run."""
    try:
        return os.stat(_MARKS).st_size // 8
    except FileNotFoundError:
        return 0


def last_mark() -> float:
    """When the newest job ran."""
    with open(_MARKS, "rb") as file:
        file.seek(-8, os.SEEK_END)
        (moment,) = struct.unpack("<d", file.read(8))
    return float(moment)


def _start() -> float:
    """Notes that the job of a recovery test starts; gives how long it must take: the first one is killed."""
    file = os.open(_STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    first = os.fstat(file).st_size == 0
    os.write(file, struct.pack("<d", time.monotonic()))
    os.close(file)
    return 30.0 if first else 0.0


def long_job() -> None:
    """The job whose worker is killed, for peers with plain functions."""
    time.sleep(_start())


async def long_job_async() -> None:
    """The same for peers with async functions."""
    await asyncio.sleep(_start())


class AsyncClient:
    """What a producer is whose peer enqueues asynchronously: one private event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()  # uvloop's, where the mode installs it
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.open())

    async def open(self) -> None:
        """Connects."""

    async def one(self) -> None:
        """Enqueues one no-op job."""
        raise NotImplementedError

    def enqueue(self, count: int) -> None:
        """Enqueues jobs, each after the answer to the one before."""

        async def go() -> None:
            for _ in range(count):
                await self.one()

        self.loop.run_until_complete(go())

    def enqueue_concurrently(self, count: int, width: int = 100) -> None:
        """What a web server does under load: many enqueues run concurrently."""

        async def go() -> None:
            for start in range(0, count, width):
                await asyncio.gather(*(self.one() for _ in range(min(width, count - start))))

        self.loop.run_until_complete(go())
