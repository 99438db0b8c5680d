"""A nursery of archivers that die: each line on stdin makes it fork some, each of which kills itself at its own call.

Forked from a process that has everything imported, so that a round costs milliseconds. A line is `count seed store`;
the answer is a line with the number of children that died by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from faults import GOOD, Fault, FaultyRecords, Network, Script
from stream_faults import FaultyGroups, FaultyStreams
from unit.archives.scene import FaultyObjects, RandomNames
from wrasse.archives.archiver import ArchivePorts, Archiver
from wrasse.archives.batch import BatchLimits
from wrasse.archives.cursor import CURSORS
from wrasse.archives.rule import Rule
from wrasse.backends.directory.connect import Directory
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.leases.lessor import Lessor, leases_in
from wrasse.ports.objects import NO_METADATA, Data, Objects, Stored

PATTERN = "gbe.events.audit.*"
LEASE = timedelta(milliseconds=30)
STORES: Mapping[str, type[FaultyObjects]] = {"true": FaultyObjects, "random": RandomNames}


class Deadly:
    """The plan of a process that kills itself: before its nth call or in the middle of it, while it stores its first
    archive, or right after it has."""

    def __init__(self, draw: random.Random) -> None:
        self._at = draw.choice(["nth", "nth", "store", "after store"])
        self._left = draw.randrange(1, 60)
        self._within = draw.choice([None, 0.0, 0.0005, 0.002])

    def next(self, call: str) -> Fault:
        self._left -= 1
        if self._left == 0 or self._at == call:
            if self._within is None:
                _die()
            threading.Timer(self._within, _die).start()
        return GOOD

    def stored(self) -> None:
        """An archive was stored just now."""
        if self._at == "after store":
            _die()


class Watched(FaultyObjects):
    """Objects that say when one was stored: other calls may be under way, so that no order of calls says it."""

    def __init__(self, objects: Objects, deadly: Deadly) -> None:
        super().__init__(objects, Network(Script({})))
        self._deadly = deadly

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> Stored:
        stored = await super().create(key, data, metadata=metadata)
        self._deadly.stored()
        return stored


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def archiver(
    sqlite: Sqlite, directory: Directory, store: str, owner: str, deadly: Deadly | None = None
) -> Archiver:
    """An archiver whose every call passes a network."""
    clock, network = SystemClock(), Network(deadly or Script({}))
    leases = FaultyRecords(sqlite.records(leases_in(".wrasse")), network)
    ports = ArchivePorts(
        FaultyStreams(sqlite.streams, network),
        FaultyGroups(sqlite.groups, network),
        FaultyRecords(sqlite.records(CURSORS), network),
        Lessor(leases, clock, indexed=False),
    )
    objects = STORES[store](directory.objects, network)
    if deadly is not None:
        objects = Watched(objects, deadly)
    rule = Rule(PATTERN, objects, "file:", limits=BatchLimits(size=7))
    return Archiver(ports, [rule], clock, owner, lease_ttl=LEASE)


async def live(folder: Path, seed: int, store: str) -> None:
    """Archives until it dies."""
    draw = random.Random(seed)
    sqlite, directory = await Sqlite.open(folder / "wrasse.db"), await Directory.open(folder / "data")
    one = archiver(sqlite, directory, store, f"archiver-{seed}", Deadly(draw))
    while True:
        await one.drain()
        await asyncio.sleep(0.005)


def main() -> None:
    """Forks and buries until stdin ends."""
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        count, seed, store = line.split()
        born = []
        for number in range(int(count)):
            pid = os.fork()
            if pid == 0:
                asyncio.run(live(folder, int(seed) * 100 + number, store))
                os._exit(3)
            born.append(pid)
        ends = [os.waitpid(pid, 0)[1] for pid in born]
        sys.stdout.write(f"{sum(os.WIFSIGNALED(end) and os.WTERMSIG(end) == signal.SIGKILL for end in ends)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
