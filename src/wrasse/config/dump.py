"""Settings for display: in the form in which they are written, without secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from wrasse.config.load import Config
from wrasse.config.redaction import hide
from wrasse.config.schema import Leaf, leaves
from wrasse.config.setting_key import key_of
from wrasse.config.settings import SweepSettings
from wrasse.duration import format_duration

SECRET = "********"


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting: its value as in JSON, and its source."""

    leaf: Leaf
    value: object
    source: str


def shown(config: Config) -> Iterator[ShownSetting]:
    """Every setting, in the order of the file."""
    for leaf in leaves(config.own).values():
        value = _form(_value(config, leaf.path), secret=leaf.key.secret)
        source = hide(config.sources.get(leaf.path, "default"))
        if leaf.path.startswith("backends.") and not value:
            home = config.homes.ports[leaf.path.removeprefix("backends.")]
            value, source = ("", home.by) if home.refused else (str(home), home.by)
        yield ShownSetting(leaf, value, source)


def has_secrets(config: Config) -> bool:
    """Whether the file of this configuration contains secrets."""
    if config.file is None:
        return False
    if config.file is None:
        return False
    name, known = config.file.name, leaves(config.own).values()
    of_file = [each for each in known if config.sources.get(each.path, "").startswith(name)]
    return any(_hides(_value(config, each.path), secret=each.key.secret) for each in of_file)


def _hides(value: object, *, secret: bool) -> bool:
    if isinstance(value, Mapping):
        return any(_hides(each, secret=secret) for each in value.values())
    if isinstance(value, tuple):
        return any(_hides(each, secret=secret) for each in value)
    if dataclasses.is_dataclass(value):
        hidden = _secret_fields(type(value))
        names = [each.name for each in dataclasses.fields(value)]
        return any(_hides(getattr(value, each), secret=secret or each in hidden) for each in names)
    return isinstance(value, str) and bool(value) and (secret or hide(value) != value)


def written(value: object) -> str:
    """The value as YAML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _plain(value) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(written(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{written(str(key))}: {written(each)}" for key, each in value.items()) + "}"
    return "null" if value is None else str(value)


def _plain(text: str) -> bool:
    word = text.isidentifier() and text not in ("true", "false", "yes", "no", "on", "off", "null")
    return word or (text[:1].isdigit() and text[-1:] in "smhd" and text.isalnum())  # or a duration


def _value(config: Config, path: str) -> object:
    found: object = config.settings
    for part in path.split("."):
        if isinstance(found, SweepSettings) and part in found.fields:
            found = found.fields[part]
        else:
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
    assert not dataclasses.is_dataclass(found), f"{path} is a setting"
    return found


def _form(value: object, *, secret: bool) -> object:
    if secret:
        return SECRET if value else ""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {key: _form(each, secret=False) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        # One entry of a list: unset fields are omitted.
        own = {each.name: (getattr(value, each.name), each.default) for each in dataclasses.fields(value)}
        hidden = _secret_fields(type(value))
        return {name: _form(each, secret=name in hidden) for name, (each, default) in own.items() if each != default}
    return [_form(each, secret=False) for each in value] if isinstance(value, tuple) else value


def _secret_fields(kind: type) -> frozenset[str]:
    """The secret settings of an entry."""
    return frozenset(each.name for each in dataclasses.fields(kind) if key_of(each).secret)
