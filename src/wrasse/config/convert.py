"""Converts what a person wrote to the type of a setting, or raises an error that says what is wrong.

Values of secret settings are never quoted in messages; the caller passes `hidden` for those.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import timedelta

import yaml

from wrasse.config.setting_key import key_of
from wrasse.config.yaml_file import entries, is_null, parse_yaml, plain_value
from wrasse.duration import parse_duration
from wrasse.errors import ConfigError, UnknownName

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


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
