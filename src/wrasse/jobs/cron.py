"""Cron expressions: when is the next slot? Pure; fields, days and months are cronsim's, which follows Debian's cron.

Five fields: minute, hour, day of month, month, day of week, with `*`, lists, ranges, steps, English names, `L` (last
day), `LW` (last weekday), `mon#2` (second Monday); `@daily` and its like. Of two kinds of day that are given, one is
enough.

A slot is a moment, so it happens once whatever the clocks on the wall do. When they go forward, slots in the hour that
does not exist come together at the first moment after it. When they go back, a slot at a given hour happens the first
time that hour comes; an expression with `*` as its minute or hour follows real time and has slots in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from wrasse.errors import ConfigError

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_CHARACTERS_MAX = 1_000
_ALLOWED = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L for the last day or LW for the last weekday, and a day that the month has",
    "month": "1 to 12, or jan to dec",
    "day-of-week": "0 to 7, sun to sat, or mon#2 for the second Monday",
}


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression in its time zone."""

    text: str
    fields: str
    zone: ZoneInfo

    def next_after(self, at: datetime) -> datetime:
        """The first slot later than `at`, in UTC."""
        # Asked in an hour that comes twice, cronsim begins with slots of its first time, which are over.
        for slot in CronSim(self.fields, at.astimezone(self.zone)):
            moment = slot.astimezone(UTC)
            if moment > at:
                return moment
        raise _never(self.text)


def parse_cron(text: str, zone: str = "UTC") -> Cron:
    """Reads an expression; a mistake is told with its field."""
    fields = MACROS.get(text.strip().lower(), text)
    if len(text) > _CHARACTERS_MAX or len(fields.split()) != len(_ALLOWED):
        raise ConfigError(
            f"the cron expression {text[:100]!r} has {len(fields.split())} fields and {len(text)} characters",
            do="write five fields: minute hour day-of-month month day-of-week, e.g. '0 3 * * *' for 03:00 every day",
        )
    cron = Cron(text, fields, _zone(zone))
    try:
        cron.next_after(datetime(2024, 1, 1, tzinfo=UTC))  # 31 June is told here, not at night
    except CronSimError as error:
        raise _bad(text, str(error).removeprefix("Bad ")) from None
    return cron


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"there is no time zone {name!r}", do="write one like Europe/Berlin, or UTC"
        ) from None


def _bad(text: str, field: str) -> ConfigError:
    hint = f"use {_ALLOWED.get(field, 'numbers')}; a range, a list or a step"
    return ConfigError(f"the cron expression {text!r} has a bad {field.replace('-', ' ')}", do=hint)


def _never(text: str) -> ConfigError:
    return ConfigError(f"the cron expression {text!r} never comes true", do="check day and month")
