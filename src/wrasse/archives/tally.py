"""Counters of an archiver, for metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lag:
    """What is not archived yet: how many messages, about how many bytes, and the age of the oldest."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class ArchiverTally:
    """Counters of one archiver."""

    archives: int = 0
    messages: int = 0
    bytes: int = 0  # as stored
    outages: int = 0
    alarms: int = 0
    lost: int = 0  # entries trimmed before they were archived
    events_lost: int = 0
    lag: Lag = field(default_factory=Lag)

    def count(self, messages: int, size: int) -> None:
        """One archive was written."""
        self.archives += 1
        self.messages += messages
        self.bytes += size
