"""What an archiver tells others: `gbe.events.system.archive` after each archive, `gbe.events.system.error` in alarm.

An event that cannot be published undoes nothing: what is archived is archived. The stream of archive events is not
announced itself: archived, it would never come to rest.
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
    """One archive was written. `bytes` is its size as stored, `raw_bytes` that of its lines."""

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
        # Whoever takes over after a crash announces the same archive: where the backend knows keys, it is told once.
        key = hashlib.sha256(str(name).encode("utf-8", "surrogateescape")).hexdigest() if self._keys else ""
        await self._publish(self._archived, msgspec.json.encode(event), key)

    async def alarm(self, subject: str, error: str, do: str) -> None:
        """A person should look."""
        self._tally.alarms += 1
        await self._publish(self._errors, msgspec.json.encode(AlertEvent(subject, error, do, "archiver")), "")

    async def _publish(self, subject: str, payload: bytes, key: str) -> None:
        try:
            await self._publisher.publish(subject, payload, key=key)
        except (StoreUnavailable, StoreBroken):
            self._tally.events_lost += 1
