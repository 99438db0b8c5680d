"""The record of a key: kept byte for byte; its memory of what was thrown away never forgets on the wrong side."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace

from unit.leases.key_records import MOMENTS, START, metas
from wrasse.errors import StoreBroken
from wrasse.leases.lease import (
    DROPPED_MAX,
    KEYS,
    Attachment,
    KeyRecord,
    Lease,
    Staged,
    StateObject,
    cleared,
    committed,
    decode,
    first_token,
    released,
)
from wrasse.ports.records import VALUE_BYTES_MAX, Record

STATE = StateObject("n" * 200, "v" * 64, "e" * 32, 1 << 40)
RECORDED = Path(__file__).parent / "key_records.json"

# What is recorded there, every field of it.
_AT = datetime(2026, 11, 16, 21, 0, 0, 123_456, tzinfo=UTC)
_OLD = StateObject("default/state/a/.v/01794000000000000000-0a", "18f.2a", "0a1b2c3d4e5f6071", 32)
_NEW = StateObject("default/state/a/.v/01794000000000000001-0b", "190.2b", "1a1b2c3d4e5f6071", 7)
_NOTES = Attachment("019a", "notes.txt", _NEW, "ab" * 32, "text/plain", _AT, _AT + timedelta(seconds=1))
_LEASE, _GROUP = "d4cvp1s0u0g1q2r3s4t0", "d4cvp1s0u0g1q2r3s4u0"
FIRST = KeyRecord(
    token=1_794_862_800_124,
    lease=Lease(_LEASE, "me", 1_794_862_800_124, _AT + timedelta(seconds=30), _GROUP, True),
    version=3,
    state=_OLD,
    staged=Staged(_GROUP, 4, _NEW, False, True, (_NOTES,)),
    hidden=True,
    updated_at=_AT,
    recheck_at=_AT + timedelta(hours=1),
    dropped=(1_794_862_800_120,),
    forgotten=1_794_862_800_100,
    attachments=(_NOTES,),
    leaving=(_OLD,),
)


@given(metas())
def test_a_record_comes_back_as_it_was(meta: KeyRecord) -> None:
    assert decode(Record("k", KEYS.encode(meta), "7", None)) == replace(meta, stored="7")


def test_a_record_of_the_first_release_is_read_and_written_byte_for_byte() -> None:
    recorded = RECORDED.read_bytes().strip()
    kept = decode(Record("a", recorded, "7", None))
    assert (kept, KEYS.encode(kept)) == (replace(FIRST, stored="7"), recorded)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"token":"x"}', b"\xff", b'{"token":1,"grant":{"id":"a"}}'])
def test_a_record_that_is_not_ours_is_told(value: bytes) -> None:
    with pytest.raises(StoreBroken, match="not one that wrasse wrote"):
        decode(Record("k", value, "1", None))


def test_a_record_stays_small() -> None:
    grant = Lease("i" * 20, "o" * 1_000, 1 << 60, START, "t" * 20)
    dropped = tuple(range(DROPPED_MAX))
    meta = KeyRecord(1 << 60, grant, 9, STATE, Staged("t" * 20, 10, STATE), True, START, START, dropped, 9)
    assert len(KEYS.encode(meta)) < VALUE_BYTES_MAX / 100


@given(st.integers(0, 10**10), st.integers(1, 10**6))
def test_a_key_that_comes_back_after_an_hour_starts_above_every_token_it_can_have_had(born: int, grants: int) -> None:
    began = START + timedelta(milliseconds=born)
    last = first_token(began) + grants  # one acquire a millisecond at most, and retention waits until that has passed
    deleted_at = began + timedelta(milliseconds=grants) + timedelta(hours=1, milliseconds=1)
    assert first_token(deleted_at) > last


@given(metas(), st.lists(st.booleans(), max_size=12), MOMENTS)
def test_a_lease_that_lost_what_it_staged_is_never_taken_for_one_that_did_not(
    meta: KeyRecord, stages: list[bool], at: datetime
) -> None:
    lost, token = [], max(meta.token, meta.forgotten)
    for staging in stages:
        token += 1
        staged = Staged("t", meta.version + 1, None) if staging else None
        grant = Lease("i", "o", token, at, "t")
        meta = cleared(replace(meta, token=token, lease=grant, staged=staged), at, None)
        lost += [token] * staging
    assert (all(meta.has_dropped(each) for each in lost), len(meta.dropped) <= DROPPED_MAX) == (True, True)


@given(metas(held=True), MOMENTS)
def test_the_lease_that_just_committed_is_not_taken_for_one_that_lost(meta: KeyRecord, at: datetime) -> None:
    assert meta.lease is not None
    assume(not meta.has_dropped(meta.lease.token))
    assert not committed(meta, at).has_dropped(meta.lease.token)


@given(metas(), MOMENTS)
def test_a_key_given_back_has_no_holder_and_nothing_staged(meta: KeyRecord, at: datetime) -> None:
    after = released(meta, at)
    assert (after.lease, after.staged, after.version, after.state) == (None, None, meta.version, meta.state)


@given(metas())
def test_a_record_names_what_counts_and_what_would(meta: KeyRecord) -> None:
    states = [meta.state, None if meta.staged is None else meta.staged.state]
    named = {state.name for state in states if state is not None}
    assert {name for name in ("s1", "s2", "s3") if meta.names(name)} == named
