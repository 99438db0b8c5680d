"""Which pages are written from the code, and their text as it should be now."""

from __future__ import annotations

from pathlib import Path

from tools.docs import capabilities, cli, errors, events, index, limits, metrics, ports, seeds, settings, sweeps
from tools.docs.markdown import between

ROOT = Path(__file__).resolve().parents[2]
MODULES = (capabilities, cli, errors, events, limits, metrics, ports, settings, sweeps)


def pages() -> dict[str, str]:
    """Every written page by its path from the root of the project."""
    written = {f"docs/reference/{module.__name__.rsplit('.', 1)[-1]}.md": module.render() for module in MODULES}
    readme = (ROOT / "README.md").read_text("utf-8")
    architecture = (ROOT / "docs/design/ARCHITECTURE.md").read_text("utf-8")
    architecture = between(architecture, "imports", index.import_table())
    return written | {
        "README.md": between(readme, "sweeps", sweeps.summary("docs/sweeps")),
        "docs/design/seeds.md": seeds.render(ROOT),
        "docs/README.md": index.render(ROOT / "docs"),
        "docs/design/ARCHITECTURE.md": between(architecture, "records", index.records(ROOT / "docs/design")),
    }
