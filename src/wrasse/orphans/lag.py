"""Reference lag: the time from the last write of an object to the reference to it. Pure.

The grace of superseded objects must be longer, so the lag is measured: for each unit that has a reference now and was
listed without one by the last scan, the time since it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from wrasse.duration import format_duration

BOUNDS = tuple(
    timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 4 * 60, 12 * 60, 24 * 60, 7 * 24 * 60, 30 * 24 * 60)
)
_MICROS = tuple(round(bound.total_seconds() * 1_000_000) for bound in BOUNDS)
_NAMES = tuple(f"lag_{format_duration(bound)}" for bound in BOUNDS)
LONGER = "lag_longer"


def note_lag(counts: Counter[str], modified: int, last_at: int, at: int) -> None:
    """Counts one unit that has a reference now and had none in the last scan, unless it is newer than that scan."""
    if modified >= last_at:
        return
    lag = at - modified
    counts[next((name for name, bound in zip(_NAMES, _MICROS, strict=True) if lag <= bound), LONGER)] += 1


def longest(counts: Mapping[str, int]) -> timedelta | None:
    """The bucket bound of the longest lag; None without a lag, `timedelta.max` beyond the last bound."""
    if counts.get(LONGER):
        return timedelta.max
    return next((bound for name, bound in reversed([*zip(_NAMES, BOUNDS, strict=True)]) if counts.get(name)), None)


def warning(counts: Mapping[str, int], grace: timedelta) -> str:
    """A warning if references are created too late for the grace; else empty."""
    lag = longest(counts)
    if lag is None or lag <= grace / 3:
        return ""
    text = "more than 30d" if lag == timedelta.max else f"up to {format_duration(lag)}"
    return f"references came {text} after their objects; a grace of {format_duration(grace)} is too short for that"


def histogram(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts by bound."""
    return [(name.removeprefix("lag_"), counts.get(name, 0)) for name in (*_NAMES, LONGER)]
