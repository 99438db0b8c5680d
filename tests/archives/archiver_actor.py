"""A nursery of archivers that die: each line on stdin makes it fork some, each of which kills itself at its own call.

Forked from a process that has everything imported, so that a round costs milliseconds. A line is `count seed store`;
the answer is a line with the number of children that died by SIGKILL. Until it dies, a child lives with a store that
fails at random: requests and replies are lost, some are slow, and some arrive after the child has given them up.

`stand store` forks one that stops itself before its first put, and answers once it stands; `go` lets it go on to its
end, and answers with its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from faults import GOOD, LOST_REPLY, LOST_REQUEST, Fault, FaultyRecords, Network, Plan, Script
from stream_faults import FaultyGroups, FaultyStreams
from unit.archives.scene import FaultyObjects, Overwrites, RandomNames
from wrasse.archives.archiver import ArchivePorts, Archiver, ArchiverOptions
from wrasse.archives.batch import BatchLimits
from wrasse.archives.cursor import CURSORS
from wrasse.archives.rule import Rule
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.leases.core import leases_in
from wrasse.leases.manager import LeaseManager
from wrasse.ports.objects import NO_METADATA, Data, Objects, WriteResult
from wrasse.runtime.backends import Stores

PATTERN = "gbe.events.audit.*"
LEASE = timedelta(milliseconds=30)
POLL = timedelta(milliseconds=1)  # so that who met a failing store tries again before it dies
STORES: Mapping[str, type[FaultyObjects]] = {"true": FaultyObjects, "random": RandomNames, "overwrite": Overwrites}
FAILING = 0.1  # of the calls to the store
SLOW = 4 * LEASE.total_seconds()  # so that another takes over meanwhile
FAULTS = (LOST_REPLY, LOST_REQUEST, Fault(slow_request=SLOW), Fault(slow_reply=0.01), Fault(late=SLOW))
SLOW_SHARE = 0.3
SIZES = (3, 7, 12)  # of batches: two that write the same archive mean different ones


@dataclass(frozen=True, slots=True)
class StreamAndStore:
    """Where streams, cursors and leases are, and where archives go, as URLs."""

    transport: str
    objects: str


class Deadly:
    """The plan of a process that kills itself: before its nth call or in the middle of it, while it stores its first
    archive, or right after it has. Some take so long for their first that another takes over meanwhile."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._at = draw.choice(["nth", "nth", "store", "after store"])
        self._slow = draw.random() < SLOW_SHARE
        # Whoever means to die around a store may find nothing left to store.
        self._left = draw.randrange(1, draw.choice([40, 160])) if self._at == "nth" else 80
        self._within = draw.choice([None, 0.0, 0.0005, 0.002])

    def next(self, call: str) -> Fault:
        self._left -= 1
        if self._left == 0 or self._at == call:
            if self._within is None:
                _die()
            threading.Timer(self._within, _die).start()
        if call == "store" and self._slow:
            self._slow = False
            return Fault(slow_request=SLOW)
        if call in ("store", "head") and self._draw.random() < FAILING:
            return self._draw.choice(FAULTS)
        return GOOD

    def stored(self) -> None:
        """An archive was stored just now."""
        if self._at == "after store":
            _die()


class Standing:
    """The plan of a process that stops itself between what it has read and its first put."""

    def __init__(self) -> None:
        self._stood = False

    def next(self, call: str) -> Fault:
        if call == "store" and not self._stood:
            self._stood = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return GOOD


class Watched(FaultyObjects):
    """Objects that say when one was stored: other calls may be under way, so that no order of calls says it."""

    def __init__(self, objects: Objects, deadly: Deadly) -> None:
        super().__init__(objects, Network(Script({})))
        self._deadly = deadly

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        stored = await super().create(key, data, metadata=metadata)
        self._deadly.stored()
        return stored


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def archiver(
    stores: Stores, pair: StreamAndStore, store: str, owner: str, plan: Plan | None = None, size: int = 7
) -> Archiver:
    """An archiver whose every call passes a network."""
    clock, network, backend = SystemClock(), Network(plan or Script({})), await stores.open_streams(pair.transport)
    leases = FaultyRecords(backend.records(leases_in(".wrasse")), network)
    ports = ArchivePorts(
        FaultyStreams(backend.streams, network),
        FaultyGroups(backend.groups, network),
        FaultyRecords(backend.records(CURSORS), network),
        LeaseManager(leases, clock),
    )
    objects: FaultyObjects = STORES[store](await stores.open_objects(pair.objects), network)
    if isinstance(plan, Deadly):
        objects = Watched(objects, plan)
    rule = Rule(PATTERN, objects, "somewhere", limits=BatchLimits(size))
    return Archiver(ports, [rule], clock, owner, ArchiverOptions(POLL, LEASE))


async def live(pair: StreamAndStore, seed: int, store: str) -> None:
    """Archives until it dies."""
    stores, draw = Stores(SystemClock()), random.Random(seed)
    one = await archiver(stores, pair, store, f"archiver-{seed}", Deadly(draw), draw.choice(SIZES))
    while True:
        with contextlib.suppress(StoreUnavailable):  # the store fails at random: it goes on
            await one.drain()
        await asyncio.sleep(0.005)


async def stand(pair: StreamAndStore, store: str) -> None:
    """Archives all there is, and stands still in the middle of it."""
    stores = Stores(SystemClock())
    try:
        await (await archiver(stores, pair, store, "standing", Standing())).drain()
    finally:
        await stores.close()


async def warm(pair: StreamAndStore) -> None:
    """Imports what is imported late, once for all children."""
    stores = Stores(SystemClock())
    try:
        await archiver(stores, pair, "true", "warming")
    finally:
        await stores.close()


def fork(life: Callable[[], Coroutine[None, None, None]]) -> int:
    """A child that leads this life."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(life())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def main() -> None:
    """Forks and buries until stdin ends."""
    pair, standing = StreamAndStore(sys.argv[1], sys.argv[2]), 0
    asyncio.run(warm(pair))
    for line in sys.stdin:
        match line.split():
            case ["stand", store]:
                standing = fork(partial(stand, pair, store))
                answer = int(os.WIFSTOPPED(os.waitpid(standing, os.WUNTRACED)[1]))
            case ["go"]:
                os.kill(standing, signal.SIGCONT)
                answer = os.waitstatus_to_exitcode(os.waitpid(standing, 0)[1])
            case [count, seed, store]:
                born = [fork(partial(live, pair, int(seed) * 100 + nth, store)) for nth in range(int(count))]
                ends = [os.waitpid(pid, 0)[1] for pid in born]
                answer = sum(os.WIFSIGNALED(end) and os.WTERMSIG(end) == signal.SIGKILL for end in ends)
            case _:
                raise ValueError(line)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
