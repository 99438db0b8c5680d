"""Text for readers: titles of pages, and nothing that only means something on one machine or to one author."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.tidy.source import Problem, Source

# Written in pieces, so that this file does not name what it looks for.
MACHINE = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ho" + r"me|ro" + r"ot|Us" + r"ers|opt)/[\w.]")
PLANTED = re.compile(r"/ho" + r"me/")  # tests plant such paths to see that none of them reaches a log
REGISTRY = re.compile(
    r"pypi\.(?:o" + r"rg|python)|python" + r"hosted|--(?:extra-)?index" + r"-url|--find" + r"-links|arti" + r"factory",
    re.I,
)
NAMES = (
    "cla" + "ude",
    "anth" + "ropic",
    "open" + "ai",
    "chat" + "gpt",
    "copi" + "lot",
    "co-auth" + "ored-by",
    "language mo" + "del",
    "ai-gen" + "erated",
    "ai-assis" + "ted",
)
AUTHOR = re.compile(r"\b(?:" + "|".join(NAMES) + r")\b", re.I)
FENCE = re.compile(r"^\s*(```+|~~~+)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$")


def text_means_the_same_everywhere(source: Source) -> Iterator[Problem]:
    """No paths of one machine, no registry hosts, no word about who or what wrote it."""
    rules = (
        (MACHINE, "a path of one machine", "write a path relative to the project, or a temporary one"),
        (REGISTRY, "a package registry", "leave the index to pip's configuration"),
        (AUTHOR, "who wrote it", "leave it out: the text speaks for itself"),
    )
    for number, text in enumerate(source.text.splitlines(), 1):
        for pattern, what, do in rules:
            found = pattern.search(text)
            if found and not (source.path.startswith("tests/") and PLANTED.match(found[0])):
                yield Problem(source.path, number, f"names {what}: {found[0]}", do)


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Line, level and text of every heading that is not inside a code block."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := FENCE.match(line):
            fence = "" if fence and found[1].startswith(fence) else fence or found[1]
        elif not fence and (heading := HEADING.match(line)):
            yield number, len(heading[1]), heading[2]


def pages_have_one_title(source: Source) -> Iterator[Problem]:
    """A page opens with its one title; headings below it go down one level at a time."""
    if not source.path.endswith(".md"):
        return
    found = list(headings(source.text))
    if not found or found[0][:2] != (1, 1):
        yield Problem(source.path, 1, "does not open with a title", "begin the page with `# Title`")
        return
    level = 1
    for number, depth, text in found[1:]:
        if depth == 1:
            yield Problem(
                source.path, number, f"a second title: {text}", "make it a `##` heading, or a page of its own"
            )
        if depth > level + 1:
            yield Problem(source.path, number, f"the heading {text!r} skips a level", f"use {'#' * (level + 1)}")
        level = depth
    for number, _, text in found:
        if text.endswith((".", ":")):
            yield Problem(source.path, number, f"the heading {text!r} ends with {text[-1]!r}", "leave the mark out")
