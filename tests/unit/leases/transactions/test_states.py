"""The states of a transaction: decided once, enlisted only before, and lasting as long as any of its leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.clock import EPOCH, ManualClock
from wrasse.errors import StoreBroken
from wrasse.leases.lease import KeyRecord, Lease
from wrasse.leases.names import Xids, is_marked, is_xid
from wrasse.leases.transactions.states import (
    Decided,
    Decision,
    Participant,
    Transaction,
    begun,
    decided,
    decode_decision,
    decode_transaction,
    encode,
    enlisted,
    enlisted_lease,
    lasts_until,
)
from wrasse.ports.records import Record

ID = "d5arif5qkajneqfrmsb0"
INSTANTS = st.integers(0, 10**9).map(lambda seconds: EPOCH + timedelta(seconds=seconds))
WHO = st.builds(Participant, st.sampled_from(("default", "shop")), st.sampled_from("abcd"), st.integers(0, 3))
SOME = st.lists(WHO, max_size=5)
ENDS = st.sampled_from((Decision.COMMIT, Decision.ROLLBACK))
STEPS = st.lists(st.one_of(st.tuples(st.just("enlist"), SOME, INSTANTS), st.tuples(ENDS, SOME, INSTANTS)), max_size=8)


def told(record: object) -> Record:
    return Record(ID, encode(record), "v1", None)  # type: ignore[arg-type]


@given(SOME, INSTANTS, STEPS)
def test_the_first_decision_stays_and_counts_for_every_key_that_was_enlisted_before(
    first: Sequence[Participant], at: datetime, steps: list[tuple[str, list[Participant], datetime]]
) -> None:
    transaction, ended = begun(ID, Decision.PENDING, first, at, at), None
    keys = {(each.namespace, each.key) for each in first}
    for what, who, when in steps:
        before = transaction
        if what == "enlist":
            if not transaction.decided:
                transaction = enlisted(transaction, who, when, when) or transaction
                keys |= {(each.namespace, each.key) for each in who}
                assert transaction.until >= before.until
        else:
            after = decided(transaction, Decision(what), who, when)
            assert (after is None) == before.decided
            if after is not None:
                transaction, ended = after, Decision(what)
                keys |= {(each.namespace, each.key) for each in who}
        assert transaction.state is (ended or Decision.PENDING)
        assert {(each.namespace, each.key) for each in transaction.participants} == keys


@given(SOME, SOME, INSTANTS)
def test_a_key_takes_part_once_and_a_known_token_is_never_forgotten(
    first: Sequence[Participant], more: Sequence[Participant], at: datetime
) -> None:
    transaction = begun(ID, Decision.PENDING, first, at, at)
    after = enlisted(transaction, more, at, at) or transaction
    names = [(each.namespace, each.key) for each in after.participants]
    known = {(each.namespace, each.key) for each in (*transaction.participants, *more) if each.token}
    with_token = {(each.namespace, each.key) for each in after.participants if each.token}
    assert (names == sorted(set(names)), with_token) == (True, known)


@given(SOME, INSTANTS)
def test_enlisting_again_changes_nothing(first: Sequence[Participant], at: datetime) -> None:
    transaction = begun(ID, Decision.PENDING, first, at, at)
    assert enlisted(transaction, transaction.participants, at, at) is None


@given(st.lists(st.one_of(st.none(), INSTANTS), max_size=5), INSTANTS)
def test_a_transaction_lasts_as_long_as_the_last_of_its_leases(ends: list[datetime | None], until: datetime) -> None:
    transaction = Transaction(ID, Decision.PENDING, (), until)
    leases = [None if end is None else Lease("l", "me", 1, end, ID, True) for end in ends]
    living = [end for end in ends if end is not None]
    assert lasts_until(transaction, leases) == (max(living) if living else until)


@pytest.mark.parametrize(
    ("transaction", "token", "part"), [(ID, 7, True), (ID, 0, True), (ID, 6, False), ("0" * 20, 7, False)]
)
def test_a_key_takes_part_only_under_the_lease_that_enlisted_it(transaction: str, token: int, part: bool) -> None:
    meta = KeyRecord(7, Lease("l", "me", 7, EPOCH, ID, True))
    assert (enlisted_lease(meta, transaction, token) is not None, enlisted_lease(None, ID, 0)) == (part, None)


@given(SOME, INSTANTS, ENDS, st.booleans())
def test_records_say_what_was_written_into_them(
    who: Sequence[Participant], at: datetime, state: Decision, confirmed: bool
) -> None:
    transaction = Transaction(ID, state, tuple(who), at, confirmed, at, at)
    over = Decided(ID, state, at)
    assert (decode_transaction(told(transaction)).transaction, decode_decision(told(over))) == (transaction, over)


@pytest.mark.parametrize("value", [b"{}", b"no", b'{"id":"x","state":"maybe"}'])
def test_a_foreign_record_is_named_as_such(value: bytes) -> None:
    record = Record(ID, value, "v1", None)
    with pytest.raises(StoreBroken):
        decode_transaction(record)
    with pytest.raises(StoreBroken):
        decode_decision(record)


def test_an_id_that_a_server_made_up_is_known_again_and_no_other_is() -> None:
    xids = Xids(ManualClock())
    made = [xids.marked() for _ in range(100)]
    assert (all(map(is_marked, made)), all(map(is_xid, made)), len(set(made))) == (True, True, 100)
    assert not any(is_marked(xids.unmarked()) for _ in range(1_000))
    assert [is_marked(text) for text in ("", "0" * 20, "nope")] == [False, False, False]
