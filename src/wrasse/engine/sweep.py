"""What a sweep is: find suspects, decide about each, apply the actions. Read this file first.

A sweep takes away what nobody holds. It is three small methods and no loop: the engine pages, budgets, guards, keeps
the cursor, journals, counts and knows whether this is a dry run.

    find     reads one page of suspects, in the order that errs on the safe side; changes nothing
    decide   judges one suspect at the backend's time; pure: no I/O, clock, randomness or log
    apply    makes one atomic change per action, each under its precondition

The lease that makes a sweep run in one place only saves work; the precondition of each change saves data. Assume
that two of them run.

A sweep is a frozen dataclass. Fields without a default are ports; fields with one are settings of that name under
`sweeps.<name>` in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from wrasse.ports.journal import Line
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

S = TypeVar("S")
C = TypeVar("C")

# Of a field with a default that is no setting: whoever builds the sweep may fill it. field(metadata=WIRED)
WIRED: Mapping[str, bool] = {"wired": True}


@dataclass(frozen=True, slots=True)
class Keep:
    """The verdict that a suspect is innocent, or not ripe. Reasons are few and short: they label a metric."""

    reason: str


@dataclass(frozen=True, slots=True)
class Action(Generic[C]):
    """The verdict that something is to be done: `verb` to `suspect` because of `reason`. `change` is what apply
    hands to the port; nothing else looks inside."""

    verb: str
    suspect: str
    reason: str
    change: C


class Sweep(Protocol[S, C]):
    """The protocol. `batch_max` is how many actions one apply gets; `each` is whether every action has a journal
    line of its own (False: one line per batch, for sweeps whose actions are many and unremarkable)."""

    name: ClassVar[str]
    each: ClassVar[bool]

    @property
    def batch_max(self) -> int: ...

    async def find(self, after: str | None, limit: int) -> Page[S]:
        """One page of suspects after this cursor. Reads only."""
        ...

    def decide(self, suspect: S, at: datetime) -> Action[C] | Keep:
        """The verdict on one suspect at the backend's time."""
        ...

    async def apply(self, actions: Sequence[Action[C]]) -> Sequence[Outcome]:
        """Makes the changes, at most `batch_max`, and says how each ended."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A sweep with something long to do before its first page. May be cancelled at any time."""

    async def prepare(self) -> None: ...


@runtime_checkable
class PreparesDry(Protocol):
    """A sweep whose `prepare` notes something: in a dry run this is called instead, and leaves no trace."""

    async def prepare_dry(self) -> None: ...


@runtime_checkable
class Resolves(Protocol):
    """A sweep that can find out how intents ended which a crash left open."""

    async def resolve(self, lines: Sequence[Line]) -> Sequence[Outcome]: ...
