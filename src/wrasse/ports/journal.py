"""Journal: one kept line per action: what, why, when, which run, and how it ended.

Promise. `intend` is durable before it returns, and the action comes after it; `settle` writes the outcome. An intent
without an outcome is shown as unknown and is resolved by the next run, so that a crash never hides what may have
happened.

Costs. intend and settle: one round trip for a whole batch. page: one round trip, flat in the number of lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page


@dataclass(frozen=True, slots=True)
class Intent:
    """What a run is about to do to one suspect. `id` grows with time: it is the line's place in the journal."""

    id: str
    run: str
    sweep: str
    verb: str  # requeue, dead_letter, delete, trim, ...
    suspect: str  # the id of what is swept; never a payload
    reason: str
    count: int = 1  # how many things the line stands for, where a sweep journals by batch


STORED_SWEEPS = {"orphan_objects": "orphan_archives"}
"""Sweeps that are stored under another name than they have: in lease keys, states and journals, old lines included."""

STORED_VERBS = {"dead_letter": "bury"}
"""Verbs that journals write by another name."""

_SWEEPS = {stored: name for name, stored in STORED_SWEEPS.items()}
_VERBS = {stored: verb for verb, stored in STORED_VERBS.items()}


def stored_sweep(instance: str) -> str:
    """The name that the instance of a sweep, such as `stuck_jobs@tasks`, is stored under."""
    return _renamed(instance, STORED_SWEEPS)


def sweep_from_stored(name: str) -> str:
    """The instance that is stored under this name."""
    return _renamed(name, _SWEEPS)


def stored_intent(intent: Intent) -> Intent:
    """An intent as journals write it."""
    sweep, verb = stored_sweep(intent.sweep), STORED_VERBS.get(intent.verb, intent.verb)
    return intent if (sweep, verb) == (intent.sweep, intent.verb) else replace(intent, sweep=sweep, verb=verb)


def intent_from_stored(intent: Intent) -> Intent:
    """The intent that a journal wrote so."""
    sweep, verb = sweep_from_stored(intent.sweep), _VERBS.get(intent.verb, intent.verb)
    return intent if (sweep, verb) == (intent.sweep, intent.verb) else replace(intent, sweep=sweep, verb=verb)


def _renamed(instance: str, names: Mapping[str, str]) -> str:
    sweep, at, where = instance.partition("@")
    return names.get(sweep, sweep) + at + where


@dataclass(frozen=True, slots=True)
class Line:
    """An intent with the time it was written and, once known, its outcome."""

    intent: Intent
    intended_at: datetime
    outcome: Outcome | None = None  # None: not known yet
    detail: str = ""
    settled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SettledIntent:
    """How the intent with this id ended."""

    id: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines to show; every field that is set must match."""

    sweep: str | None = None
    run: str | None = None
    suspect: str | None = None
    outcome: Outcome | None = None
    open: bool | None = None  # True: only lines without an outcome
    since: datetime | None = None
    until: datetime | None = None


def matches(line: Line, where: LineFilter) -> bool:
    """Whether every field that is set matches."""
    return (
        (where.sweep is None or line.intent.sweep == where.sweep)
        and (where.run is None or line.intent.run == where.run)
        and (where.suspect is None or line.intent.suspect == where.suspect)
        and (where.outcome is None or line.outcome is where.outcome)
        and (where.open is None or (line.outcome is None) is where.open)
        and (where.since is None or line.intended_at >= where.since)
        and (where.until is None or line.intended_at < where.until)
    )


class Journal(Protocol):
    """The lines of all runs."""

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        """Writes the intents, durably, all or none; gives the time they carry."""
        ...

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        """Writes the outcomes. Settling a line twice keeps the first outcome unless that was `unknown`."""
        ...

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        """Lines in the order of their ids; `newest` turns the order round."""
        ...

    async def delete(self, before: datetime, limit: int) -> int:
        """Forgets up to `limit` settled lines written before this; gives how many. Open lines are kept."""
        ...
