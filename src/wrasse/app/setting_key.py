"""What is known about a setting besides its name, type and default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """What is known about a setting besides its name, type and default."""

    doc: str
    seed: bool = False  # a design document names it: its bare upper-case name works in the environment too
    secret: bool = False  # never shown
    choices: tuple[str, ...] = ()


def named_in(sources: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether a setting, or any below it, is among those that were set."""
    return lambda path: any(known == path or known.startswith(path + ".") for known in sources)
