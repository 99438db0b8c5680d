"""Periodic jobs: schedules, and which of their slots are due. Pure.

A slot is a moment of the schedule, the same on every machine: cron slots as the expression says, those of an interval
at its multiples since 1970, in UTC. A slot's job has the slot in its id, so there is one job however many processes see
the slot. The last handled slot is stored, so that after a downtime the missed slots are known:

    skip    they are skipped; a slot that is at most LATE_MAX old still counts as now
    once    the newest of them runs
    all     all of them run, the newest SLOTS_MAX if there are more

Cron expressions are parsed by cronsim, which follows Debian's cron. Five fields: minute, hour, day of month, month, day
of week, with `*`, lists, ranges, steps, English names, `L` (last day), `LW` (last weekday), `mon#2` (second Monday);
`@daily` and its like. If both kinds of day are restricted, either one suffices.

A slot is an instant, so it happens once also when local time changes. When clocks go forward, slots in the skipped hour
run together at the first moment after it. When they go back, a slot at a given hour runs the first time that hour
comes; an expression with `*` as its minute or hour follows elapsed time and has slots in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from wrasse.duration import format_duration, parse_duration
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
        # In an hour that comes twice, cronsim begins with slots of its first pass, which are over.
        for slot in CronSim(self.fields, at.astimezone(self.zone)):
            moment = slot.astimezone(UTC)
            if moment > at:
                return moment
        raise _never(self.text)


def parse_cron(text: str, zone: str = "UTC") -> Cron:
    """Parses an expression; an error names the bad field."""
    fields = MACROS.get(text.strip().lower(), text)
    if len(text) > _CHARACTERS_MAX or len(fields.split()) != len(_ALLOWED):
        raise ConfigError(
            f"the cron expression {text[:100]!r} has {len(fields.split())} fields and {len(text)} characters",
            do="write five fields: minute hour day-of-month month day-of-week, e.g. '0 3 * * *' for 03:00 every day",
        )
    cron = Cron(text, fields, _zone(zone))
    try:
        cron.next_after(datetime(2024, 1, 1, tzinfo=UTC))  # 31 June is refused here, not at run time
    except CronSimError as error:
        raise _bad(text, str(error).removeprefix("Bad ")) from None
    return cron


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"there is no time zone {name!r}", do="write one like Europe/Berlin, or UTC") from None


def _bad(text: str, field: str) -> ConfigError:
    hint = f"use {_ALLOWED.get(field, 'numbers')}; a range, a list or a step"
    return ConfigError(f"the cron expression {text!r} has a bad {field.replace('-', ' ')}", do=hint)


def _never(text: str) -> ConfigError:
    return ConfigError(f"the cron expression {text!r} never comes true", do="check day and month")


SLOTS_MAX = 100
LATE_MAX = timedelta(minutes=1)
INTERVAL_MIN = timedelta(seconds=1)
NAME_BYTES_MAX = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPAN_FIRST = timedelta(minutes=2)
_SPAN_GROWS = 4


class Missed(StrEnum):
    """What is done with slots that were missed while nothing ran."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class SlotSchedule(Protocol):
    """When slots are: a Cron, or an Every."""

    def next_after(self, at: datetime) -> datetime:
        """The first slot later than `at`, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at the multiples of an interval, counted from 1970 in UTC."""

    interval: timedelta

    def __post_init__(self) -> None:
        if self.interval < INTERVAL_MIN:
            raise ConfigError(f"an interval of {format_duration(self.interval)}", do="use 1s or more")

    def next_after(self, at: datetime) -> datetime:
        """The first slot later than `at`, in UTC."""
        return _EPOCH + ((at - _EPOCH) // self.interval + 1) * self.interval


@dataclass(frozen=True, slots=True)
class Periodic:
    """One periodic job: its name, its schedule, and what is enqueued at each slot."""

    name: str
    schedule: Cron | Every
    kind: str = ""
    payload: bytes = b""
    priority: str | None = None
    missed: Missed = Missed.ONCE

    def __post_init__(self) -> None:
        size = len(self.name.encode())
        if not 1 <= size <= NAME_BYTES_MAX or not self.name.isprintable():
            raise ConfigError(
                f"a periodic job is called {self.name[:40]!r}", do=f"use 1 to {NAME_BYTES_MAX} bytes, all printable"
            )

    def job_id(self, slot: datetime) -> str:
        """The id of a slot's job, the same in every process."""
        return f"periodic/{self.name}/{slot.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"

    @property
    def when(self) -> str:
        """The schedule as a person wrote it."""
        schedule = self.schedule
        if isinstance(schedule, Every):
            return f"every {format_duration(schedule.interval)}"
        return f"cron {schedule.text}" + ("" if schedule.zone.key == "UTC" else f" {schedule.zone.key}")


def read_when(text: str) -> Cron | Every:
    """The schedule that `Periodic.when` wrote."""
    what, *fields = text.split()
    if what == "every":
        return Every(parse_duration(fields[0]))
    length = 1 if fields[0].startswith("@") else 5
    return parse_cron(" ".join(fields[:length]), *fields[length : length + 1])


def due_slots(last: datetime, now: datetime, schedule: SlotSchedule, missed: Missed) -> Sequence[datetime]:
    """The slots after `last` that are to run now, oldest first. Empty until the first slot after `last` has come."""
    if missed is Missed.ALL:
        return newest_slots(last, now, schedule, SLOTS_MAX)
    newest = newest_slots(last, now, schedule, 1)
    return [slot for slot in newest if missed is Missed.ONCE or now - slot <= LATE_MAX]


def newest_slots(last: datetime, now: datetime, schedule: SlotSchedule, limit: int) -> list[datetime]:
    """The newest slots in (last, now], at most `limit`, oldest first. Searches back from now in growing spans, so that
    its cost follows what it returns, not how much was missed."""
    span = _SPAN_FIRST
    while True:
        start = max(last, now - span)
        found = _slots(start, now, schedule)
        if start == last or len(found) >= limit:
            return found[-limit:]
        span *= _SPAN_GROWS


def _slots(start: datetime, now: datetime, schedule: SlotSchedule) -> list[datetime]:
    found = []
    slot = schedule.next_after(start)
    while slot <= now:
        found.append(slot)
        slot = schedule.next_after(slot)
    return found
