"""What the record of an engine's lease holds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import StoreBroken
from wrasse.leases.lease import BARE, KeyRecord, Lease, decode
from wrasse.ports.records import Record

MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
TOKENS = st.integers(min_value=0, max_value=1 << 60)


@given(st.text(min_size=1, max_size=20), TOKENS, MOMENTS, st.text(max_size=20))
def test_a_lease_reads_back_as_it_was_written(owner: str, token: int, until: datetime, id: str) -> None:
    record = KeyRecord(token, Lease(id, owner, token, until, ""), stored="v7")
    assert decode(Record("k", BARE.encode(record), "v7", None), BARE) == record


@given(TOKENS)
def test_a_released_lease_keeps_its_token_and_is_held_by_nobody(token: int) -> None:
    record = KeyRecord(token, stored="v7")
    assert decode(Record("k", BARE.encode(record), "v7", None), BARE) == record


@pytest.mark.parametrize("value", [b"", b"not ours", b"{}", b'{"owner":1,"token":"x"}'])
def test_a_record_somebody_else_wrote_is_an_error_with_a_way_out(value: bytes) -> None:
    with pytest.raises(StoreBroken, match="record of the key 'k'"):
        decode(Record("k", value, "v", None), BARE)
