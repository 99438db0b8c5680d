"""The shape of keys below a root: what belongs together, whose it is, and what is foreign. Pure.

`archives/{id}/{op_id}/{file}`: every name in braces stands for one part of a path, `{file*}` for any number of them.
The directory of the last part is the unit: its files live and die together. The directory of the owner is the group. A
key of any other shape is foreign: it is reported and never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wrasse.errors import ConfigError

DIRECTORY = "directory"
OBJECT = "object"
NOBODY = "none"
_NAME = re.compile(r"\{([a-z_][a-z0-9_]*)(\*?)\}")
_SURROGATE = re.compile("[\ud800-\udfff]")  # as which Python reads a byte of an argument that is not UTF-8
_BRACE = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key belongs: its unit, and its group, empty where there are none."""

    unit: bytes
    group: bytes


@dataclass(frozen=True, slots=True)
class Template:
    """A shape. `pattern` matches whole keys; its parts 1 and 2 are the directory and the group of a key. `units`
    matches the names of units."""

    text: str
    unit: str
    pattern: re.Pattern[bytes]
    units: re.Pattern[bytes]
    grouped: bool

    @property
    def directories(self) -> bool:
        """Whether units are directories."""
        return self.unit == DIRECTORY

    def place(self, key: bytes) -> Place | None:
        """Where a key belongs; None if it is foreign."""
        found = self.pattern.fullmatch(key)
        if found is None:
            return None
        unit = key[: found.end("unit")] if self.unit == DIRECTORY else key
        return Place(unit, key[: found.end("group")])

    def group_of(self, unit: bytes) -> bytes:
        """The group of a unit, from its name alone."""
        found = self.units.fullmatch(unit)
        return b"" if found is None else unit[: found.end("group")]


def parse_template(text: str, *, unit: str = DIRECTORY, owner: str = "") -> Template:
    """The shape that a text describes. `owner` names the part that says whose a unit is, or is `none`; without one it
    is the first part with a name, if units lie below it."""
    segments = text.split("/")
    if len(segments) < 2 or not all(segments) or text.startswith("/"):
        raise _wrong(text, "it needs a directory first, and no empty part")
    if _SURROGATE.search(text):
        raise _wrong(text, "it is not UTF-8")
    if _BRACE.search(_NAME.sub("", text)):
        raise _wrong(text, "a brace is not closed, or its name is not lower-case letters, digits and _")
    names = [found.group(1) for found in _NAME.finditer(text)]
    if len(set(names)) < len(names):
        raise _wrong(text, "a name stands in it twice")
    if any(star for segment in segments[:-1] for _, star in _NAME.findall(segment)):
        raise _wrong(text, "only the last part may have a star")
    if _NAME.search(segments[0]):
        raise _wrong(text, "the first part must be fixed, so that the root is not the whole store")
    if not names:
        raise _wrong(text, "it has no name in braces")
    if unit not in (DIRECTORY, OBJECT):
        raise ConfigError(f"a unit is {unit!r}", do="write directory or object")
    below = _owner_segment(text, segments, owner, unit)
    directory = _directory(segments, below)
    whole = re.compile((directory + _expression(segments[-1])).encode(), re.DOTALL)
    units = re.compile(directory.encode(), re.DOTALL) if unit == DIRECTORY else whole
    return Template(text, unit, whole, units, below is not None)


def _owner_segment(text: str, segments: list[str], owner: str, unit: str) -> int | None:
    """Which directory is the group: strictly above the unit, or there is none."""
    if owner == NOBODY:
        return None
    last = len(segments) - (2 if unit == DIRECTORY else 1)
    for index, segment in enumerate(segments):
        named = [name for name, _ in _NAME.findall(segment)]
        if owner in named or (not owner and named):
            if index < last:
                return index
            if not owner:
                return None
            raise _wrong(text, f"{{{owner}}} is the owner and must be a directory above the unit")
    raise _wrong(text, f"it has no {{{owner}}}, which is to be the owner")


def _directory(segments: list[str], group: int | None) -> str:
    """The expression of the directory of a key, with the group in it."""
    parts = [_expression(segment) + "/" for segment in segments[:-1]]
    above = "" if group is None else "".join(parts[: group + 1])
    rest = "".join(parts if group is None else parts[group + 1 :])
    return f"(?P<unit>(?P<group>{above}){rest})"


def _expression(segment: str) -> str:
    text, last = "", 0
    for found in _NAME.finditer(segment):
        text += re.escape(segment[last : found.start()]) + (".+" if found.group(2) else "[^/]+")
        last = found.end()
    return text + re.escape(segment[last:])


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} is no shape of keys: {why}", do="write archives/{id}/{op_id}/{file}")
