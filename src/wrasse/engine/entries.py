"""The journal lines of one batch: which there are, and how each ended. Pure but for the ids.

Most sweeps have a line per action. A sweep whose actions are many and unremarkable has one per batch and verb, which
names the first suspect and counts the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wrasse.engine.sweep import Action, Sweep
from wrasse.ids import Ids
from wrasse.ports.journal import Intent, Settled
from wrasse.ports.outcome import Outcome

# The worst that happened to any of them is what a line that stands for many says.
_WORST_FIRST = (Outcome.UNKNOWN, Outcome.FAILED, Outcome.DONE, Outcome.LOST)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line to be, and which actions of the batch it stands for."""

    intent: Intent
    indexes: tuple[int, ...]


def entries_of(
    actions: Sequence[Action[Any]], sweep: Sweep[Any, Any], name: str, run: str, ids: Ids
) -> list[Entry]:
    """The lines of a batch, in the order of its actions."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, action in enumerate(actions):
        groups.setdefault((action.verb, index if sweep.each else 0), []).append(index)
    return [
        Entry(
            Intent(ids.new(), run, name, verb, actions[indexes[0]].suspect, actions[indexes[0]].reason, len(indexes)),
            tuple(indexes),
        )
        for (verb, _), indexes in groups.items()
    ]


def verdict(entry: Entry, outcomes: Sequence[Outcome]) -> Settled:
    """How a line ended, given how each action of the batch did."""
    counts = Counter(outcomes[index] for index in entry.indexes)
    detail = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    worst = next(outcome for outcome in _WORST_FIRST if counts[outcome])
    return Settled(entry.intent.id, worst, detail if len(entry.indexes) > 1 else "")
