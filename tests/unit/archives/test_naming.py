"""Names of archives: as documented, unique, and readable back."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, strategies as st

from wrasse.archives.codec import Compression
from wrasse.archives.naming import ArchiveName, DayLayout, Form, check_name, day_of, domain_of, parse_name
from wrasse.archives.rule import overlap
from wrasse.errors import UsageError
from wrasse.ports.rules.subjects import matches
from wrasse.ports.streams import START, EntryId

TOKEN = st.text("ab%/-0_é", min_size=1, max_size=8) | st.sampled_from(["x-after-000000000000001-2", "%2F"])
SUBJECT = st.lists(TOKEN, min_size=1, max_size=4).map(".".join)
ID = st.builds(EntryId, st.integers(0, 2**45), st.integers(0, 2**63 - 1))
NAME = st.builds(
    ArchiveName,
    prefix=st.sampled_from(["archive", "a/b-after-1", "a/2026/01/02/x"]),
    domain=TOKEN,
    day=st.dates(),
    subject=SUBJECT,
    after=ID,
    epoch=st.integers(1, 20),
    form=st.builds(Form, st.sampled_from(DayLayout), st.sampled_from(Compression)),
)
PATTERN = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(".".join) | st.sampled_from(
    [">", "a.>", "*.>", "a.*.>", "b.a.>"]
)


def test_a_key_looks_as_documented() -> None:
    day = day_of(EntryId(1_771_027_200_000, 9))
    name = ArchiveName("archive", "audit", day, "gbe.events.audit.change", EntryId(7, 8))
    assert str(name) == "archive/audit/2026/02/14/gbe.events.audit.change-after-000000000000007-8.jsonl.gz"
    later = replace(name, epoch=2, form=Form(DayLayout.HIVE, Compression.ZSTD))
    assert str(later) == "archive/audit/dt=2026-02-14/gbe.events.audit.change-after-000000000000007-8-e2.jsonl.zst"


@given(NAME)
def test_a_key_is_read_back_as_it_was_written(name: ArchiveName) -> None:
    assert parse_name(str(name), name.prefix) == parse_name(str(name)) == name


def test_two_subjects_of_one_domain_have_different_archives_from_their_first_entry() -> None:
    names = [ArchiveName("archive", "audit", date(2026, 1, 1), f"gbe.events.audit.{kind}", START) for kind in "ab"]
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
        check_name(ArchiveName("p" * 900, "d" * 100, date(2026, 1, 1), "s" * 255, START))


@given(PATTERN, PATTERN, st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join))
def test_patterns_that_match_one_subject_overlap(one: str, other: str, subject: str) -> None:
    if matches(one, subject) and matches(other, subject):
        assert overlap(one, other)


@pytest.mark.parametrize(("one", "other"), [("a.b", "a.c"), ("a.*", "a.*.b"), ("a.b", "b.>"), ("a", "a.>")])
def test_patterns_that_match_no_common_subject_do_not_overlap(one: str, other: str) -> None:
    assert not overlap(one, other)
