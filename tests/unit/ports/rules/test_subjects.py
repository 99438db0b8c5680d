"""Names of streams, and patterns that match them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import UsageError
from wrasse.ports.rules.subjects import (
    check_pattern,
    check_subject,
    fixed_part,
    is_wild,
    matches,
    redis_key,
    subject_of,
)
from wrasse.streams.delivery import dead_letter_subject, domain, is_dead_letter_subject

tokens = st.text(st.sampled_from("abz09-_é"), min_size=1, max_size=4)
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.tuples(st.lists(tokens | st.just("*"), min_size=0, max_size=4), st.booleans()).map(
    lambda p: ".".join([*p[0], *([">"] if p[1] or not p[0] else [])])
)


def by_regex(pattern: str, subject: str) -> bool:
    """Another way to say what a pattern means."""
    parts = [r"[^.]+" if token == "*" else r".+" if token == ">" else re.escape(token) for token in pattern.split(".")]
    return re.fullmatch(r"\.".join(parts), subject) is not None


@given(patterns, subjects)
def test_a_pattern_matches_as_its_tokens_say(pattern: str, subject: str) -> None:
    check_pattern(pattern)
    assert matches(pattern, subject) is by_regex(pattern, subject)


@given(subjects)
def test_a_subject_is_a_pattern_that_matches_itself_alone(subject: str) -> None:
    check_subject(subject)
    check_pattern(subject)
    assert matches(subject, subject)
    assert not is_wild(subject)
    assert not matches(subject, f"{subject}.x")


@given(patterns, subjects)
def test_all_that_matches_begins_with_the_fixed_part(pattern: str, subject: str) -> None:
    assert subject.startswith(fixed_part(pattern)) or not matches(pattern, subject)


@given(subjects)
def test_a_subject_comes_back_from_its_key_in_redis(subject: str) -> None:
    assert subject_of(redis_key(subject)) == subject
    assert "." not in redis_key(subject)


BAD = ("", ".", "a.", ".a", "a..b", "a:b", "a*", "*", ">", "a.>", "a b", "a\tb", "a\n", "\0", "\ud800", "x" * 256)


@pytest.mark.parametrize("subject", BAD)
def test_what_is_no_subject_is_refused_with_what_to_do(subject: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_subject(subject)
    assert refused.value.do


def test_a_subject_may_have_exactly_as_many_bytes_as_the_limit() -> None:
    check_subject("x" * 255)
    check_subject("é" * 127)
    with pytest.raises(UsageError, match="256 bytes"):
        check_subject("é" * 128)


@pytest.mark.parametrize("pattern", ["a>", "a.>.b", ">.a", "a*", "*a", "a.b*", "", "a..>", "a:*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("gbe.tasks.email.queue", "gbe._deadletter.tasks"),
        ("gbe.events.audit.change", "gbe._deadletter.events"),
        ("orders.paid", "gbe._deadletter.paid"),
        ("orders", "gbe._deadletter.orders"),
    ],
)
def test_dead_letters_go_to_the_stream_of_their_domain(subject: str, wanted: str) -> None:
    assert dead_letter_subject(subject) == wanted
    assert is_dead_letter_subject(wanted)
    assert not is_dead_letter_subject(subject)


def test_the_root_of_dead_letters_is_a_setting() -> None:
    assert dead_letter_subject("shop.orders.paid", "shop") == "shop._deadletter.orders"
    assert is_dead_letter_subject("shop._deadletter.orders", "shop")
    assert not is_dead_letter_subject("gbe._deadletter.orders", "shop")


@given(subjects)
def test_the_domain_is_a_token_of_the_subject(subject: str) -> None:
    assert domain(subject) in subject.split(".")
