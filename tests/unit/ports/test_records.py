"""Names of records: no two keys share one, a prefix of a key is a prefix of its name, and nothing hides in a path."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import TooLarge, UsageError
from wrasse.ports.records import KEY_BYTES_MAX, VALUE_BYTES_MAX, Collection, check_record, key_of, stored_name

keys = st.text(alphabet=st.sampled_from("ab/%2F5é"), max_size=12)


@given(keys)
def test_a_key_comes_back_from_its_name(key: str) -> None:
    assert key_of(stored_name(key)) == key


@given(keys, keys)
def test_two_keys_never_share_a_name(one: str, other: str) -> None:
    assert (stored_name(one) == stored_name(other)) is (one == other)


@given(keys, keys)
def test_the_name_of_a_prefix_is_a_prefix_of_the_name(prefix: str, rest: str) -> None:
    assert stored_name(prefix + rest).startswith(stored_name(prefix))


@given(keys, keys)
def test_only_the_name_of_a_prefix_is_a_prefix_of_the_name(prefix: str, key: str) -> None:
    assert stored_name(key).startswith(stored_name(prefix)) is key.startswith(prefix)


@given(keys)
def test_a_name_has_no_slash(key: str) -> None:
    assert "/" not in stored_name(key)


@pytest.mark.parametrize("key", ["a", "é" * (KEY_BYTES_MAX // 2), "x" * KEY_BYTES_MAX])
def test_a_key_may_have_up_to_the_limit_of_bytes(key: str) -> None:
    assert check_record(key, bytes(VALUE_BYTES_MAX)) is None


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="half a character"):
        check_record("a\ud800", b"")


@pytest.mark.parametrize("key", ["", "x" * (KEY_BYTES_MAX + 1), "é" * (KEY_BYTES_MAX // 2 + 1)])
def test_a_key_outside_the_limit_is_refused_with_the_limit(key: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_record(key, b"")
    assert str(KEY_BYTES_MAX) in refusal.value.do


def test_a_value_beyond_the_limit_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLarge) as refusal:
        check_record("a", bytes(VALUE_BYTES_MAX + 1))
    assert str(VALUE_BYTES_MAX) in refusal.value.do


def test_a_collection_of_our_own_keeps_data_index_and_buckets_apart() -> None:
    collection = Collection.named("things")
    places = {collection.data, collection.index, collection.buckets}
    assert (len(places), all(place.startswith("things/") for place in places)) == (3, True)
