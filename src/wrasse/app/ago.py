"""How long ago something was, to the precision a reader needs."""

from __future__ import annotations

from datetime import datetime, timedelta

from wrasse.duration import format_duration


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago, or in how long, to the precision a reader needs."""
    if at is None:
        return ""
    away = abs(now - at)
    if away < timedelta(seconds=1):
        return "now"
    step = next(unit for unit in (86_400, 3_600, 60, 1) if away.total_seconds() >= unit or unit == 1)
    below = {86_400: 3_600, 3_600: 60, 60: 1, 1: 1}[step]
    text = format_duration(timedelta(seconds=int(away.total_seconds()) // below * below))
    return f"{text} ago" if at <= now else f"in {text}"
