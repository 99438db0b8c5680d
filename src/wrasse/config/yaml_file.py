"""Parses YAML to nodes with line numbers, so that a mistake can be located.

Only scalars, lists and maps are allowed; any other tag is refused. Size, depth, and the expansion of aliases and merges
are limited before nodes are created, so that a short text cannot cost much time or memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from wrasse.errors import ConfigError

BYTES_MAX = 1 << 20  # of a settings file
NODES_MAX = 20_000  # keys and values, with every alias and merge counted as what it stands for
DEPTH_MAX = 50  # lists and maps inside each other
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge")
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """One key of a map, its value and its line."""

    name: str
    value: yaml.Node
    line: int


def read_yaml(path: Path) -> yaml.Node | None:
    """The root of the file; None if it is empty. The file must exist."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
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
    """The root node of a text; None if it is empty."""
    _measure(text)
    root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    return None if root is None or is_null(root) else root


class _Open:
    """A list or map that is being parsed: its number of nodes so far, and its anchor."""

    __slots__ = ("anchor", "nodes")

    def __init__(self, anchor: str | None) -> None:
        self.anchor = anchor
        self.nodes = 1


def _measure(text: str) -> None:
    """Raises a YAMLError with a line for a text that is too deep, expands to too much, or has object tags."""
    sizes: dict[str, int] = {}
    document = _Open(None)
    stack = [document]
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            ended = stack.pop()
            _keep(sizes, ended.anchor, ended.nodes)
            stack[-1].nodes += ended.nodes
        elif isinstance(event, yaml.NodeEvent):
            _check_tag(event)
            if isinstance(event, yaml.AliasEvent):
                if any(each.anchor == event.anchor for each in stack):
                    raise _refused(f"the alias *{event.anchor} refers to a node that contains it", event)
                stack[-1].nodes += sizes.get(event.anchor or "", 1)
            elif isinstance(event, yaml.CollectionStartEvent):
                stack.append(_Open(event.anchor))
                if len(stack) > DEPTH_MAX:
                    raise _refused(f"lists and maps are more than {DEPTH_MAX} deep", event)
            else:
                _keep(sizes, event.anchor, 1)
                stack[-1].nodes += 1
        if stack[-1].nodes > NODES_MAX:
            raise _refused(f"with its aliases it has more than {NODES_MAX} keys and values", event)


def _keep(sizes: dict[str, int], anchor: str | None, nodes: int) -> None:
    if anchor is not None:
        sizes[anchor] = nodes


def _check_tag(event: yaml.NodeEvent) -> None:
    tag = getattr(event, "tag", None)
    if tag is not None and tag != "!" and tag not in _TAGS:
        # The tag is not shown: it may be a password that begins with an exclamation mark.
        raise _refused("a value that begins with ! is a tag, which is not allowed; put a text in quotes", event)


def _refused(problem: str, event: yaml.Event) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]  # the C one


def entries(node: yaml.MappingNode) -> Iterator[YamlEntry]:
    """The keys of a map in their order; `<<` merges another map, as usual. ConfigError for a merge of anything else."""
    try:
        yaml.constructor.SafeConstructor().flatten_mapping(node)
    except yaml.YAMLError as why:
        raise ConfigError(
            f"line{_place(why).removeprefix(' line')}: {_problem(why)}", do="write <<: *name of a map"
        ) from None
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        yield YamlEntry(str(name), value, key.start_mark.line + 1)


def is_null(node: yaml.Node) -> bool:
    """Whether a value is missing, or written as null or ~."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def plain_value(node: yaml.Node) -> object:
    """A value of any shape, made of maps, lists, texts, numbers and times. ConfigError for anything else."""
    try:
        value: object = yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.YAMLError as why:
        raise ConfigError(f"a value is not plain YAML: {_problem(why)}", do="remove tags") from None
    except (ValueError, OverflowError) as why:  # a date or a number that cannot be one
        raise ConfigError("a value looks like a date or number, but is not valid", do="put it in quotes") from why
    return value


def scalar(text: str) -> yaml.ScalarNode:
    """A text from elsewhere (environment, command line) as a node."""
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


def _place(why: yaml.YAMLError) -> str:
    mark = getattr(why, "problem_mark", None)
    return f" line {mark.line + 1}" if mark is not None else ""


def _problem(why: yaml.YAMLError) -> str:
    # The default text quotes the line, which may contain a secret.
    return str(getattr(why, "problem", None) or getattr(why, "reason", None) or "unreadable")
