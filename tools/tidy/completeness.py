"""One name, seven places: whatever the product has, it has a test, a page and an entry for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.tidy.source import Problem, Project, Source

# What is asked of every backend; the suites of the other ports hold it.
ASKED_OF_ALL = frozenset({"HealthCheck", "Examined"})
# Suites that are not tests/conformance/test_<name of the Protocol>.py. What one backend provides is tested with it.
SUITES = {
    "CatalogSnapshot": "conformance/test_catalog",
    "Copies": "conformance/test_objects",
    "HasUploads": "backends/s3/test_uploads",
    "IndexedRecords": "conformance/test_status_index",
    "JobFsck": "backends/redis/test_fsck",
    "JobLists": "cli/test_admin",
    "JobQueue": "conformance/test_jobs",
    "KeepsVersions": "backends/s3/test_versions",
    "SharedRecords": "backends/redis/test_records_flat",
    "Surveys": "conformance/test_aged_entries",
}
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


def _protocols(source: Source) -> Iterator[ast.ClassDef]:
    """The Protocols of a file of ports/; files without one hold types that ports share."""
    if source.module.startswith("ports/"):
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
                yield node


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
    """Every Protocol of a port has a conformance suite."""
    for source in project.python:
        for port in _protocols(source):
            stem = re.sub(r"(?<!^)(?=[A-Z])", "_", port.name).lower()
            suite = f"tests/{SUITES.get(port.name, f'conformance/test_{stem}')}.py"
            if port.name not in ASKED_OF_ALL and suite not in project.by_path:
                yield Problem(
                    source.path,
                    port.lineno,
                    f"the port {port.name} has no conformance suite",
                    f"write {suite}, with every backend a parameter",
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
        if not any(_protocols(source)):
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
