"""A process that archives a stream of as many messages as it is told, made up as they are read, in batches of 64 MB. It
says how much memory it took at most, in MiB, after a tenth of them, after half and after all.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from wrasse.archives.archiver import ArchivePorts, Archiver
from wrasse.archives.batch import BatchLimits
from wrasse.archives.cursor import CURSORS
from wrasse.archives.drain import GROUP
from wrasse.archives.rule import Rule
from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.leases.core import leases_in
from wrasse.leases.manager import LeaseManager
from wrasse.ports.groups import StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.streams import PLAIN, START, Draft, EntryChunk, EntryId, GroupState, StreamState
from wrasse.streams.envelope import Envelope, encode

SUBJECT = "gbe.events.audit.change"
NOW = datetime(2026, 2, 14, 12, tzinfo=UTC)
MS = int(NOW.timestamp() * 1_000)
BODIES = [encode(Envelope(f"{n:026}", SUBJECT, MS, b"%0255d" % n)) for n in range(1_000)]


class Endless:
    """A stream, and the group that is marked in it."""

    dedup_window = timedelta(0)

    def __init__(self) -> None:
        self.count = 0
        self.floor = START

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        return [EntryId(MS, 1)] * len(drafts)

    async def info(self, subject: str) -> StreamState:
        group = GroupState(GROUP, self.floor, self.floor, 0, lag=self.count - self.floor.seq)
        last = EntryId(MS, self.count)
        return StreamState(subject, self.count, 0, self.count, EntryId(MS, 1), last, (group,), NOW)

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        return Page((SUBJECT,), (SUBJECT,), NOW, False)

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        end = min(after.seq + limit, self.count)
        ids = [b"%d-%d" % (MS, seq) for seq in range(after.seq + 1, end + 1)]
        return EntryChunk(subject, ids, BODIES[: len(ids)], PLAIN, NOW, end < self.count)

    async def join(self, subject: str, group: str, start: StartAt, *, ack_timeout=None, cursor: bool = False) -> bool:
        return True

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        self.floor = upto
        return Outcome.DONE


async def main(place: str, count: int) -> None:
    """Archives them."""
    clock, endless = SystemClock(), Endless()
    memory, directory = Memory(clock), await Directory.open(place, clock)
    lease_manager = LeaseManager(memory.records(leases_in(".wrasse")), clock)
    ports = ArchivePorts(endless, endless, memory.records(CURSORS), lease_manager)  # type: ignore[arg-type]
    rule = Rule("gbe.>", directory.objects, place, limits=BatchLimits(size=1 << 40, bytes=64 << 20))
    archiver = Archiver(ports, [rule], clock, "one")
    for endless.count in (count // 10, count // 2, count):
        await archiver.drain()
        print(archiver.tally.messages, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    await directory.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
