"""Names of namespaces, keys and state objects, and ids of leases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.clock import ManualClock
from wrasse.leases.names import (
    KEY_CHARS_MAX,
    NAMESPACE_CHARS_MAX,
    BadName,
    Xids,
    checked_key,
    checked_namespace,
    is_xid,
    state_folder,
    state_name,
    token_of,
)

LETTERS = "abcxyz0189._-"
SEGMENTS = st.text(LETTERS, min_size=1, max_size=10).filter(lambda text: not text.startswith("."))
KEYS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)


@given(KEYS)
def test_a_good_key_is_kept_as_it_is_and_stays_good(key: str) -> None:
    assert (checked_key(key), checked_key("/" + key), checked_key(key.upper())) == (key, key, key)


@given(KEYS)
def test_a_key_may_begin_with_its_namespace(key: str) -> None:
    assert checked_key(f"ns/{key}", "ns") == key


@given(st.text(max_size=20))
def test_what_is_no_key_is_refused_and_the_rest_has_no_hidden_meaning(text: str) -> None:
    try:
        key = checked_key(text)
    except BadName:
        return
    segments = key.split("/")
    assert (
        all(segments),
        any(each.startswith(".") for each in segments),
        set(key) <= set("/._-") | set("abcdefghijklmnopqrstuvwxyz0123456789"),
    ) == (True, False, True)


@pytest.mark.parametrize(
    "key", ["", "/", "a//b", "a/", "//a", "a b", "ä", "a\n", "a\\b", "%2F", "x" * (KEY_CHARS_MAX + 1)]
)
def test_a_key_with_something_odd_is_refused(key: str) -> None:
    with pytest.raises(BadName):
        checked_key(key)


@pytest.mark.parametrize(
    ("text", "name"), [("", "default"), ("  ", "default"), (" Shop ", "shop"), ("a.b_c-1", "a.b_c-1")]
)
def test_a_namespace_is_trimmed_and_in_lower_case(text: str, name: str) -> None:
    assert checked_namespace(text) == name


@pytest.mark.parametrize("text", [".wrasse", "..", "a/b", "ü", "x" * (NAMESPACE_CHARS_MAX + 1)])
def test_a_reserved_or_odd_namespace_is_refused(text: str) -> None:
    with pytest.raises(BadName):
        checked_namespace(text)


@given(KEYS, KEYS, st.integers(0, 10**18), st.text("0123456789abcdef", min_size=16, max_size=16))
def test_no_state_object_of_one_key_is_among_those_of_another(one: str, two: str, token: int, id: str) -> None:
    name = state_name("ns", one, token, id)
    assert (name.startswith(state_folder("ns", two)), token_of(name)) == (one == two, token)


@given(KEYS, st.integers(0, 10**18), st.integers(0, 10**18))
def test_state_objects_are_listed_oldest_token_first(key: str, one: int, two: int) -> None:
    assert (state_name("ns", key, one, "f") < state_name("ns", key, two, "0")) == (one < two)


@pytest.mark.parametrize("name", ["", "a/b", "ns/state/k/.v/12-a", "ns/state/k/.v/0000000000000000000x-a", "ns/meta/k"])
def test_the_name_of_something_else_has_no_token(name: str) -> None:
    assert token_of(name) is None


# Ids


@given(st.integers(0, 2**32 - 1))
def test_an_id_has_the_form_that_clients_expect_and_sorts_by_time(seconds: int) -> None:
    clock = ManualClock()
    clock.advance(timedelta(seconds=seconds % 10**8))
    ids = Xids(clock)
    first = ids.new()
    clock.advance(timedelta(seconds=1))
    second = ids.new()
    assert (is_xid(first), is_xid(second), len(first), first < second) == (True, True, 20, True)


def test_no_two_ids_are_the_same_in_one_process_or_in_two() -> None:
    clock = ManualClock()
    one, two = Xids(clock), Xids(clock)
    made = [xids.new() for _ in range(2_000) for xids in (one, two)]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("text", ["", "a" * 19, "a" * 20, "w" + "0" * 19, "A" + "0" * 19, "0" * 21, "0" * 19 + "\n"])
def test_what_is_no_id_is_told(text: str) -> None:
    assert not is_xid(text)


def test_an_id_does_not_tell_the_next_one() -> None:
    for make in (Xids(ManualClock()).new, Xids(ManualClock()).marked):
        chances = {make()[7:11] for _ in range(100)}  # twenty bits of those between the time and the count
        assert len(chances) > 90
