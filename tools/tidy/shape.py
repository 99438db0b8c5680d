"""The shape of files and functions: lengths, docstrings, names, values that cross file borders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.tidy.source import Problem, Source

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
NAMELESS = frozenset({"util", "utils", "helper", "helpers", "common", "base", "misc", "shared"})
BANNED_WORDS = {
    "candidate": "suspect",
    "coordinator": "engine",
}
# The edges that speak a seed's wire format: its keys and metric names stay as the seed has them.
SPEAKS_WIRE = re.compile(r"config/|observability/metrics\.py$|lease_server/wire\.py$|leases/client")
# Values that change on purpose, each with the reason.
MUTABLE = {
    "OpenPorts": "filled as the parts of a process need their backends",
    "ArchiverTally": "counters that one archiver adds to and metrics read",
    "QueueTally": "the counts of one queue while they are counted",
    "Tally": "counters that one worker adds to and metrics read",
    "LogTally": "counters that the log handler adds to and metrics read",
    "Totals": "counters that the engine adds to and metrics read",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = Function | ast.ClassDef


def files_are_short(source: Source) -> Iterator[Problem]:
    """At most 600 lines a file."""
    lines = source.text.count("\n")
    if source.python and source.path.startswith(("src/", "tools/")) and lines > FILE_LINES_MAX:
        yield Problem(
            source.path,
            0,
            f"{lines} lines, more than {FILE_LINES_MAX}",
            "split it by concept",
        )


def functions_are_short(source: Source) -> Iterator[Problem]:
    """At most 60 lines a function, docstring not counted."""
    if not source.python or not source.path.startswith(("src/", "tools/")):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield Problem(
                    source.path,
                    node.lineno,
                    f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}",
                    "keep the branches here and move the straight parts out; aim for 15",
                )


def _docstring_lines(node: Function) -> int:
    first = node.body[0]
    if ast.get_docstring(node) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def files_say_what_they_are_for(source: Source) -> Iterator[Problem]:
    """Every file with code in it opens with a docstring."""
    if source.python and source.tree.body and not ast.get_docstring(source.tree):
        yield Problem(
            source.path, 1, "no docstring", "open the file with what it is for: an invariant, promise or contract"
        )


def files_are_named_for_a_thing(source: Source) -> Iterator[Problem]:
    """No utils, helpers, common or base."""
    folders = source.path.split("/")[:-1]
    for name in (source.stem.strip("_"), *(folder for folder in folders[1:])):
        if source.python and name.removeprefix("test_") in NAMELESS:
            yield Problem(source.path, 0, f"a file or folder called {name}", "name the thing that is in it")


def public_names_have_docstrings(source: Source) -> Iterator[Problem]:
    """Every public class and function of a module of the package says what it is."""
    if not source.module or not source.python:
        return
    for node in source.tree.body:
        if isinstance(node, Named) and not node.name.startswith("_") and not ast.get_docstring(node):
            yield Problem(
                source.path,
                node.lineno,
                f"{node.name} has no docstring",
                "say in a sentence what it is, or what it promises",
            )


def public_names_use_our_words(source: Source) -> Iterator[Problem]:
    """One word per concept, in file names and in names that others see."""
    if not source.module or not source.python or SPEAKS_WIRE.match(source.module):
        return
    names = [(0, source.stem), *((node.lineno, name) for node, name in _public_names(source.tree))]
    for line, name in names:
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name):
            ours = BANNED_WORDS.get(word.lower()) or BANNED_WORDS.get(word.lower().removesuffix("s"))
            if ours:
                yield Problem(
                    source.path,
                    line,
                    f"{name} says {word.lower()}",
                    f"say {ours}: docs/glossary.md has one word per concept",
                )


def _public_names(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    for node in (*tree.body, *(inner for cls in tree.body if isinstance(cls, ast.ClassDef) for inner in cls.body)):
        found: list[str] = []
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                arguments = node.args
                found = [node.name, *(a.arg for a in (*arguments.args, *arguments.kwonlyargs, *arguments.posonlyargs))]
            case ast.ClassDef():
                found = [node.name]
            case ast.Assign():
                found = [target.id for target in node.targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                found = [name]
        if found and not found[0].startswith("_"):
            yield from ((node, name) for name in found)


def values_are_frozen(source: Source) -> Iterator[Problem]:
    """Public dataclasses of the package are frozen and slotted."""
    if not source.module or not source.python:
        return
    for node in source.tree.body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_") or node.name in MUTABLE:
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            target = call.func if call else decorator
            if getattr(target, "id", getattr(target, "attr", "")) != "dataclass":
                continue
            given = {
                k.arg
                for k in (call.keywords if call else [])
                if isinstance(k.value, ast.Constant) and k.value.value is True
            }
            if not {"frozen", "slots"} <= given:
                yield Problem(
                    source.path,
                    node.lineno,
                    f"the dataclass {node.name} can be changed",
                    "write @dataclass(frozen=True, slots=True), or list it in tools/tidy/shape.py with why",
                )


def borders_are_typed(source: Source) -> Iterator[Problem]:
    """No `**kwargs` in public functions of the package: a caller cannot see what they take."""
    if not source.module or not source.python:
        return
    inner = (member for cls in source.tree.body if isinstance(cls, ast.ClassDef) for member in cls.body)
    for node in (*source.tree.body, *inner):
        if isinstance(node, Function) and not node.name.startswith("_") and node.args.kwarg:
            yield Problem(
                source.path,
                node.lineno,
                f"{node.name} takes **{node.args.kwarg.arg}",
                "name the parameters, or take a dataclass",
            )
