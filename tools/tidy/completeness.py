"""One name, seven places: whatever the product has, it has a test, a page and an entry for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.tidy.source import Problem, Project, Source

# What guards ask of every backend; the suites of the other ports hold it.
ASKED_OF_ALL = frozenset({"health_check"})
# Unit tests of something else than one module, each with what it is.
TESTS_OF_OTHERS = {
    "sweeps/catalogue": "the package's __init__",
    "sweeps/catalogue_properties": "every sweep of it, by the kit for users' tests",
    "decoders": "every decoder of tests/decoders.py",
    "fuzzed_decoders": "every decoder of tests/decoders.py",
    "seeds": "the seed of a test run",
    "virtual_time": "the event loop of simulations",
}


def _stems(project: Project, folder: str) -> list[str]:
    return sorted(s.stem for s in project.python if s.path == f"{folder}/{s.stem}.py" and not s.stem.startswith("_"))


def _is_port(source: Source) -> bool:
    """A file of ports/ with a Protocol; the others hold types that ports share."""
    if not source.module.startswith("ports/") or source.stem in ASKED_OF_ALL:
        return False
    classes = (node for node in source.tree.body if isinstance(node, ast.ClassDef))
    return any("Protocol" in ast.unparse(base) for node in classes for base in node.bases)


def sweeps_are_complete(project: Project) -> Iterator[Problem]:
    """Every sweep has a unit test, a page and an entry in the catalogue, and every page a sweep."""
    catalogue = project.by_path.get("src/wrasse/sweeps/__init__.py", Source("", ""))
    named = {node.value for node in ast.walk(catalogue.tree) if isinstance(node, ast.Constant)}
    imported = {n.module for n in ast.walk(catalogue.tree) if isinstance(n, ast.ImportFrom)}
    sweeps = _stems(project, "src/wrasse/sweeps")
    for name in sweeps:
        path = f"src/wrasse/sweeps/{name}.py"
        for wanted, what in ((f"tests/unit/sweeps/test_{name}.py", "unit test"), (f"docs/sweeps/{name}.md", "page")):
            if wanted not in project.by_path:
                yield Problem(path, 0, f"the sweep {name} has no {what}", f"write {wanted}")
        if name not in named and f"wrasse.sweeps.{name}" not in imported:
            yield Problem(
                path, 0, f"the sweep {name} is not in the catalogue", "add it in src/wrasse/sweeps/__init__.py"
            )
    for source in project.sources:
        if source.path == f"docs/sweeps/{source.stem}.md" and source.stem not in sweeps:
            yield Problem(source.path, 0, "a page without a sweep", "delete the page, or write the sweep")


def ports_are_complete(project: Project) -> Iterator[Problem]:
    """Every port that a backend provides has a conformance suite of the same name."""
    provided = {source.stem for source in project.python if source.module.startswith("backends/")}
    for name in (source.stem for source in project.python if _is_port(source)):
        if name in provided and f"tests/conformance/test_{name}.py" not in project.by_path:
            yield Problem(
                f"src/wrasse/ports/{name}.py",
                0,
                f"the port {name} has no conformance suite",
                f"write tests/conformance/test_{name}.py, with every backend a parameter",
            )


def unit_tests_are_named_after_modules(project: Project) -> Iterator[Problem]:
    """`jobs/retry.py` is tested by tests/unit/jobs/test_retry.py; an aspect of it, by test_retry_<aspect>.py."""
    modules: dict[str, set[str]] = {}
    for source in project.python:
        if source.module:
            modules.setdefault(source.module.rpartition("/")[0], set()).add(source.stem)
    for source in project.python:
        if not source.path.startswith("tests/unit/") or not source.stem.startswith("test_"):
            continue
        package = source.path.removeprefix("tests/unit/").rpartition("/")[0]
        name = source.stem.removeprefix("test_")
        if f"{package}/{name}".strip("/") in TESTS_OF_OTHERS:
            continue
        if not any(name == stem or name.startswith(f"{stem}_") for stem in modules.get(package, ())):
            yield Problem(
                source.path,
                0,
                f"no module of src/wrasse/{package} is called {name}",
                "name the test after the module that it tests, in the folder of its package",
            )


def ports_are_small(project: Project) -> Iterator[Problem]:
    """A port is a Protocol of at most ten methods, with its promise and its costs in the header."""
    for source in project.python:
        if not _is_port(source):
            continue
        header = ast.get_docstring(source.tree) or ""
        for word in ("Promise.", "Costs."):
            if word not in header:
                yield Problem(
                    source.path,
                    1,
                    f"the header does not state: {word}",
                    "say what callers may rely on, and what it costs",
                )
        for node in source.tree.body:
            methods = [m for m in getattr(node, "body", []) if isinstance(m, ast.AsyncFunctionDef)]
            if isinstance(node, ast.ClassDef) and len(methods) > 10:
                yield Problem(
                    source.path,
                    node.lineno,
                    f"{node.name} has {len(methods)} methods",
                    "split the port, or merge methods",
                )
