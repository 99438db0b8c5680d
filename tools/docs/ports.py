"""docs/reference/ports.md: the promises, the costs and the methods of every port, file by file.

A file may hold several Protocols. Which backends provide one follows from the capability that it stands for.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator

import wrasse.ports
from tools.docs.markdown import block, code, page, sentence, table
from wrasse.cli.doctor import KINDS, declared
from wrasse.errors import WrasseError

INTRO = """\
A port is what wrasse needs from outside; a backend provides it. Every backend of a port passes the same conformance
suite (`tests/conformance/`), so what is promised here holds on each of them. How to add one: `CONTRIBUTING.md`."""
EVERY_BACKEND = frozenset({"HealthCheck", "Namespaces", "Examined"})
CAPABILITIES = {
    "Copies": "copies",
    "Groups": "streams",
    "HasUploads": "multipart",
    "IndexedRecords": "status_index",
    "JobFsck": "fsck",
    "JobLists": "lists",
    "JobQueue": "jobs",
    "Journal": "journal",
    "KeepsVersions": "versions",
    "Limiter": "limiter",
    "Objects": "objects",
    "NamedLocks": "named_locks",
    "ServerAges": "ages",
    "SharedRecords": "shared",
    "Sightings": "sightings",
    "Strays": "strays",
    "Streams": "streams",
    "Surveys": "surveys",
}
"""The capability that says which backends provide a Protocol."""
BY_URL = {
    "Catalog": ("memory", "sql", "sqlite"),
    "CatalogSnapshot": ("memory", "sql", "sqlite"),
    "Records": (*KINDS, "sql"),
    "Sightings": ("sql",),
}
"""What no capability says: catalogs, which a root of orphans names, and PostgreSQL, which keeps its sightings."""


def names() -> list[str]:
    """The files of ports: those that have a Protocol."""
    return [name for name in _files() if any(map(_is_protocol, _classes(name)))]


def protocols() -> Iterator[type]:
    """Every Protocol of a port."""
    return (cls for name in names() for cls in _classes(name) if _is_protocol(cls))


def _files() -> list[str]:
    found = pkgutil.walk_packages(wrasse.ports.__path__)
    return sorted(module.name for module in found if not module.ispkg)


def render() -> str:
    """The page."""
    return page("Ports", INTRO, [_shared(), *(_port(name) for name in names())])


def _shared() -> str:
    """What stands in files without a Protocol is shared by several ports."""
    rows = [[code(cls.__name__), sentence(cls)] for name in _files() if name not in names() for cls in _classes(name)]
    return "## Shared types\n\n" + table(["type", "meaning"], rows)


def _port(name: str) -> str:
    module = importlib.import_module(f"wrasse.ports.{name}")
    lines = [f"## {name}", _reflow(inspect.getdoc(module) or "")]
    for cls in filter(_is_protocol, _classes(name)):
        lines += [f"### {cls.__name__}", sentence(cls), f"Backends: {', '.join(providers(cls.__name__))}."]
        lines += [_method(cls, method) for method in _methods(cls)]
    rows = [[code(cls.__name__), sentence(cls)] for cls in _classes(name) if not _is_protocol(cls)]
    if rows:
        lines += [f"### Types of {name}", table(["type", "meaning"], rows)]
    return "\n\n".join(lines)


def providers(protocol: str) -> Iterable[str]:
    """The packages of the backends that provide a Protocol."""
    if protocol in EVERY_BACKEND:
        return ["every backend"]
    kinds = set(BY_URL.get(protocol, ()))
    if protocol in CAPABILITIES:
        kinds |= {kind for kind in KINDS if declared(kind)[CAPABILITIES[protocol]]}
    assert kinds, f"no backend provides {protocol}; do: name its capability in CAPABILITIES"
    return sorted(KINDS.get(kind, kind).partition(".")[0] for kind in kinds)


def _classes(name: str) -> Iterator[type]:
    module = importlib.import_module(f"wrasse.ports.{name}")
    for thing in vars(module).values():
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and not issubclass(thing, WrasseError):
            yield thing


def _is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


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
