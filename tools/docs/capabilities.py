"""docs/reference/capabilities.md: what each backend declares that it can do, and what is done where it cannot."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping

from tools.docs.markdown import code, page, table
from wrasse.cli.doctor import KINDS, capability_table
from wrasse.ports.backend import Capabilities

INTRO = """\
Every backend declares once what it can do beyond what all of them must (`ports/backend.py`). Settings that need
what a backend lacks are refused when they are read. `wrasse doctor` shows the same table for the backends in use;
`file` is a directory."""


def meanings() -> Mapping[str, str]:
    """The docstring of each capability."""
    (kind,) = ast.parse(inspect.getsource(Capabilities)).body
    assert isinstance(kind, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(kind.body, kind.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{field.target.id} has no docstring"
            assert isinstance(text.value, ast.Constant), f"{field.target.id} has no docstring"
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def render() -> str:
    """The page."""
    head, rows = capability_table(KINDS)
    told = meanings()
    shown = table(head, [(code(name), *states) for name, *states in rows])
    meant = table(("capability", "meaning"), [(code(name), told[name]) for name, *_ in rows])
    return page("Capabilities", INTRO, [shown, meant])
