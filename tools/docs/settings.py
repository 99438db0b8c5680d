"""docs/reference/settings.md: every setting, from the same table that reads and checks them."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from datetime import timedelta
from itertools import groupby

from tools.docs.markdown import code, page, table, value
from wrasse.config.schema import Leaf, leaves

INTRO = """\
Settings come from, strongest first: the command line; the environment; the file `wrasse.yaml` in the working directory
(or `--config FILE`); the defaults below. `wrasse config show` prints what is in force and where each value came from,
`wrasse config check` only looks for mistakes. An unknown key is an error that suggests the nearest one.

A path such as `worker.backoff.base` is a nested key in the file and `WRASSE_WORKER_BACKOFF_BASE` in the environment.
Where a second environment name is given, it works too. Durations need a unit: `250ms`, `30s`, `5m`, `1h30m`, `7d`.
In the environment a list is comma-separated or YAML, and a map is YAML."""
NAMES: dict[object, str] = {timedelta: "duration", str: "text", int: "number", float: "number", bool: "true or false"}


def render() -> str:
    """The page."""
    parts: list[str] = []
    for section, members in groupby(leaves().values(), key=_section):
        rows = [
            [code(leaf.path), _type(leaf), code(value(leaf.default)), _meaning(leaf), _environment(leaf)]
            for leaf in members
        ]
        parts += [f"## {section}", table(["setting", "type", "default", "meaning", "environment"], rows)]
    return page("Settings", INTRO, parts)


def _section(leaf: Leaf) -> str:
    first, *rest = leaf.path.split(".")
    return f"{first}.{rest[0]}" if first == "sweeps" else first


def _type(leaf: Leaf) -> str:
    if leaf.key.choices:
        return ", ".join(leaf.key.choices)
    origin, kind = typing.get_origin(leaf.type), leaf.type
    if origin in (types.UnionType, typing.Union):
        named = [NAMES.get(part, "") for part in typing.get_args(kind)]
        return " or ".join(filter(None, named)) + ", or nothing"
    if origin is not None and issubclass(typing.cast(type, origin), Mapping):
        return "map"
    return "list" if origin in (tuple, list) else NAMES[kind]


def _meaning(leaf: Leaf) -> str:
    return leaf.key.doc + ("; never shown" if leaf.key.secret else "")


def _environment(leaf: Leaf) -> str:
    return ", ".join(code(name) for name in (leaf.env, leaf.seed_env) if name)
