"""What a time may look like in a row that refers to an archive. Pure, and strict: a time that is read too early ends a
reference that still counts, and its archive goes.

So what would be long before there were archives is refused, because it means something else: 0 that the row was never
deleted, and 20260214 the 14th of February.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from wrasse.clock import EPOCH

REFERENCE_TIME = "an ISO time, Unix seconds, or NULL; and NULL where 0 or an early date stands for none"
_SECONDS = re.compile(r"-?\d{1,11}(\.\d+)?")
_SECONDS_MAX = 100_000_000_000  # beyond it, somebody wrote milliseconds
_EARLIEST = datetime(1980, 1, 1, tzinfo=UTC)


def reference_time(value: object) -> datetime:
    """The instant, in UTC where it names no zone; ValueError if it is none, or means something else."""
    instant = _instant(value)
    if instant < _EARLIEST:
        raise ValueError(value)
    return instant


def _instant(value: object) -> datetime:
    match value:
        case datetime():
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case int() | float() | Decimal() if abs(float(value)) < _SECONDS_MAX:
            return EPOCH + timedelta(seconds=float(value))
        case str() if _SECONDS.fullmatch(value):
            return _instant(float(value))
        case str():
            return _instant(datetime.fromisoformat(value))
        case _:
            raise ValueError(value)
