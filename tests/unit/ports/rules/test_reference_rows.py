"""Times of references: what may mean another instant is refused; one that ends too early is an archive lost."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, strategies as some

from wrasse.ports.rules.reference_rows import reference_time

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECONDS = 1767323045


@pytest.mark.parametrize(
    "written",
    [SECONDS, float(SECONDS), Decimal(SECONDS), str(SECONDS), "1767323045.0", "2026-01-02T03:04:05Z",
     "2026-01-02 03:04:05", "2026-01-02T04:04:05+01:00", "20260102T030405", MOMENT, MOMENT.replace(tzinfo=None)],
)  # fmt: skip
def test_every_way_to_write_an_instant_is_that_instant(written: object) -> None:
    assert reference_time(written) == MOMENT


def test_a_day_is_its_midnight_in_utc() -> None:
    assert reference_time(date(2026, 2, 14)) == reference_time("2026-02-14") == datetime(2026, 2, 14, tzinfo=UTC)


@pytest.mark.parametrize("written", [20260214, 20260214.0, "20260214", Decimal(20260214), "202602", 202602])
def test_a_date_written_as_a_number_is_not_read_as_seconds(written: object) -> None:
    with pytest.raises(ValueError):
        reference_time(written)


@pytest.mark.parametrize("written", [0, "0", -1, False, True, "1970-01-01", date(1, 1, 1), datetime(1970, 1, 1)])
def test_what_stands_for_no_time_does_not_end_a_reference_long_ago(written: object) -> None:
    with pytest.raises(ValueError):
        reference_time(written)


@pytest.mark.parametrize("written", ["soon", "", SECONDS * 1000, f"{SECONDS}000", float("nan"), float("inf"), b"1", []])
def test_what_is_no_time_is_refused(written: object) -> None:
    with pytest.raises(ValueError):
        reference_time(written)


@given(some.datetimes(datetime(1980, 1, 1), datetime(4000, 1, 1), timezones=some.just(UTC)))
def test_seconds_and_iso_agree(instant: datetime) -> None:
    whole = instant.replace(microsecond=0)
    assert reference_time(int(whole.timestamp())) == reference_time(whole.isoformat()) == whole
