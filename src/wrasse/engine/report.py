"""What one run of one sweep saw, did and left. State, command line, status page and metrics read it.

Everything in it is bounded and free of payloads: counts, few reasons, ids, and the kinds of errors.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import PurePath

import msgspec

from wrasse.errors import WrasseError
from wrasse.ports.outcome import Outcome

ERRORS_MAX = 5
ERROR_CHARS_MAX = 300
REASONS_MAX = 20
OTHER = "other"
BACKEND_DOWN = "backend_down"
ERROR = "error"
TOLD_EVERY = timedelta(minutes=10)
_NONE: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Planned:
    """One line of a plan: what would be done to what, and why."""

    verb: str
    suspect: str
    reason: str


class Report(msgspec.Struct, frozen=True):
    """The summary of one run. `conflict` counts actions whose precondition no longer held.
    `stopped_by` is None when the listing was read to its end; else a limit of the budget, the name of a guard,
    `backend_down` or `error`, with `why` in words."""

    run: str
    sweep: str
    started_at: datetime
    ended_at: datetime
    took: timedelta = timedelta(0)  # by monotonic time: the wall clock may have been set meanwhile
    seen: int = 0
    kept: Mapping[str, int] = msgspec.field(default_factory=lambda: _NONE)
    planned: int = 0
    done: int = 0
    conflict: int = msgspec.field(default=0, name="lost")  # actions whose precondition no longer held
    failed: int = 0
    unknown: int = 0
    stopped_by: str | None = None
    why: str = ""
    dry_run: bool = False
    cursor: str | None = None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a guard had to say although it let the run go on
    plan: tuple[Planned, ...] = ()  # of a dry run only

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to tell: no action, no error, and the whole listing was read."""
        return not (self.planned or self.failed or self.stopped_by or self.notes)

    @property
    def good(self) -> bool:
        """Whether the run did what it set out to do: nothing failed, and no error or outage ended it."""
        return not self.failed and self.stopped_by not in (BACKEND_DOWN, ERROR)


@dataclass(slots=True)
class Totals:
    """All runs of one sweep in this process, summed up, for metrics."""

    runs: int = 0
    seen: int = 0
    kept: int = 0
    done: int = 0
    conflict: int = 0
    failed: int = 0
    unknown: int = 0
    seconds: float = 0.0
    last_good_at: datetime | None = None
    stopped: dict[str, int] = field(default_factory=dict)  # by what: guards and limits, which are few

    def add(self, report: Report) -> None:
        """Counts one more run."""
        self.runs += 1
        self.seen += report.seen
        self.kept += sum(report.kept.values())
        self.done += report.done
        self.conflict += report.conflict
        self.failed += report.failed
        self.unknown += report.unknown
        self.seconds += report.took.total_seconds()
        if report.good:
            self.last_good_at = report.ended_at
        if report.stopped_by is not None:
            self.stopped[report.stopped_by] = self.stopped.get(report.stopped_by, 0) + 1


class RunTally:
    """Counts while a run is under way."""

    __slots__ = ("errors", "failed", "kept", "outcomes", "planned", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.planned = 0
        self.failed = 0  # suspects about which no verdict could be reached
        self.kept: dict[str, int] = {}
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.errors: list[str] = []

    def keep(self, reason: str) -> None:
        """One suspect was kept. Reasons beyond a few are counted as `other`."""
        reason = reason[:ERROR_CHARS_MAX]
        name = reason if reason in self.kept or len(self.kept) < REASONS_MAX else OTHER
        self.kept[name] = self.kept.get(name, 0) + 1

    def fault(self, where: str, error: Exception) -> None:
        """Remembers an error; the first few different ones are enough."""
        text = f"{where}: {describe(error)}"
        if text not in self.errors and len(self.errors) < ERRORS_MAX:
            self.errors.append(text)


def describe(error: BaseException) -> str:
    """An error in one line that cannot carry a payload: our own errors in their words, others by kind and place."""
    if isinstance(error, WrasseError):
        return error.message[:ERROR_CHARS_MAX]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


def worth_telling(report: Report, told: Report | None) -> bool:
    """Whether a report says something new: work was done, or what stops the sweep changed; else every ten minutes."""
    if told is None or report.done or report.conflict or report.unknown:
        return True
    if _trouble(report) != _trouble(told):
        return True
    return report.ended_at - told.ended_at >= TOLD_EVERY


def _trouble(report: Report) -> tuple[object, ...]:
    return report.stopped_by, report.failed > 0, report.errors, report.notes
