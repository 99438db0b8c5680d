"""Alerts: what a person should know about streams, told once on `<root>.events.system.error`, and again only when it
became something else, when it went away and came back, or when the repeat interval has passed.

What was told is kept as one record per alert, so that another process, or this one after a restart, knows it. An alert
is published before that is noted: a crash in between tells it twice, never not at all. Where the backend knows keys,
what one look found is told once, however often it is tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import Clock, to_micros
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages
from wrasse.ports.records import Collection, Record, Records
from wrasse.ports.streams import Streams
from wrasse.streams.dead_letter import ROOT
from wrasse.streams.publisher import Publisher

ALERTS = Collection.named("streams/alerts")
_PAGE = 1_000
_PAGES_MAX = 10


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should know. `what` stays the same while it is the same matter; numbers stand beside it.
    Matters of one group that have nothing to do with each other differ by `topic`."""

    stream: str
    what: str
    do: str
    group: str = ""
    count: int = 0
    oldest_at: datetime | None = None
    topic: str = ""

    @property
    def name(self) -> str:
        """Which matter it is about."""
        return f"{self.stream}\n{self.group}\n{self.topic}"


@dataclass(frozen=True, slots=True)
class SentAlert:
    """An alert that was told, when, and the version of its record."""

    name: str
    what: str
    told_at: datetime
    key: str
    version: str
    count: int = 0

    @property
    def stream(self) -> str:
        """The stream it was about."""
        return self.name.partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell this alert; the one that was told before, if any."""

    alert: Alert
    told: SentAlert | None
    at: datetime
    lost: int = 0  # entries, among those that were trimmed while pending, which nobody was told about


@dataclass(frozen=True, slots=True)
class Settle:
    """Forget this alert: its cause is gone."""

    told: SentAlert


class _Stored(msgspec.Struct, frozen=True):
    name: str
    what: str
    told_at: datetime
    count: int = 0


class AlertEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an alert."""

    stream: str
    error: str
    do: str
    source: str
    group: str = ""
    count: int = 0
    oldest_at: datetime | None = None


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(_Stored).decode


def worth_telling(alert: Alert, told: SentAlert | None, at: datetime, repeat: timedelta) -> bool:
    """Whether an alert says something new."""
    return told is None or told.what != alert.what or at - told.told_at >= repeat


class Alerts:
    """The alerts of one sweep, which is their `source`."""

    def __init__(self, records: Records, streams: Streams, clock: Clock, source: str, *, root: str = ROOT) -> None:
        self._records = records
        self._publisher = Publisher(streams, clock)
        self._keyed = streams.dedup_window > timedelta(0)
        self._source = source
        self._subject = f"{root}.events.system.error"

    async def told(self) -> Mapping[str, SentAlert]:
        """What was told and is not settled, by name."""
        found: dict[str, SentAlert] = {}
        async for page in pages(lambda after: self._records.page(f"{self._source}:", after, _PAGE), most=_PAGES_MAX):
            known = [each for record in page if (each := _told(record)) is not None]
            found |= {each.name: each for each in known}
        return found

    async def tell(self, alert: Alert, told: SentAlert | None, at: datetime) -> Outcome:
        """Publishes an alert and notes it; `conflict` if somebody else noted another one meanwhile."""
        key = f"{self._source}:{hashlib.sha256(alert.name.encode()).hexdigest()[:40]}"
        # By the moment too: what went away and came back is told, however soon.
        await self.say(alert, f"{key}:{to_micros(at)}" if self._keyed else "")
        value = _ENCODE(_Stored(alert.name, alert.what, at, alert.count))
        if told is None:
            written = await self._records.create(key, value)
        else:
            written = await self._records.put(key, value, at=told.version)
        return written.outcome

    async def say(self, alert: Alert, key: str = "") -> None:
        """Publishes what is worth telling each time."""
        event = AlertEvent(alert.stream, alert.what, alert.do, self._source, alert.group, alert.count, alert.oldest_at)
        await self._publisher.publish(self._subject, _ENCODE(event), key=key)

    async def settle(self, told: SentAlert) -> Outcome:
        """Forgets an alert whose cause is gone: if it comes back, it is told at once."""
        return (await self._records.delete(told.key, at=told.version)).outcome


def _told(record: Record) -> SentAlert | None:
    try:
        stored = decoded(_DECODE, record.value)
    except ValueError:
        return None  # of another version of wrasse: told anew
    return SentAlert(stored.name, stored.what, stored.told_at, record.key, record.version, stored.count)
