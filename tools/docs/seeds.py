"""docs/design/seeds.md: every normative sentence of the design documents, from the tables in docs/design/seeds/.

A table names the lines of its document, so that none is left out: each is in a rule, or in what promises nothing. A
rule is `as written`, `changed` (what is done instead, why, and a test of what the document's own version breaks) or
`absent` (with the reason). `held` and `broken` are names of tests; tests/docs/test_seeds.py checks all of this.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.docs.markdown import page, table

FOLDER = Path("docs/design/seeds")
PROGRAMS = "programs"
STATUSES = ("as written", "changed", "absent")
INTRO = """\
wrasse grew from five design documents. Their promises are ours. Where an algorithm in them breaks its own promise, we
keep the promise and change the algorithm. This page maps every sentence of them that promises something (each key,
default, flag, name, format, rule, event, metric and failure case): whether it holds as written, and the test that holds
it. For what is changed, *breaks* names the test in which the document's own version breaks its promise. The numbers are
lines of the document. What is absent is listed first."""
OTHERS = """\
What the documents leave open where they meet, and what the programs they come from do beside them; these programs work
on the same data."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One sentence of a document: where it stands (or of which program it is), what it says, and what holds it."""

    says: str
    at: str = ""
    of: str = ""
    status: str = "changed"
    instead: str = ""
    because: str = ""
    why: str = ""
    held: Sequence[str] = ()
    broken: Sequence[str] = ()

    @property
    def tests(self) -> Sequence[str]:
        """All tests it names."""
        return (*self.held, *self.broken)


@dataclass(frozen=True, slots=True)
class Seed:
    """One document: its lines, what of them promises nothing, and its rules."""

    name: str
    title: str
    lines: int
    prose: Sequence[tuple[str, str]]
    rules: Sequence[Rule]

    def unmapped(self) -> list[int]:
        """Lines that are in no rule and in no prose."""
        mapped = {
            line for at in (*(rule.at for rule in self.rules), *(at for at, _ in self.prose)) for line in span(at)
        }
        return [line for line in range(1, self.lines + 1) if line not in mapped]


def span(at: str) -> range:
    """The lines of `12` or `12-15`."""
    first, _, last = at.partition("-")
    return range(int(first), int(last or first) + 1)


def seeds(root: Path) -> list[Seed]:
    """The documents, and last the programs they come from."""
    return [_seed(path.stem, tomllib.loads(path.read_text("utf-8"))) for path in sorted((root / FOLDER).glob("*.toml"))]


def _seed(name: str, data: Mapping[str, Any]) -> Seed:
    rules = [Rule(**each) for each in data["rule"]]
    return Seed(name, data["title"], data.get("lines", 0), [(at, what) for at, what in data.get("prose", ())], rules)


def render(root: Path) -> str:
    """The page."""
    found = seeds(root)
    absent = [
        [_document(seed), rule.at, rule.says, rule.why]
        for seed in found
        for rule in seed.rules
        if rule.status == "absent"
    ]
    parts = [_summary(found), "## What is absent", table(["document", "lines", "it says", "here"], absent)]
    for seed in found:
        parts += _programs(seed) if seed.name == PROGRAMS else _chapter(seed)
    return page("The design documents, sentence by sentence", INTRO, parts)


def _document(seed: Seed) -> str:
    return seed.name.partition("-")[0]


def _summary(found: Sequence[Seed]) -> str:
    rows = []
    for seed in found:
        counts = Counter(rule.status for rule in seed.rules)
        rows.append([_document(seed), seed.title, *(str(counts[status]) for status in STATUSES)])
    return table(["", "document", *STATUSES], rows)


def _chapter(seed: Seed) -> list[str]:
    rows = [
        [rule.at, rule.says, _here(rule), _tests(rule)]
        for rule in sorted(seed.rules, key=lambda rule: (span(rule.at).start, span(rule.at).stop))
    ]
    prose = "; ".join(f"{at} ({what})" for at, what in seed.prose)
    head = f"## {_document(seed)}: {seed.title}"
    return [head, table(["lines", "it says", "here", "tests"], rows), f"Promise nothing: {prose}."]


def _programs(seed: Seed) -> list[str]:
    parts = [f"## {seed.title}", OTHERS]
    for of in dict.fromkeys(rule.of for rule in seed.rules):
        rows = [[rule.says, _here(rule), _tests(rule)] for rule in seed.rules if rule.of == of]
        parts += [f"### {of}", table(["there", "here", "tests"], rows)]
    return parts


def _here(rule: Rule) -> str:
    if rule.status == "changed":
        return f"**changed**: {rule.instead}. Because: {rule.because}"
    return f"**absent**: {rule.why}" if rule.status == "absent" else rule.status


def _tests(rule: Rule) -> str:
    held, broken = (", ".join(map(_test, names)) for names in (rule.held, rule.broken))
    return held + (f"; *breaks*: {broken}" if broken else "")


def _test(node: str) -> str:
    file, _, name = node.partition("::")
    said = re.sub(r"^test_", "", name).replace("_", " ")
    return f"[{said}](../../{file})"
