"""docs/README.md: every page, by folder; and what ARCHITECTURE.md says that can be read from the project."""

from __future__ import annotations

from pathlib import Path

from tools.docs.markdown import code, page, table
from tools.tidy.imports import MAY_IMPORT, ROOTS

FOLDERS = {
    "": "Begin here",
    "concepts": "Concepts",
    "how-to": "How to",
    "operating": "Operating",
    "sweeps": "Sweeps",
    "reference": "Reference",
    "design": "Design",
}
INTRO = "All pages. New here? Read [Start](start.md), then the concepts; look up the rest when you need it."


def render(docs: Path) -> str:
    """The index: pages of each folder by title."""
    parts = []
    for folder, title in FOLDERS.items():
        pages = sorted(path for path in (docs / folder).glob("*.md") if path != docs / "README.md")
        parts += [f"## {title}", "\n".join(f"- [{heading(path)}]({path.relative_to(docs)})" for path in pages)]
    return page("Documentation", INTRO, parts)


def records(design: Path) -> str:
    """The design records, in order."""
    return "\n".join(f"- [{heading(path)}]({path.name})" for path in sorted(design.glob("[0-9]*.md")))


def import_table() -> str:
    """Who may import whom, from the table that the tests enforce."""
    rows = []
    for package, may in MAY_IMPORT.items():
        if package in ROOTS or package.startswith("__"):
            continue
        others = sorted(may - ROOTS - {"__version__"})
        rows.append([code(package), ", ".join(map(code, others)) or "only modules of the root"])
    return table(["package", "may import, besides modules of the root"], rows)


def heading(path: Path) -> str:
    """The title of a page."""
    return path.read_text("utf-8").split("\n", 1)[0].removeprefix("# ").strip()
