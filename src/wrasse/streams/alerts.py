"""Alerts about streams, sent once on `<root>.events.system.error`, and again only when the text changed, when the cause
returned, or after the repeat interval.

Each sent alert is stored as one record, so that other processes, and this one after a restart, know it. An alert is
published before its record is written: a crash in between sends it twice, but never loses it. With a backend that has
idempotency keys, retries of one alert are deduplicated.
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
from wrasse.streams.delivery import ROOT
from wrasse.streams.publisher import Publisher

ALERTS = Collection.named("streams/alerts")
_PAGE = 1_000
_PAGES_MAX = 10


@dataclass(frozen=True, slots=True)
class Alert:
    """Something an operator should know. `what` is constant while the cause is the same; numbers are separate fields.
    Independent causes in one group have different topics."""

    stream: str
    what: str
    do: str
    group: str = ""
    count: int = 0
    oldest_at: datetime | None = None
    topic: str = ""

    @property
    def name(self) -> str:
        """Identifies its cause."""
        return f"{self.stream}\n{self.group}\n{self.topic}"


@dataclass(frozen=True, slots=True)
class SentAlert:
    """An alert that was sent, when, and the version of its record."""

    name: str
    what: str
    told_at: datetime
    key: str
    version: str
    count: int = 0

    @property
    def stream(self) -> str:
        """The stream it is about."""
        return self.name.partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this alert; `told` is the one sent before, if any."""

    alert: Alert
    told: SentAlert | None
    at: datetime
    lost: int = 0  # entries trimmed while pending that no alert has reported


@dataclass(frozen=True, slots=True)
class Settle:
    """Delete this alert: its cause is gone."""

    told: SentAlert


class _StoredAlert(msgspec.Struct, frozen=True):
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
_DECODE = msgspec.json.Decoder(_StoredAlert).decode


def worth_telling(alert: Alert, told: SentAlert | None, at: datetime, repeat: timedelta) -> bool:
    """Whether an alert is new, changed or due for repetition."""
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
        """The alerts that were sent and not deleted, by name."""
        found: dict[str, SentAlert] = {}
        async for page in pages(lambda after: self._records.page(f"{self._source}:", after, _PAGE), most=_PAGES_MAX):
            alerts = [each for record in page if (each := _decode_alert(record)) is not None]
            found |= {each.name: each for each in alerts}
        return found

    async def tell(self, alert: Alert, told: SentAlert | None, at: datetime) -> Outcome:
        """Publishes an alert and stores it; `conflict` if another process stored one meanwhile."""
        key = f"{self._source}:{hashlib.sha256(alert.name.encode()).hexdigest()[:40]}"
        # The key includes the time: a cause that returns is reported again, however soon.
        await self.say(alert, f"{key}:{to_micros(at)}" if self._keyed else "")
        value = _ENCODE(_StoredAlert(alert.name, alert.what, at, alert.count))
        if told is None:
            written = await self._records.create(key, value)
        else:
            written = await self._records.put(key, value, at=told.version)
        return written.outcome

    async def say(self, alert: Alert, key: str = "") -> None:
        """Publishes an alert that is repeated every time."""
        event = AlertEvent(alert.stream, alert.what, alert.do, self._source, alert.group, alert.count, alert.oldest_at)
        await self._publisher.publish(self._subject, _ENCODE(event), key=key)

    async def settle(self, told: SentAlert) -> Outcome:
        """Deletes an alert whose cause is gone: if the cause returns, it is sent at once."""
        return (await self._records.delete(told.key, at=told.version)).outcome


def _decode_alert(record: Record) -> SentAlert | None:
    try:
        stored = decoded(_DECODE, record.value)
    except ValueError:
        return None  # written by another version of wrasse: sent again
    return SentAlert(stored.name, stored.what, stored.told_at, record.key, record.version, stored.count)
