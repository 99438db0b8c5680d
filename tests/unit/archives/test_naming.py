"""Names of archives: as documented, unique, and readable back."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, strategies as st

from wrasse.archives.naming import ArchiveName, domain_of, name_archive, parse_name
from wrasse.archives.rule import overlap
from wrasse.errors import UsageError
from wrasse.ports.streams import START, EntryId
from wrasse.ports.subjects import matches

TOKEN = st.text("ab%/-0_é", min_size=1, max_size=8) | st.sampled_from(["x-after-000000000000001-2", "%2F"])
SUBJECT = st.lists(TOKEN, min_size=1, max_size=4).map(".".join)
ID = st.builds(EntryId, st.integers(0, 2**45), st.integers(0, 2**63 - 1))
PATTERN = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(".".join) | st.sampled_from(
    [">", "a.>", "*.>", "a.*.>", "b.a.>"]
)


def test_a_key_looks_as_documented() -> None:
    name = name_archive("archive", "audit", "gbe.events.audit.change", EntryId(7, 8), EntryId(1_771_027_200_000, 9))
    assert str(name) == "archive/audit/2026/02/14/gbe.events.audit.change-after-000000000000007-8.jsonl.gz"


@given(SUBJECT, TOKEN, ID, st.dates(), st.sampled_from(["archive", "a/b-after-1"]))
def test_a_key_is_read_back_as_it_was_written(
    subject: str, domain: str, after: EntryId, day: date, prefix: str
) -> None:
    name = ArchiveName(prefix, domain, day, subject, after)
    assert parse_name(str(name), prefix) == name


def test_two_subjects_of_one_domain_have_different_archives_from_their_first_entry() -> None:
    names = [name_archive("archive", "audit", f"gbe.events.audit.{kind}", START, EntryId(5, 1)) for kind in "ab"]
    assert len({str(name) for name in names}) == 2


@pytest.mark.parametrize(
    ("subject", "domain"),
    [("gbe.events.audit.change", "audit"), ("gbe.tasks.email.queue", "tasks"), ("one", "one"), ("a.b", "b")],
)
def test_the_domain_is_the_third_token_of_events_and_else_the_second(subject: str, domain: str) -> None:
    assert domain_of(subject) == domain


@pytest.mark.parametrize("key", ["archive/x.jsonl.gz", "archive/a/2026/02/31/s-after-000000000000001-2.jsonl.gz", "x"])
def test_what_is_not_the_key_of_an_archive_is_passed_over(key: str) -> None:
    assert parse_name(key, "archive") is None


def test_a_key_that_no_store_could_keep_is_refused() -> None:
    with pytest.raises(UsageError, match="object key"):
        name_archive("p" * 900, "d" * 100, "s" * 255, START, EntryId(5, 1))


@given(PATTERN, PATTERN, st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join))
def test_patterns_that_match_one_subject_overlap(one: str, other: str, subject: str) -> None:
    if matches(one, subject) and matches(other, subject):
        assert overlap(one, other)


@pytest.mark.parametrize(("one", "other"), [("a.b", "a.c"), ("a.*", "a.*.b"), ("a.b", "b.>"), ("a", "a.>")])
def test_patterns_that_match_no_common_subject_do_not_overlap(one: str, other: str) -> None:
    assert not overlap(one, other)
