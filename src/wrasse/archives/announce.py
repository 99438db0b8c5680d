"""Events of an archiver: `gbe.events.system.archive` after each archive, `gbe.events.system.error` as an alarm.

A failure to publish an event changes nothing else. Archives of the stream of archive events are not announced: each
would cause another one.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

import msgspec

from wrasse.archives.batch import ArchiveFacts
from wrasse.archives.naming import ArchiveName
from wrasse.archives.tally import ArchiverTally
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.streams import Streams
from wrasse.streams.alerts import AlertEvent
from wrasse.streams.dead_letter import ROOT
from wrasse.streams.publisher import Publisher


class ArchiveEvent(msgspec.Struct, frozen=True):
    """An archive was written. `bytes` is its stored size, `raw_bytes` that of its lines."""

    stream: str
    domain: str
    count: int
    marked: int
    bytes: int
    raw_bytes: int
    first_id: str
    last_id: str
    destination: str
    key: str


class Announcer:
    """Publishes events about archives."""

    def __init__(self, streams: Streams, clock: Clock, tally: ArchiverTally, root: str = ROOT) -> None:
        self._publisher = Publisher(streams, clock)
        self._keys = streams.dedup_window > timedelta(0)
        self._tally = tally
        self._archived = f"{root}.events.system.archive"
        self._errors = f"{root}.events.system.error"

    async def archived(self, name: ArchiveName, facts: ArchiveFacts, size: int, destination: str) -> None:
        """An archive was written."""
        if name.subject in (self._archived, self._errors):
            return
        event = ArchiveEvent(
            name.subject,
            name.domain,
            facts.count,
            facts.marked,
            size,
            facts.raw_bytes,
            str(facts.first),
            str(facts.last),
            destination,
            str(name),
        )
        # After a crash another process announces the same archive again: an idempotency key deduplicates it.
        key = hashlib.sha256(str(name).encode("utf-8", "surrogateescape")).hexdigest() if self._keys else ""
        await self._publish(self._archived, msgspec.json.encode(event), key)

    async def alarm(self, subject: str, error: str, do: str) -> None:
        """Alerts the operator."""
        self._tally.alarms += 1
        await self._publish(self._errors, msgspec.json.encode(AlertEvent(subject, error, do, "archiver")), "")

    async def _publish(self, subject: str, payload: bytes, key: str) -> None:
        try:
            await self._publisher.publish(subject, payload, key=key)
        except (StoreUnavailable, StoreBroken):
            self._tally.events_lost += 1
