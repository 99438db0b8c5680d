"""Declaration of a setting: a field with its default and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from typing import TypeVar

T = TypeVar("T")
_KEY = "wrasse"


@dataclass(frozen=True, slots=True)
class Key:
    """The description of a setting besides its name, type and default."""

    doc: str
    seed: bool = False  # named by a design document: its bare upper-case name works in the environment too
    secret: bool = False  # never shown
    choices: tuple[str, ...] = ()
    filled: bool = False  # an empty text is refused, because it would select another backend


def setting(
    default: T,
    doc: str,
    *,
    seed: bool = False,
    secret: bool = False,
    choices: tuple[str, ...] = (),
    filled: bool = False,
) -> T:
    """A field of the settings: its default, and its description."""
    metadata = {_KEY: Key(doc, seed, secret, choices, filled)}
    made: T = field(default=default, metadata=metadata)
    if isinstance(default, dict):
        made = field(default_factory=lambda: default, metadata=metadata)  # never changed
    return made


def key_of(field: Field[object]) -> Key:
    """The description of a field of the settings."""
    found: Key = field.metadata.get(_KEY, Key(""))
    return found


def named_in(sources: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether a setting, or any below it, is among those that were set."""
    return lambda path: any(known == path or known.startswith(path + ".") for known in sources)
