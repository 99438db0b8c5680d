"""What things are called: files by a noun of the trade, classes by a name that stands alone, families as packages.

The words of the field and of the seeds (reaper, sweeper, janitor, txn, GC) are welcome; words of our own are not.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tools.tidy.source import Problem, Project, Source

MODULES_MAX = 25
FAMILY_MIN = 3
_FORM = re.compile(r"[a-z]{3,}(?:ing|ed)")
# Words in -ing and -ed that the trade uses, each with the reason. A new one needs one, too.
TRADE_WORDS = {
    "bounded": "limited in size, as a bounded queue is",
    "claimed": "the state of a job that a worker has a claim on",
    "expired": "part of a sweep's name; caches and leases say expired everywhere",
    "finished": "part of a sweep's name: jobs that are done or dead",
    "listing": "a page of keys, as S3 has it",
    "named": "qualifies a noun: an import, a lock, a record that has a name",
    "naming": "how names are made, as in naming service",
    "ordered": "sorted by key, as an ordered map",
    "parsing": "as in request parsing",
    "running": "the state of a job",
    "setting": "a noun: one entry of the configuration",
    "sorted": "a sorted set is a type of Redis",
    "testing": "the package for users' tests, as in numpy.testing",
    "tracing": "OpenTelemetry's word",
}
# Metaphors that were once file names here.
METAPHORS = frozenset({
    "abreast", "afterwards", "bells", "book", "desk", "doubts", "flights", "handouts", "heart", "homes", "lane",
    "lanes", "lessor", "letters", "looks", "outlook", "pens", "places", "pulse", "pulses", "shelf", "shelves",
    "silence", "slices", "spots", "stamps", "stretch", "swaps", "teams", "temps", "yard",
})  # fmt: skip
# Participles and adjectives that no ending shows. Before a noun they may stand: known_ids.
WITHOUT_A_NOUN = frozenset({"felt", "given", "gone", "held", "kept", "known", "lost", "plain", "seen", "shown", "told"})
TWINS = frozenset({"api/sync.py"})  # the same names without an event loop
_Public = tuple[Source, ast.ClassDef]


def files_are_named_by_nouns(source: Source) -> Iterator[Problem]:
    """A file of the package is named by a noun of the trade: no gerund, no participle, no metaphor."""
    if not source.module or not source.python:
        return
    folders = source.module.split("/")[:-1]
    for words in (name.strip("_").split("_") for name in (*folders, source.stem)):
        for word in words:
            if word in METAPHORS:
                yield Problem(source.path, 0, f"{word} is a metaphor", "say the field's noun for what is in the file")
            elif (_FORM.fullmatch(word) and word not in TRADE_WORDS) or words[-1] in WITHOUT_A_NOUN:
                yield Problem(
                    source.path,
                    0,
                    f"{word} is a gerund or a participle",
                    "name the file by a noun, or list the word in tools/tidy/naming.py with the reason",
                )


def class_names_are_unique(project: Project) -> Iterator[Problem]:
    """A public class name occurs once in the package, twins in api/sync.py apart: it stands alone in a stack trace."""
    found: defaultdict[str, list[_Public]] = defaultdict(list)
    for source in project.python:
        if not source.module or source.module in TWINS:
            continue
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append((source, node))
    for name, places in found.items():
        for source, node in places[1:]:
            yield Problem(
                source.path,
                node.lineno,
                f"a second class {name}, beside that of {places[0][0].path}",
                "say what this one is: the name stands alone in a stack trace",
            )


def packages_are_small(project: Project) -> Iterator[Problem]:
    """At most 25 modules in a package."""
    modules: defaultdict[str, int] = defaultdict(int)
    for source in _modules(project):
        modules[source.path.rpartition("/")[0]] += 1
    for package, count in modules.items():
        if count > MODULES_MAX:
            yield Problem(
                package, 0, f"{count} modules, more than {MODULES_MAX}", "make packages of what belongs together"
            )


def families_are_packages(project: Project) -> Iterator[Problem]:
    """Three files with one prefix in a package are a package that was not made; the bare prefix counts, too."""
    families: defaultdict[str, list[str]] = defaultdict(list)
    for source in _modules(project):
        folder = source.module.rpartition("/")[0]
        families[f"{folder}/{source.stem.strip('_').split('_')[0]}".strip("/")].append(source.stem)
    for family, stems in families.items():
        if len(stems) >= FAMILY_MIN:
            yield Problem(
                f"src/wrasse/{family}",
                0,
                f"a family of {len(stems)} files: {', '.join(sorted(stems))}",
                "make a package of them, merge them, or name them by what tells them apart",
            )


def _modules(project: Project) -> Iterator[Source]:
    return (source for source in project.python if source.module and source.stem not in ("__init__", "__main__"))
