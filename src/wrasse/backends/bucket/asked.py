"""What is asked of records by their stored names: a change, a place in the due index, a page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from wrasse.errors import UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import number_in

Answer = tuple[Outcome, str | None]  # to a change: how it ended, and the version it made


@dataclass(frozen=True, slots=True)
class Change:
    """A write to one record: at this version (None: there is none), to this value (None: delete it)."""

    stored: bytes
    at: str | None
    value: bytes | None
    due_at: datetime | None
    nonce: str | None
    entry_stays: bool = False


@dataclass(frozen=True, slots=True)
class DueSpot:
    """A place in the due index: after this name in this bucket."""

    bucket: str
    stored: bytes

    def __str__(self) -> str:
        return f"{self.bucket}:{self.stored.decode()}"

    @classmethod
    def parse(cls, cursor: str) -> DueSpot:
        """The place that a cursor names."""
        bucket, colon, stored = cursor.partition(":")
        number_in(cursor, bucket if colon else "")
        return cls(bucket, stored.encode(errors="surrogatepass"))


def check_limit(limit: int) -> None:
    """Refuses a page of nothing."""
    if limit < 1:
        raise UsageError(f"a page of {limit} records", do="ask for at least one")
