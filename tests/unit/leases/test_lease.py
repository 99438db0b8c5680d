"""The one rule about expiry, and what a lease's record holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import StoreBroken
from wrasse.leases.lease import Lease, decode, encode, holder, next_token
from wrasse.ports.records import Record

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
SPANS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=1))


@given(MOMENTS, MOMENTS, SPANS)
def test_a_lease_is_held_until_its_moment_and_never_again(until: datetime, at: datetime, later: timedelta) -> None:
    lease = Lease("k", "me", 1, until, "v")
    assert (holder(lease, at) == "me") is (at < until)
    assert not (holder(lease, at) is None and holder(lease, at + later))


@given(MOMENTS, MOMENTS, SPANS)
def test_a_margin_only_makes_contenders_wait_longer(until: datetime, at: datetime, margin: timedelta) -> None:
    lease = Lease("k", "me", 1, until, "v")
    assert not (holder(lease, at) and holder(lease, at, margin) is None)


def test_a_released_lease_is_held_by_nobody() -> None:
    assert holder(Lease("k", "", 1, T0 + timedelta(days=1), "v"), T0) is None


@given(MOMENTS, st.integers(min_value=0, max_value=1 << 60))
def test_the_next_token_is_higher_than_the_last(at: datetime, token: int) -> None:
    assert next_token(Lease("k", "", token, at, "v"), at) == token + 1


def test_a_new_key_starts_at_the_stores_unix_milliseconds() -> None:
    assert next_token(None, T0 + timedelta(microseconds=1999)) == 1_767_225_600_001


@given(st.text(max_size=20), st.integers(min_value=0, max_value=1 << 60), MOMENTS, st.text(max_size=20))
def test_a_lease_reads_back_as_it_was_written(owner: str, token: int, until: datetime, grant: str) -> None:
    lease = Lease("k", owner, token, until, "v7")
    assert decode(Record("k", encode(lease, grant), "v7", None)) == (lease, grant)


@pytest.mark.parametrize("value", [b"", b"not ours", b"{}", b'{"owner":1,"token":"x"}'])
def test_a_record_somebody_else_wrote_is_an_error_with_a_way_out(value: bytes) -> None:
    with pytest.raises(StoreBroken, match="record of the lease 'k'"):
        decode(Record("k", value, "v", None))
