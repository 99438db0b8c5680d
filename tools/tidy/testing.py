"""What a test is: a sentence about the product that can fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.tidy.source import Problem, Source

WORDS_MIN = 3
# A skip hides a promise that nobody checks, so each needs a reason listed here (the first words of its text).
SKIPS_ALLOWED: tuple[str, ...] = ("there is no chromium here", "left out:")
SKIPS = frozenset({"skip", "skipif", "skipIf", "xfail", "importorskip", "SkipTest"})
# A wait that fails by its time limit is a claim, too.
CHECKS = (
    "assert_", "check", "expect", "raises", "warns", "run_state_machine_as_test", "until", "_until", "timeout",
)  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _tests(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node


def _is_test_file(source: Source) -> bool:
    return source.python and source.path.startswith("tests/")


def tests_are_named_as_sentences(source: Source) -> Iterator[Problem]:
    """A test is named as a sentence about the product: no numbers, no method names."""
    if not _is_test_file(source):
        return
    for node in _tests(source.tree):
        words = node.name.split("_")[1:]
        if len(words) < WORDS_MIN or (words[-1].isdigit() and len(words) <= WORDS_MIN):
            yield Problem(
                source.path,
                node.lineno,
                f"{node.name} is not a sentence",
                "say what the product does: test_a_beating_worker_keeps_its_job",
            )


def tests_can_fail(source: Source) -> Iterator[Problem]:
    """Every test asserts something, itself or through a function of its own file that does."""
    if not _is_test_file(source):
        return
    asserting = {
        node.name for node in ast.walk(source.tree) if isinstance(node, Function | ast.ClassDef) and _has_assert(node)
    }
    for node in _tests(source.tree):
        called = {getattr(c.func, "attr", getattr(c.func, "id", "")) for c in ast.walk(node) if isinstance(c, ast.Call)}
        if not (_has_assert(node) or called & asserting or any(name.startswith(CHECKS) for name in called)):
            yield Problem(
                source.path, node.lineno, f"{node.name} asserts nothing", "state the claim, and see it fail once"
            )


def _has_assert(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node))


def tests_are_not_skipped(source: Source) -> Iterator[Problem]:
    """No skips and no expected failures, except for the listed reasons."""
    if not _is_test_file(source):
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute) or node.attr not in SKIPS:
            continue
        if not _reason(source, node.lineno).startswith(SKIPS_ALLOWED or ("\0",)):
            yield Problem(
                source.path,
                node.lineno,
                f"{node.attr}: a test that may not run",
                "make it run everywhere, or list its reason in tools/tidy/testing.py",
            )


def _reason(source: Source, line: int) -> str:
    texts = (
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and line <= node.lineno <= line + 3
    )
    return next(texts, "")


def our_own_code_is_not_mocked(source: Source) -> Iterator[Problem]:
    """Tests use the memory backend and a ManualClock instead of mocks."""
    if not _is_test_file(source):
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if any("mock" in name.lower() for name in (module, *(alias.name for alias in node.names))):
            yield Problem(
                source.path, node.lineno, "imports a mock", "use the memory backend, a ManualClock or tests/faults.py"
            )
