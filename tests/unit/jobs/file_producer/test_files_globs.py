"""Patterns of paths mean what shells and the origin's library mean by them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import ConfigError
from wrasse.jobs.file_producer.files import parse_globs


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**/*", "a", True),
        ("**/*", "a/b/c", True),
        ("**", "a/b", True),
        ("**/*.tmp", "x.tmp", True),
        ("**/*.tmp", "a/b/x.tmp", True),
        ("*.tmp", "a/x.tmp", False),
        ("a/**", "a/b/c", True),
        ("a/**", "ab", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/xb", False),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
        ("**/**/x", "x", True),
        ("{a,b}/*.[ch]", "b/x.h", True),
        ("{a,b}/*.[ch]", "c/x.h", False),
        ("{a,{b,c}d}", "cd", True),
        ("{x,}a", "a", True),
        ("{a/b,c}/d", "a/b/d", True),
        ("[!a]x", "bx", True),
        ("[^a]x", "ax", False),
        ("[!a]x", "/x", False),
        ("[a-c]", "b", True),
        (r"[a\-c]", "b", False),
        (r"[a\-c]", "-", True),
        ("[{]", "{", True),
        (r"\*x", "*x", True),
        (r"\*x", "ax", False),
        ("x?", "xy", True),
        ("x?", "x/", False),
        ("**/.DS_Store", ".DS_Store", True),
        ("*", ".hidden", True),
        ("*", "a\nb", True),
        ("a+b", "a+b", True),
        ("A", "a", False),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, path: str, matches: bool) -> None:
    assert parse_globs([pattern]).match(path) is matches


@pytest.mark.parametrize("pattern", ["[a", "{a", "a}", "a\\", "[]", "[z-a]", "", "[!]", "[a\\", "{{a,b}"])
def test_a_bad_pattern_is_an_error_that_names_it(pattern: str) -> None:
    with pytest.raises(ConfigError, match="no pattern of paths") as raised:
        parse_globs(["*", pattern])
    assert repr(pattern) in raised.value.message


def test_alternatives_are_bounded() -> None:
    with pytest.raises(ConfigError, match="alternatives"):
        parse_globs(["{a,b}" * 20])


def test_no_pattern_matches_nothing() -> None:
    assert not parse_globs([]).match("a")


@pytest.mark.parametrize(
    ("pattern", "directory", "covered"),
    [("a/**", "a", True), ("**/x/**", "a/x", True), ("**/x/**", "a/y", False), ("**", "a", True), ("a/*", "a", False)],
)
def test_a_tree_is_known_to_match_as_a_whole(pattern: str, directory: str, covered: bool) -> None:
    assert parse_globs([pattern]).covers(directory) is covered


PATTERNS = st.text("ab/*?[]{},!-\\.", max_size=12)
PATHS = st.text("ab/.-", min_size=1, max_size=12)


@given(PATTERNS, PATHS)
def test_a_covered_directory_has_nothing_below_it_that_does_not_match(pattern: str, path: str) -> None:
    try:
        globs = parse_globs([pattern])
    except ConfigError:
        return
    if globs.covers(path):
        assert globs.match(f"{path}/below/it")


@given(PATHS)
def test_a_path_matches_itself(path: str) -> None:
    assert parse_globs([re.sub(r"([*?\[\]{},\\])", r"\\\1", path)]).match(path)
