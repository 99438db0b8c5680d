"""Cron expressions: when is the next slot? Pure.

Five fields: minute, hour, day of month, month, day of week, with `*`, lists, ranges, steps and English names; `@daily`
and its like. As in every cron since Vixie's, a day matches if day of month OR day of week does, when both are given.

A slot is a moment, so it happens once whatever the clocks on the wall do. When they go forward, slots in the hour that
does not exist come together at the first moment after it. When they go back, a slot at a given hour happens the first
time that hour comes; an expression for every hour follows real time and has slots in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_ITEM = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_YEARS_MAX = 9  # 29 February is at most eight years away


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression in its time zone."""

    text: str
    zone: ZoneInfo
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either_day: bool  # both kinds of day are given: one of them is enough

    def next_after(self, at: datetime) -> datetime:
        """The first slot later than `at`, in UTC."""
        return self._by_real_time(at) if len(self.hours) == 24 else self._by_the_wall(at)

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        month_day, week_day = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (month_day or week_day) if self.either_day else (month_day and week_day)

    def _by_real_time(self, at: datetime) -> datetime:
        """Every hour counts: walk through real minutes, skipping days that do not match."""
        moment = at.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        for _ in range(_YEARS_MAX * 366 * 60):
            wall = moment.astimezone(self.zone)
            if not self._on(wall.date()):
                moment = max(_moment(datetime.combine(wall.date() + _DAY, time.min), self.zone), moment + _MINUTE)
            elif wall.minute in self.minutes:
                return moment
            else:
                moment += _MINUTE
        raise self._never()

    def _by_the_wall(self, at: datetime) -> datetime:
        """Given hours: walk through what the clock on the wall shows, and find the moment of each."""
        for wall in self._walls(at.astimezone(self.zone).date() - _DAY):
            moment = _moment(wall, self.zone)
            if moment > at:
                return moment
        raise self._never()

    def _walls(self, day: date) -> Iterator[datetime]:
        for _ in range(_YEARS_MAX * 366):
            if self._on(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        yield datetime.combine(day, time(hour, minute))
            day += _DAY

    def _never(self) -> ConfigError:
        return ConfigError(f"the cron expression {self.text!r} never comes true", do="check day and month")


def parse_cron(text: str, zone: str = "UTC") -> Cron:
    """Reads an expression; a mistake is told with its field."""
    fields = MACROS.get(text.strip().lower(), text).split()
    if len(fields) != len(_FIELDS):
        raise ConfigError(
            f"the cron expression {text!r} has {len(fields)} fields",
            do="write five: minute hour day-of-month month day-of-week, e.g. '0 3 * * *' for 03:00 every day",
        )
    sets = [_field(field, *spec) for field, spec in zip(fields, _FIELDS, strict=True)]
    cron = Cron(
        text=text,
        zone=_zone(zone),
        minutes=sets[0],
        hours=sets[1],
        days=sets[2],
        months=sets[3],
        weekdays=frozenset(day % 7 for day in sets[4]),
        either_day=not fields[2].startswith("*") and not fields[4].startswith("*"),
    )
    cron.next_after(datetime(2024, 1, 1, tzinfo=UTC))  # 30 February is told here, not at night
    return cron


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"there is no time zone {name!r}", do="write one like Europe/Berlin, or UTC"
        ) from None


def _field(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for item in text.lower().split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _bad(item, what, low, high)
        star, first, last, step = match.groups()
        start = low if star else _number(first, what, low, high, names)
        # A single value with a step runs to the end of the field: 5/15 is 5-59/15.
        end = high if star or (step and not last) else _number(last or first, what, low, high, names)
        stride = int(step or 1)
        if end < start or not stride:
            raise _bad(item, what, low, high)
        found.update(range(start, end + 1, stride))
    return frozenset(found)


def _number(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + low
    if not text.isdecimal() or not low <= int(text) <= high:
        raise _bad(text, what, low, high)
    return int(text)


def _bad(item: str, what: str, low: int, high: int) -> ConfigError:
    hint = f"use {low} to {high}, a range, a list or a step"
    return ConfigError(f"{item!r} is no {what} of a cron expression", do=hint)


def _moment(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the wall clock shows this: the first time, or the first moment after if it never does."""
    earlier = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if earlier.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
        return earlier
    # In a gap the two folds lie on both sides of the change of offset; the change is where to be.
    before, after = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), earlier
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) / 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after
