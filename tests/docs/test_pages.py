"""Pages hang together: links lead somewhere, nothing is out of reach, and named tests, settings and metrics exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tools.docs import cli, metrics
from tools.tidy.prose import headings

from docs.blocks import ROOT
from wrasse.config.schema import leaves, sections

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
README_LINES_MAX = 150


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)


def links(page: Path) -> list[tuple[Path, str]]:
    found = (link.partition("#") for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link))
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in found]


def anchors(page: Path) -> set[str]:
    texts = (text for _, _, text in headings(page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [str(path) for path, _ in links(page) if not path.exists()]
    wrong = [anchor for path, anchor in links(page) if anchor and path.suffix == ".md" and anchor not in anchors(path)]
    assert (broken, wrong) == ([], [])


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [path for path, _ in links(page) if path.is_file()]
    assert [name(page) for page in PAGES if page not in reached] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MAX


def test_the_tests_that_hold_a_promise_exist() -> None:
    page = (ROOT / "docs" / "concepts" / "guarantees.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 12, "every promise names the tests that hold it"
    assert [f"{path}::{test}" for path, test in named if not _has_test(ROOT / path, test)] == []


def _has_test(path: Path, test: str) -> bool:
    if not path.exists():
        return False
    tree = ast.parse(path.read_text("utf-8"))
    functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    return not test or test in functions


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts], ids=name)
def test_pages_name_only_settings_that_exist(page: Path) -> None:
    known = {*leaves(), *sections()}
    first = "|".join(sorted(section for section in sections()[""]))
    named = re.findall(rf"`((?:{first})(?:\.[a-z_<>]+)+)(?:: [^`]*)?`", page.read_text("utf-8"))
    files = (".py", ".md", ".yaml", ".db")
    assert [path for path in named if path not in known and "<" not in path and not path.endswith(files)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts], ids=name)
def test_pages_name_only_commands_that_exist(page: Path) -> None:
    known = {command for command, _ in cli.commands()}
    groups = {command for command in known if any(other.startswith(command + " ") for other in known)}
    wrong = []
    for words in re.findall(r"(?:`|^\$ )wrasse ((?:[a-z]+ ?)+)", page.read_text("utf-8"), re.M):
        command = "wrasse"
        for word in words.split():
            if command not in groups:
                break
            command = f"{command} {word}"
        if command not in known:
            wrong.append(command)
    assert wrong == []


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts], ids=name)
def test_pages_name_only_metrics_that_exist(page: Path) -> None:
    known = {sample for metric in metrics.families() for sample in metrics.sample_names(metric)}
    named = re.findall(
        r"\b((?:wrasse|jobs?|queue)_[a-z_]+_(?:total|seconds|bytes|length|state))\b", page.read_text("utf-8")
    )
    assert [metric for metric in named if metric not in known] == []
