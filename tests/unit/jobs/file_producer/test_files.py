"""Which files become jobs, how urgent each is, and that its job is the same whenever it is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from wrasse.jobs.file_producer.files import FileRules, FoundFile

DEFAULTS = FileRules.of(("**/*",), ("**/*.tmp", "**/.DS_Store"), (".pdf", "DOCX"))
QUEUES = {"high": "h", "low": "l"}
FILES = st.builds(FoundFile, st.text(min_size=1), st.integers(0, 2**60), st.integers(0, 2**60))


@pytest.mark.parametrize(("path", "taken"), [("a", True), ("a/b.txt", True), ("a/b.tmp", False), (".DS_Store", False)])
def test_a_file_is_taken_that_is_included_and_not_excluded(path: str, taken: bool) -> None:
    assert DEFAULTS.includes(path) is taken


def test_without_an_include_pattern_every_file_is_taken() -> None:
    assert FileRules.of((), (), ()).includes("a/b/c")


@pytest.mark.parametrize(
    ("path", "priority"),
    [("/x/a.pdf", "high"), ("/x/a.PdF", "high"), ("/x/a.docx", "high"), ("/x/a.txt", "low"), ("/x/pdf", "low")],
)
def test_urgent_extensions_are_known_in_any_case(path: str, priority: str) -> None:
    assert DEFAULTS.priority(path, "low", QUEUES) == priority


def test_a_priority_without_a_queue_falls_to_the_default() -> None:
    assert DEFAULTS.priority("/x/a.pdf", "slow", {"slow": "s"}) == "slow"


@given(FILES)
def test_the_same_file_is_the_same_job(file: FoundFile) -> None:
    assert replace(file).job_id == file.job_id


@given(FILES, FILES)
def test_another_file_or_another_content_is_another_job(one: FoundFile, other: FoundFile) -> None:
    assert (one.job_id == other.job_id) == (one == other)


def test_a_job_carries_path_and_size_of_its_file() -> None:
    assert FoundFile("/x/a", 7, 1).payload == b'{"filepath":"/x/a","filesize":7}'
