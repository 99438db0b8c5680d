"""The architecture page shows the tree as it is: every package with its sentence, and no file that is not there."""

from __future__ import annotations

import re

from tools.docs import index

from docs.blocks import ROOT

SOURCES = ROOT / "src" / "wrasse"
PAGE = (ROOT / "docs" / "design" / "ARCHITECTURE.md").read_text("utf-8")
INDENT = 2


def shown() -> dict[str, str]:
    """What the tree of the page shows, path by path, each with its sentence."""
    block = re.search(r"^```text\nsrc/wrasse/\n(.*?)^```", PAGE, re.M | re.S)
    assert block
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in block[1].splitlines():
        name, _, sentence = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // INDENT - 1
        folders[depth:] = [name]
        found["".join(folders)] = sentence.strip()
    return found


def test_every_package_is_in_the_tree_and_has_a_sentence() -> None:
    packages = {f"{path.parent.relative_to(SOURCES).as_posix()}/" for path in SOURCES.rglob("*/__init__.py")}
    tree = shown()
    assert packages - {"./"} == {path for path in tree if path.endswith("/")}
    assert [path for path, sentence in tree.items() if not sentence] == []


def test_every_module_of_the_root_is_in_the_tree() -> None:
    modules = {path.name for path in SOURCES.glob("*.py") if not path.name.startswith("__")}
    assert modules == {path for path in shown() if path.endswith(".py")}


def test_every_file_that_the_page_names_is_there() -> None:
    named = {path for path in re.findall(r"`([\w/]+\.py)`", PAGE) if "/" in path}
    named |= {f"{folder}{file}" for folder, text in shown().items() for file in re.findall(r"[\w/]+\.py", text)}
    assert len(named) > 10
    assert [path for path in named if not (SOURCES / path).exists() and not (ROOT / path).exists()] == []


def test_every_design_record_is_listed() -> None:
    records = {path.name for path in (ROOT / "docs" / "design").glob("[0-9]*.md")}
    assert set(re.findall(r"\]\((\d[\w-]+\.md)\)", PAGE)) == records


def test_every_page_is_linked_from_the_index() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (docs / "README.md").read_text("utf-8")))
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"README.md"}
    assert linked == pages
    assert {path.rpartition("/")[0] for path in pages} == set(index.FOLDERS)
