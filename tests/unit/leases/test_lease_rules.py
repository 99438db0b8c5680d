"""What may be done with a key, for any record, any moment and any terms."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import assume, given, strategies as st
from msgspec import structs

from unit.leases.key_records import ASKED, HELD, MOMENTS, SPANS, STATES, TERMS, metas
from wrasse.leases import lease as rules
from wrasse.leases.lease import (
    AcquireRequest,
    Busy,
    KeyRecord,
    KeyRefused,
    Lease,
    Refusal,
    StateObject,
    Terms,
    committed,
    first_token,
    presented_lease,
)

MARGIN = Terms(margin=timedelta(seconds=1), delay=timedelta(seconds=15))


def held_by(meta: KeyRecord) -> Lease:
    assert meta.lease is not None
    return presented_lease("default", "k", meta.lease.id, meta.lease.token, meta.lease.transaction)


def refusal(meta: KeyRecord | None, held: Lease, at: datetime, terms: Terms) -> Refusal | None:
    try:
        rules.check_holder(meta, held, at, terms)
    except KeyRefused as refused:
        return refused.code
    return None


def expected(meta: KeyRecord, version: int | None, etag: str | None) -> Refusal | None:
    try:
        rules.check_expected(meta, version, etag)
    except KeyRefused as refused:
        return refused.code
    return None


# Acquire


@given(metas(held=True), ASKED, MOMENTS, TERMS)
def test_a_key_is_granted_only_after_its_lease_is_over_for_all_clocks(
    meta: KeyRecord, asked: AcquireRequest, at: datetime, terms: Terms
) -> None:
    assert meta.lease is not None
    closed_until = meta.lease.expires_at + terms.margin + terms.delay
    verdict = rules.acquire(meta, asked, at, terms)
    assert verdict == Busy(closed_until) if at < closed_until else isinstance(verdict, KeyRecord)


@given(metas(), ASKED, MOMENTS, TERMS)
def test_every_grant_has_a_higher_token_than_any_before(
    meta: KeyRecord, asked: AcquireRequest, at: datetime, terms: Terms
) -> None:
    verdict = rules.acquire(meta, asked, at, terms)
    assume(isinstance(verdict, KeyRecord))
    assert isinstance(verdict, KeyRecord)
    assert verdict.token == verdict.granted.token == meta.token + 1


@given(metas(), ASKED, MOMENTS, TERMS)
def test_an_acquire_leaves_what_is_committed_alone(
    meta: KeyRecord, asked: AcquireRequest, at: datetime, terms: Terms
) -> None:
    verdict = rules.acquire(meta, asked, at, terms)
    assume(isinstance(verdict, KeyRecord))
    assert isinstance(verdict, KeyRecord)
    after = verdict
    assert (after.version, after.state, after.hidden) == (meta.version, meta.state, meta.hidden)


@given(metas(staging=True), ASKED, SPANS, TERMS)
def test_what_a_lease_that_ended_had_staged_is_gone_and_remembered_as_such(
    meta: KeyRecord, asked: AcquireRequest, later: timedelta, terms: Terms
) -> None:
    assert meta.lease is not None
    at = meta.lease.expires_at + terms.margin + terms.delay + later
    verdict = rules.acquire(meta, asked, at, terms)
    assert isinstance(verdict, KeyRecord)
    after, due = verdict, at + rules.RECHECK_AFTER
    assert (after.staged, after.has_dropped(meta.lease.token), after.recheck_at) == (None, True, due)


@given(metas(held=True), ASKED, SPANS, TERMS)
def test_asking_again_gives_the_same_lease_while_it_lasts(
    meta: KeyRecord, asked: AcquireRequest, left: timedelta, terms: Terms
) -> None:
    assert meta.lease is not None
    at = meta.lease.expires_at - left - timedelta(milliseconds=1)
    assert rules.acquire(meta, replace(asked, id=meta.lease.id), at, terms) is meta


@given(ASKED, MOMENTS, TERMS)
def test_the_first_token_of_a_key_is_the_time(asked: AcquireRequest, at: datetime, terms: Terms) -> None:
    verdict = rules.acquire(None, asked, at, terms)
    assert isinstance(verdict, KeyRecord)
    assert (verdict.token, verdict.stored, verdict.version) == (first_token(at), "", 0)


@given(metas(), ASKED, MOMENTS, TERMS)
def test_who_wants_a_new_key_is_refused_an_old_one(
    meta: KeyRecord, asked: AcquireRequest, at: datetime, terms: Terms
) -> None:
    with pytest.raises(KeyRefused) as refused:
        rules.acquire(meta, replace(asked, if_not_exists=True), at, terms)
    assert refused.value.code is Refusal.ALREADY_EXISTS


@given(metas(), ASKED, MOMENTS, SPANS, TERMS)
def test_once_a_key_is_free_it_stays_free_until_it_is_acquired(
    meta: KeyRecord, asked: AcquireRequest, at: datetime, later: timedelta, terms: Terms
) -> None:
    assume(isinstance(rules.acquire(meta, asked, at, terms), KeyRecord))
    assert isinstance(rules.acquire(meta, asked, at + later, terms), KeyRecord)


# Who holds it


@given(metas(held=True), MOMENTS, TERMS)
def test_a_holder_and_a_contender_never_both_have_the_key(meta: KeyRecord, at: datetime, terms: Terms) -> None:
    assert meta.lease is not None
    holds = refusal(meta, held_by(meta), at, terms) is None
    assert not (holds and rules.over(meta.lease, at, terms))


@given(metas(held=True), MOMENTS)
def test_a_holder_stops_before_the_end_and_a_contender_starts_after_it_by_the_margin(
    meta: KeyRecord, at: datetime
) -> None:
    assert meta.lease is not None
    until = meta.lease.expires_at
    holds = refusal(meta, held_by(meta), at, MARGIN) is None
    assert (holds, rules.over(meta.lease, at, MARGIN)) == (
        at < until - MARGIN.margin,
        at >= until + MARGIN.margin + MARGIN.delay,
    )


@given(st.none() | metas(), HELD, MOMENTS, TERMS)
def test_reasons_come_in_the_order_that_clients_know(
    meta: KeyRecord | None, held: Lease, at: datetime, terms: Terms
) -> None:
    grant = None if meta is None else meta.lease
    if grant is None or grant.id != held.id:
        wanted: Refusal | None = Refusal.LEASE_REQUIRED
    elif at >= grant.expires_at - terms.margin:
        wanted = Refusal.LEASE_EXPIRED
    elif grant.token != held.token:
        wanted = Refusal.FENCING_MISMATCH
    elif not held.transaction:
        wanted = Refusal.MISSING_TRANSACTION
    else:
        wanted = None if grant.transaction == held.transaction else Refusal.TRANSACTION_MISMATCH
    assert refusal(meta, held, at, terms) is wanted


# Staging


@given(metas(held=True), STATES, STATES, MOMENTS)
def test_all_updates_of_one_lease_make_one_version(
    meta: KeyRecord, one: StateObject, two: StateObject, at: datetime
) -> None:
    assume(meta.lease is not None and meta.staged is None)
    after = rules.staged_update(rules.staged_update(meta, one, at), two, at)
    done = committed(after, at)
    assert (done.version, done.state, done.lease, done.staged) == (meta.version + 1, two, None, None)


@given(metas(held=True), STATES, MOMENTS)
def test_nothing_staged_shows_before_the_commit(meta: KeyRecord, state: StateObject, at: datetime) -> None:
    staged = rules.staged_update(meta, state, at)
    assert (staged.version, staged.state, staged.hidden) == (meta.version, meta.state, meta.hidden)


@given(metas(held=True), MOMENTS)
def test_there_is_nothing_to_remove_twice(meta: KeyRecord, at: datetime) -> None:
    removed = rules.staged_removal(meta, at)
    if removed is None:
        there = meta.state if meta.staged is None or meta.staged.same else meta.staged.state
        assert there is None
        return
    assert (rules.staged_removal(removed, at), committed(removed, at).state) == (None, None)


@given(metas(held=True), st.booleans(), MOMENTS)
def test_an_attribute_changes_neither_state_nor_what_is_staged_of_it(
    meta: KeyRecord, hidden: bool, at: datetime
) -> None:
    plain, with_it = committed(meta, at), committed(rules.staged_hidden(meta, hidden, at), at)
    assert (with_it.state, with_it.hidden) == (plain.state, hidden)


@given(metas(), MOMENTS)
def test_versions_only_grow(meta: KeyRecord, at: datetime) -> None:
    done = committed(meta, at)
    assert done.version > meta.version if meta.staged is not None else done.version == meta.version


# Conditions


@given(metas(), st.integers(0, 15))
def test_a_change_goes_through_only_over_the_version_that_its_caller_saw(meta: KeyRecord, version: int) -> None:
    seen = meta.version if meta.staged is None else meta.staged.version
    assert expected(meta, version, None) is (None if version == seen else Refusal.VERSION_CONFLICT)


@given(metas(), st.sampled_from(["e1", '"e1"', "e2", ""]))
def test_an_etag_is_compared_without_its_quotes_with_what_a_holder_would_read(meta: KeyRecord, etag: str) -> None:
    staged = meta.staged
    state = meta.state if staged is None or staged.same else staged.state
    seen = "" if state is None else state.etag
    assert expected(meta, None, etag) is (None if etag.strip('"') == seen else Refusal.ETAG_MISMATCH)


@given(metas(held=True), SPANS, MOMENTS)
def test_a_renewal_changes_the_end_and_nothing_else(meta: KeyRecord, ttl: timedelta, at: datetime) -> None:
    after = rules.renewed(meta, ttl, at)
    assert after.lease is not None
    assert meta.lease is not None
    assert after == structs.replace(meta, lease=structs.replace(meta.lease, expires_at=at + ttl), updated_at=at)
