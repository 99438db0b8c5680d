"""The files of the project as the rules see them, and what a rule says about them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "tools", "bench", "examples", "docs", ".ci")
TEXTS = {".py", ".md", ".sql", ".toml", ".yaml", ".yml", ".sh", ".lock", ".txt", ""}


@dataclass(frozen=True, slots=True)
class Problem:
    """One breach of one rule. `line` is 0 where the whole file is meant."""

    path: str
    line: int
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}\n    do: {self.do}"


@dataclass(frozen=True)
class Source:
    """One file: its path from the root of the project, with forward slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of a Python file."""
        return ast.parse(self.text, self.path)

    @property
    def python(self) -> bool:
        """Is this a Python file?"""
        return self.path.endswith(".py")

    @property
    def module(self) -> str:
        """The path inside the package, for files of the package: `engine/run.py`. Empty for all others."""
        return self.path.removeprefix("src/wrasse/") if self.path.startswith("src/wrasse/") else ""

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return self.path.rsplit("/", 1)[-1].split(".")[0]


@dataclass(frozen=True)
class Project:
    """All files that are ours to keep tidy."""

    sources: tuple[Source, ...]

    @cached_property
    def by_path(self) -> dict[str, Source]:
        """The files by their path."""
        return {source.path: source for source in self.sources}

    @property
    def python(self) -> Iterator[Source]:
        """The Python files."""
        return (source for source in self.sources if source.python)


FileRule = Callable[[Source], Iterator[Problem]]
ProjectRule = Callable[[Project], Iterator[Problem]]


def read_project(root: Path = ROOT) -> Project:
    """Reads every text file under the known folders and beside them; caches and environments are left out."""
    paths = [path for path in root.iterdir() if path.is_file() and path.name not in ("uv.lock", ".gitignore", ".git")]
    for folder in FOLDERS:
        paths += (path for path in (root / folder).rglob("*") if path.is_file())
    kept = sorted(path for path in paths if path.suffix in TEXTS and "__pycache__" not in path.parts)
    return Project(tuple(Source(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in kept))
