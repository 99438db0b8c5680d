"""Durations as people write them: 30s, 5m, 1h30m, 7d, 250ms.

Inside the program a duration is a `timedelta`; units appear only at the edge, and there they are required, since
a bare `30` means seconds to one reader and minutes to the next.
"""

from __future__ import annotations

import re
from datetime import timedelta

from wrasse.errors import BadDuration

_MICROS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_LONGEST = timedelta(days=36_500)


def parse_duration(text: str) -> timedelta:
    """Turns `1h30m` into a timedelta; anything without a unit is refused with a hint."""
    text = text.strip()
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        if float(text) == 0:
            return timedelta(0)
        raise BadDuration(f"the duration {text!r} has no unit", do=f"write {text}s, {text}m, {text}h or {text}d")
    if not _WHOLE.fullmatch(text):
        raise BadDuration(f"{text!r} is not a duration", do="write a number and a unit: 250ms, 30s, 5m, 1h30m or 7d")
    # Compared before it is rounded: infinity, which a long row of digits becomes, cannot be.
    exact = sum(float(number) * _MICROS[unit] for number, unit in _PART.findall(text))
    if exact > _LONGEST // timedelta(microseconds=1):
        raise BadDuration(f"the duration {text!r} is longer than 100 years", do="write a shorter one")
    return timedelta(microseconds=round(exact))


def format_duration(duration: timedelta) -> str:
    """The shortest exact text that `parse_duration` reads back: 5400 s is 1h30m."""
    micros = duration // timedelta(microseconds=1)
    if micros < 0:
        return "-" + format_duration(-duration)
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, micros = divmod(micros, _MICROS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
