"""A YAML text as nodes that know their line, so that a mistake can be pointed at.

Nothing is constructed from the text but scalars, lists and maps: tags that would make objects are never resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from wrasse.errors import ConfigError

BYTES_MAX = 1 << 20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a map, its value and the line it stands on."""

    name: str
    value: yaml.Node
    line: int


def read_yaml(path: Path) -> yaml.Node | None:
    """The root of the file; None if it is empty. The file must exist."""
    try:
        data = path.read_bytes()[: BYTES_MAX + 1]
    except OSError as why:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {why.strerror}",
            do="check its owner and mode, or name another with --config",
        ) from why
    if len(data) > BYTES_MAX:
        raise ConfigError(
            f"the configuration file {path} is longer than {BYTES_MAX} bytes", do="name the right file with --config"
        )
    try:
        return parse_yaml(data.decode())
    except UnicodeDecodeError as why:
        raise ConfigError(f"{path} is not UTF-8 at byte {why.start}", do="save it as UTF-8 text") from why
    except yaml.YAMLError as why:
        raise ConfigError(
            f"{path}{_place(why)} is not YAML: {_problem(why)}", do="correct the line; indent with spaces"
        ) from why


def parse_yaml(text: str) -> yaml.Node | None:
    """The root node of a text; None if there is nothing in it."""
    root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    return None if root is None or is_null(root) else root


def entries(node: yaml.MappingNode) -> Iterator[Entry]:
    """The keys of a map in their order; `<<` brings in another map, as usual."""
    yaml.constructor.SafeConstructor().flatten_mapping(node)
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        yield Entry(str(name), value, key.start_mark.line + 1)


def is_null(node: yaml.Node) -> bool:
    """Whether a value was left out, or written as null or ~."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def plain_value(node: yaml.Node) -> object:
    """A value of any shape, made of maps, lists, texts, numbers and times. ConfigError for anything else."""
    try:
        value: object = yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.YAMLError as why:
        raise ConfigError(f"a value is not plain YAML: {_problem(why)}", do="leave tags out") from None
    return value


def scalar(text: str) -> yaml.ScalarNode:
    """A text from elsewhere (environment, command line) as a node."""
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


def _place(why: yaml.YAMLError) -> str:
    mark = getattr(why, "problem_mark", None)
    return f" line {mark.line + 1}" if mark is not None else ""


def _problem(why: yaml.YAMLError) -> str:
    # The default text quotes the line, which may hold a secret.
    return str(getattr(why, "problem", None) or "unreadable")
