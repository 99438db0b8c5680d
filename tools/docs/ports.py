"""docs/reference/ports.md: the promise, the costs and the methods of every port."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import wrasse.ports
from tools.docs.markdown import block, code, page, sentence, table
from wrasse.errors import WrasseError

INTRO = """\
A port is what wrasse needs from outside; a backend provides it. Every backend of a port passes the same conformance
suite (`tests/conformance/`), so what is promised here holds on each of them. How to add one: `CONTRIBUTING.md`."""
PARTS = frozenset({"page", "outcome"})
ASKED_OF_ALL = frozenset({"pulse"})
BACKENDS = Path(wrasse.ports.__path__[0]).parent / "backends"


def names() -> list[str]:
    """The ports, by the names of their files."""
    return [module.name for module in pkgutil.iter_modules(wrasse.ports.__path__) if module.name not in PARTS]


def render() -> str:
    """The page."""
    return page("Ports", INTRO, [_shared(), *(_port(name) for name in names())])


def _shared() -> str:
    parts = [importlib.import_module(f"wrasse.ports.{name}") for name in sorted(PARTS)]
    rows = [[code(cls.__name__), sentence(cls)] for module in parts for cls in _classes(module.__name__)]
    return "## Shared by all\n\n" + table(["type", "meaning"], rows)


def _port(name: str) -> str:
    module = importlib.import_module(f"wrasse.ports.{name}")
    lines = [f"## {name}", _reflow(inspect.getdoc(module) or ""), _provided(name)]
    for cls in _classes(module.__name__):
        if getattr(cls, "_is_protocol", False):
            lines += [f"### {cls.__name__}", sentence(cls), *(_method(cls, method) for method in _methods(cls))]
    rows = [[code(c.__name__), sentence(c)] for c in _classes(module.__name__) if not getattr(c, "_is_protocol", False)]
    if rows:
        lines += [f"### Types of {name}", table(["type", "meaning"], rows)]
    return "\n\n".join(lines)


def _provided(name: str) -> str:
    if name in ASKED_OF_ALL:
        return "Asked of every backend."
    found = sorted(path.parent.name for path in BACKENDS.glob(f"*/{name}.py"))
    return f"Backends: {', '.join(found)}." if found else "No backend provides it yet."


def _classes(module: str) -> Iterator[type]:
    for thing in vars(importlib.import_module(module)).values():
        if inspect.isclass(thing) and thing.__module__ == module and not issubclass(thing, WrasseError):
            yield thing


def _methods(cls: type) -> Iterator[str]:
    return (name for name, thing in vars(cls).items() if not name.startswith("_") and _callable(thing))


def _callable(thing: object) -> bool:
    return inspect.isfunction(thing) or isinstance(thing, property)


def _method(cls: type, name: str) -> str:
    thing = vars(cls)[name]
    if isinstance(thing, property):
        return f"**`{name}`**: {sentence(thing)}"
    source = inspect.getsource(thing)
    # From `async def` to the colon that ends the signature, as it stands in the file.
    signature = re.match(r"\s*((?:async )?def .*?):\s*\n\s+(?:\"\"\"|\.\.\.)", source, re.S)
    assert signature, f"{cls.__name__}.{name} has no plain signature"
    text = re.sub(r"\(\s+", "(", re.sub(r",?\s*\)\s*->", ") ->", " ".join(signature[1].split())))
    return block(text.replace("(self, ", "(").replace("(self)", "()"), "python") + "\n\n" + sentence(thing)


def _reflow(text: str) -> str:
    """Paragraphs of the header, with its first words as they are: they are the promise."""
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(part: str) -> str:
    if any(line.startswith("    ") for line in part.splitlines()):
        return block(inspect.cleandoc(part))
    return re.sub(r"^(Promise|Costs)\.", r"**\1.**", part)
