"""YAML parsed to nodes with line numbers, so that a mistake can be located, and nodes converted to types of settings.

Only scalars, lists and maps are allowed; any other tag is refused. Size, depth, and the expansion of aliases and merges
are limited before nodes are created, so that a short text cannot cost much time or memory.

`convert` raises `Unfit`, which says what is wrong and what to write. Values of secret settings are never quoted in
messages; the caller passes `hidden` for those.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import yaml

from wrasse.config.setting_key import key_of
from wrasse.duration import parse_duration
from wrasse.errors import ConfigError, UnknownName

BYTES_MAX = 1 << 20  # of a settings file
NODES_MAX = 20_000  # keys and values, with every alias and merge counted as what it stands for
DEPTH_MAX = 50  # lists and maps inside each other
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge")
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


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


class Unfit(Exception):
    """An invalid value of a setting: what is wrong, and what to write instead."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what)
        self.what = what
        self.do = do


def convert(node: yaml.Node, want: object, *, hidden: bool = False, flat: bool = False, filled: bool = False) -> object:
    """The value of a node as the type `want`. `flat`: the node is one text, in which a list or map is YAML.
    `filled`: an empty text is refused."""
    if want is object:
        try:
            return plain_value(node)
        except ConfigError as why:
            raise Unfit(f"is invalid: {why.message}", why.do) from why
    optional = typing.get_origin(want) in (typing.Union, types.UnionType)
    if optional:
        want = next(arm for arm in typing.get_args(want) if arm is not type(None))
    if is_null(node):
        if optional:
            return None
        raise Unfit("has no value", "write one, or remove the line for the default")
    if filled and isinstance(node, yaml.ScalarNode) and not str(node.value):
        raise Unfit("is empty", "write one, or remove it")
    origin = typing.get_origin(want)
    if origin is tuple:
        item = typing.get_args(want)[0]
        return _structs(node, item, flat) if dataclasses.is_dataclass(item) else _list(node, flat)
    if origin is not None and issubclass(typing.cast(type, origin), Mapping):
        item = typing.get_args(want)[1]
        return _named_structs(node, item, flat) if dataclasses.is_dataclass(item) else _map(node, flat)
    if not isinstance(node, yaml.ScalarNode):
        raise Unfit("is a list or a map instead of one value", f"write {_example(want)}")
    return _scalar(str(node.value), want, hidden)


def _scalar(text: str, want: object, hidden: bool) -> object:
    shown = "its value" if hidden else repr(text)
    if want is str:
        return text
    if want is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        raise Unfit(f"is {shown}, not a yes or no", "write true or false")
    if want is timedelta:
        try:
            return parse_duration(text)
        except ConfigError as why:
            raise Unfit(f"is invalid: {why.message}", why.do) from why
    if want in (int, float):
        try:
            number = int(text.replace("_", "")) if want is int else float(text)
        except ValueError:
            raise Unfit(
                f"is {shown}, not a {'whole ' if want is int else ''}number", f"write {_example(want)}"
            ) from None
        if number != number or number in (float("inf"), float("-inf")):
            raise Unfit(f"is {shown}", "write a number that is finite")
        return number
    raise AssertionError(f"no conversion to {want}")


def _example(want: object) -> str:
    return {int: "a whole number such as 16", float: "a number such as 0.5", bool: "true or false",
            timedelta: "a duration such as 30s"}.get(typing.cast(type, want), "one text")  # fmt: skip


def _list(node: yaml.Node, flat: bool) -> tuple[str, ...]:
    if flat and isinstance(node, yaml.ScalarNode):
        text = str(node.value).strip()
        if not text.startswith("["):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        node = _inner(text)
    if not isinstance(node, yaml.SequenceNode):
        raise Unfit("is not a list", "write [first, second]")
    return tuple(_text(item) for item in node.value)


def _structs(node: yaml.Node, want: object, flat: bool) -> tuple[object, ...]:
    """A list of maps, each with the fields of a struct."""
    assert isinstance(want, type), "a struct"
    if flat and isinstance(node, yaml.ScalarNode):
        node = _inner(str(node.value))
    if not isinstance(node, yaml.SequenceNode):
        raise Unfit("is not a list", "write one entry per line, each begun with a dash")
    return tuple(_struct(item, want, number) for number, item in enumerate(node.value, 1))


def _named_structs(node: yaml.Node, want: object, flat: bool) -> Mapping[str, object]:
    """A map of maps, each with the fields of a struct."""
    assert isinstance(want, type), "a struct"
    if flat and isinstance(node, yaml.ScalarNode):
        node = _inner(str(node.value))
    if not isinstance(node, yaml.MappingNode):
        raise Unfit("is not a map", "write {name: {setting: value}}")
    return {entry.name: _struct(entry.value, want, repr(entry.name)) for entry in entries(node)}


def _struct(node: yaml.Node, want: type, number: int | str) -> object:
    short = getattr(want, "short", None)
    if short is not None and isinstance(node, yaml.ScalarNode):
        # A single value stands for the main setting of the struct.
        name = yaml.ScalarNode("tag:yaml.org,2002:str", short, node.start_mark, node.end_mark)
        node = yaml.MappingNode("tag:yaml.org,2002:map", [(name, node)], node.start_mark, node.end_mark)
    if not isinstance(node, yaml.MappingNode):
        raise Unfit(f"has an entry {number} that is not a map", "write {name: value}")
    hints, fields = typing.get_type_hints(want), {each.name: each for each in dataclasses.fields(want)}
    values: dict[str, object] = {}
    for entry in entries(node):
        if entry.name not in fields:
            why = UnknownName(entry.name, fields, where=f"its entry {number}")
            raise Unfit(f"is invalid: {why.message}", why.do)
        key = key_of(fields[entry.name])
        try:
            value = values[entry.name] = convert(entry.value, hints[entry.name], filled=key.filled)
        except Unfit as wrong:
            raise Unfit(f"has an entry {number} whose {entry.name} {wrong.what}", wrong.do) from wrong
        if key.choices and value not in key.choices:
            raise Unfit(
                f"has an entry {number} whose {entry.name} is {value!r}", f"use one of: {', '.join(key.choices)}"
            )
    made: object = want(**values)
    return made


def _map(node: yaml.Node, flat: bool) -> Mapping[str, str]:
    if flat and isinstance(node, yaml.ScalarNode):
        node = _inner(str(node.value)) if str(node.value).strip() else yaml.MappingNode("tag:yaml.org,2002:map", [])
    if not isinstance(node, yaml.MappingNode):
        raise Unfit("is not a map", "write {name: value}")
    return {entry.name: _text(entry.value) for entry in entries(node)}


def _inner(text: str) -> yaml.Node:
    try:
        node = parse_yaml(text)
    except yaml.YAMLError:
        raise Unfit("is not YAML", "write [first, second] or {name: value}") from None
    if node is None:
        raise Unfit("is empty", "write [first, second] or {name: value}")
    return node


def _text(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or is_null(node):
        raise Unfit("contains values that are not texts", "write texts only, in quotes if necessary")
    return str(node.value)
