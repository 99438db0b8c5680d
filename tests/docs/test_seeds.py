"""The tables of docs/design/seeds/ are complete: every line of the documents, and tests that exist."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import yaml
from tools.docs.seeds import FOLDER, PROGRAMS, STATUSES, Rule, Seed, render, seeds, span

from docs.blocks import ROOT
from wire.conftest import FIXTURES

FOUND = seeds(ROOT)
DOCUMENTS = [seed for seed in FOUND if seed.name != PROGRAMS]
RULES = [pytest.param(seed, rule, id=f"{seed.name} {rule.at}{rule.of}") for seed in FOUND for rule in seed.rules]


@cache
def defined_in(file: str) -> frozenset[str]:
    """The tests that a file defines itself, also under a condition."""
    found = ast.parse((ROOT / file).read_text("utf-8")).body
    found += [inner for each in found if isinstance(each, ast.If) for inner in each.body]
    return frozenset(each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_says_what_the_tables_say() -> None:
    page = (ROOT / "docs/design/seeds.md").read_text("utf-8")
    assert page == render(ROOT), "the page differs from its tables; do: python3 dev.py docs"


def test_there_are_five_documents_with_all_their_lines() -> None:
    assert {seed.name[:3]: seed.lines for seed in DOCUMENTS} == {
        "000": 312,
        "001": 163,
        "002": 146,
        "003": 68,
        "004": 329,
    }


@pytest.mark.parametrize("seed", DOCUMENTS, ids=lambda seed: seed.name)
def test_every_line_of_a_document_is_mapped(seed: Seed) -> None:
    assert seed.unmapped() == []
    spans = [span(at) for at in (*(rule.at for rule in seed.rules), *(at for at, _ in seed.prose))]
    assert [each for each in spans if not 1 <= each.start < each.stop <= seed.lines + 1] == []


@pytest.mark.parametrize(("seed", "rule"), RULES)
def test_a_rule_names_what_its_status_needs(seed: Seed, rule: Rule) -> None:
    assert rule.status in STATUSES
    assert bool(rule.held) == (rule.status != "absent"), "what is there is held by a test, and what is absent by none"
    assert bool(rule.why) == (rule.status == "absent"), "what is absent has a reason"
    assert bool(rule.instead and rule.because) == (rule.status == "changed")
    if seed.name != PROGRAMS:
        assert bool(rule.broken) == (rule.status == "changed"), "a change shows what the document's own version breaks"


def test_every_key_variable_flag_metric_and_log_key_that_is_fixed_is_in_a_rule() -> None:
    said = " ".join(rule.says for seed in DOCUMENTS for rule in seed.rules)
    tree = yaml.safe_load((FIXTURES / "seeds.yaml").read_text("utf-8"))
    names = json.loads((FIXTURES / "names.json").read_text("utf-8"))
    fixed = [
        *paths(tree),
        *names["flags_of_run"],
        *names["log_keys"],
        *names["metrics"],
        "GC_INTERVAL",
        "GC_ORPHAN_DELAY",
    ]
    assert [name for name in fixed if not re.search(rf"`{re.escape(name)}\b", said)] == []


def paths(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Every key that holds a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and f"{before}{name}" not in ("retention", "worker.queues"):
            yield from paths(value, f"{before}{name}.")
        else:
            yield before + name


def test_every_test_that_a_rule_names_exists() -> None:
    nodes = {node for seed in FOUND for rule in seed.rules for node in rule.tests}
    missing = []
    for file, _, name in (node.partition("::") for node in sorted(nodes)):
        if not ((ROOT / file).is_file() and name.startswith("test_") and name in defined_in(file)):
            missing.append(f"{file}::{name}")
    assert missing == [], f"tests that {FOLDER} names and that do not exist"


def test_every_test_of_the_documents_own_versions_is_named_by_a_rule() -> None:
    for file in ("tests/docs/test_seeds_own.py", "tests/docs/test_seeds_keys.py"):
        named = {node for seed in FOUND for rule in seed.rules for node in rule.tests}
        assert [name for name in defined_in(file) if name.startswith("test_") and f"{file}::{name}" not in named] == []
