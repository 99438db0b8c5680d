"""When the next slot is: fields, days, time zones, and the two nights a year that are not 24 hours long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import ConfigError
from wrasse.jobs.periodic import parse_cron


def slots(text: str, zone: str, start: datetime, count: int) -> list[str]:
    cron, found = parse_cron(text, zone), []
    for _ in range(count):
        start = cron.next_after(start)
        found.append(start.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M%z"))
    return found


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("*/15 * * * *", datetime(2026, 5, 1, 10, 7), datetime(2026, 5, 1, 10, 15)),
        ("5/20 * * * *", datetime(2026, 5, 1, 10, 26), datetime(2026, 5, 1, 10, 45)),
        ("0 3 * * *", datetime(2026, 5, 1, 3, 0), datetime(2026, 5, 2, 3, 0)),
        ("0 9-17/4 * * mon-fri", datetime(2026, 5, 1, 18, 0), datetime(2026, 5, 4, 9, 0)),
        ("30 8 1,15 jan *", datetime(2026, 1, 2), datetime(2026, 1, 15, 8, 30)),
        ("0 0 29 2 *", datetime(2026, 1, 1), datetime(2028, 2, 29)),
        ("0 0 13 * fri", datetime(2026, 11, 1), datetime(2026, 11, 6)),  # the 13th, or a Friday
        ("0 0 * * 7", datetime(2026, 5, 1), datetime(2026, 5, 3)),  # 7 is Sunday, too
        ("0 0 L * *", datetime(2026, 2, 1), datetime(2026, 2, 28)),
        ("0 9 * * mon#2", datetime(2026, 5, 1), datetime(2026, 5, 11, 9)),
        ("@weekly", datetime(2026, 5, 1), datetime(2026, 5, 3)),
        ("@YEARLY", datetime(2026, 5, 1), datetime(2027, 1, 1)),
    ],
)
def test_the_next_slot_is_the_first_that_matches(text: str, start: datetime, expected: datetime) -> None:
    assert parse_cron(text).next_after(start.replace(tzinfo=UTC)) == expected.replace(tzinfo=UTC)


def test_slots_in_the_hour_that_does_not_exist_come_once_at_its_end() -> None:
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)
    expected = ["03-29 03:00+0200", "03-30 02:15+0200", "03-30 02:45+0200"]
    assert slots("15,45 2 * * *", "Europe/Berlin", start, 3) == expected


def test_a_slot_in_the_hour_that_comes_twice_happens_the_first_time() -> None:
    start = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert slots("30 2 * * *", "Europe/Berlin", start, 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]


def test_an_expression_for_every_hour_follows_real_time_through_both_nights() -> None:
    for day in (datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)):
        cron, at = parse_cron("30 * * * *", "Europe/Berlin"), day
        found = [at := cron.next_after(at) for _ in range(6)]
        assert found == [day + timedelta(minutes=30 + 60 * n) for n in range(6)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("* * * *", "4 fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day of month"),
        ("* * * foo *", "bad month"),
        ("* * * * 8", "bad day of week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day of month"),
        ("0 0 31 2 */2#1", "bad day of week"),
        ("9" * 5_000 + " * * * *", "5008 characters"),
        ("0 0 0 3 * * *", "7 fields"),
        ("0 0 3 * * *", "6 fields"),
    ],
)
def test_a_mistake_is_told_with_its_field(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_cron(text)


def test_an_unknown_time_zone_is_told() -> None:
    with pytest.raises(ConfigError, match="Europe/Berlyn"):
        parse_cron("@daily", "Europe/Berlyn")


MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
TEXTS = st.sampled_from(
    ["*/7 * * * *", "17 2 * * *", "0 0,2,3 * * *", "30 1-3 * * sun", "5 4 31 * *", "@hourly", "0 2 1 */3 mon"]
)


@given(text=TEXTS, at=MOMENTS)
def test_a_slot_is_later_is_whole_minutes_and_nothing_lies_between(text: str, at: datetime) -> None:
    cron = parse_cron(text, "Europe/Berlin")
    slot = cron.next_after(at)
    assert slot > at
    assert slot.second == slot.microsecond == 0
    middle = at + (slot - at) / 2
    assert cron.next_after(middle) == slot  # whoever asks in between gets the same slot
    assert cron.next_after(slot) > slot


@pytest.mark.parametrize("text", ["17 2 * * *", "15,45 1-3 * * *", "0 0,2,3 * * *", "30 0-23 * * *", "*/20 * * * *"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-11-01"])
def test_a_slot_is_later_at_every_moment_of_the_two_nights(text: str, day: str) -> None:
    zone = "America/New_York" if day == "2026-11-01" else "Europe/Berlin"
    cron, start = parse_cron(text, zone), datetime.fromisoformat(f"{day}T00:00Z") - timedelta(hours=3)
    moments = [start + timedelta(minutes=5 * n) for n in range(144)]
    slots = [cron.next_after(at) for at in moments]
    assert all(slot > at for at, slot in zip(moments, slots, strict=True))
    assert slots == sorted(slots)  # who asks later never gets an earlier slot
