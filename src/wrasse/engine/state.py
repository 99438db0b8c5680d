"""What a sweep remembers between runs and shares between engines: cursor, last reports, and what its guards know.

One record per instance, under the name that its sweep is stored by. It is written at the version that was read, so that
an engine whose lease was lost meanwhile does not put its cursor over a later one: losing that write is the right end
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec.structs import replace

from wrasse.bounded import decoded
from wrasse.engine.report import Report
from wrasse.errors import StoreBroken
from wrasse.ports.journal import stored_sweep, sweep_from_stored
from wrasse.ports.records import VALUE_BYTES_MAX, Collection, Record, Records

ENGINE_STATE = Collection.named(".wrasse/engine")
REPORTS_KEPT = 20
_NONE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class PausedBy:
    """Which guard pauses a sweep, why, and since when: the first of an unbroken row of runs that it stopped."""

    guard: str
    reason: str
    since: datetime


class SweepState(msgspec.Struct, frozen=True):
    """The record. `ran_at` is when the last run began, by the store's clock; reports are oldest first."""

    ran_at: datetime | None = None
    cursor: str | None = None
    paused: PausedBy | None = msgspec.field(default=None, name="held")
    reports: tuple[Report, ...] = ()
    memory: Mapping[str, str] = msgspec.field(default_factory=lambda: _NONE)  # guard -> what it remembers

    @property
    def last(self) -> Report | None:
        """The newest report."""
        return self.reports[-1] if self.reports else None


def after_run(
    state: SweepState, report: Report, ran_at: datetime | None, guards: frozenset[str], memory: Mapping[str, str]
) -> SweepState:
    """The state after one more run. A quiet report takes the place of a quiet one, so that the last twenty reach back
    to the last time something happened."""
    kept = state.reports[:-1] if report.quiet and state.last is not None and state.last.quiet else state.reports
    return replace(
        state,
        ran_at=ran_at,
        cursor=report.cursor,
        paused=_paused(state.paused, report, guards),
        reports=(*kept, report)[-REPORTS_KEPT:],
        memory=memory,
    )


def _paused(before: PausedBy | None, report: Report, guards: frozenset[str]) -> PausedBy | None:
    if report.stopped_by is None or report.stopped_by not in guards:
        return None
    same = before is not None and before.guard == report.stopped_by
    since = before.since if same and before is not None else report.ended_at
    return PausedBy(report.stopped_by, report.why, since)


@dataclass(frozen=True, slots=True)
class LoadedState:
    """A state and the version it was read at; None: there was no record."""

    state: SweepState
    version: str | None


_DECODER = msgspec.json.Decoder(SweepState)


async def load(records: Records, name: str) -> LoadedState:
    """The state of one sweep; a fresh one where none is stored."""
    record = await records.get(stored_sweep(name))
    return LoadedState(SweepState(), None) if record is None else decode_state(name, record)


def decode_state(name: str, record: Record) -> LoadedState:
    """The state in a record; StoreBroken if it holds none."""
    try:
        state: SweepState = decoded(_DECODER.decode, record.value)
        return LoadedState(_renamed(state, sweep_from_stored), record.version)
    except ValueError as error:
        raise StoreBroken(
            f"the state of the sweep {name} is not one that wrasse wrote: {error}",
            do="see who else writes there, then delete the record; the sweep starts over from the first page",
        ) from error


def _encoded(state: SweepState) -> bytes:
    """The bytes of a state. Where names of other programs make it too long for a record, it is kept without what it can
    do without; the sweep then starts over from the first page."""
    state = _renamed(state, stored_sweep)
    for less in (state, replace(state, reports=state.reports[-1:]), SweepState(state.ran_at, paused=state.paused)):
        value = msgspec.json.encode(less)
        if len(value) <= VALUE_BYTES_MAX:
            break
    return value


async def save(records: Records, name: str, loaded: LoadedState, state: SweepState) -> bool:
    """Writes the state unless another engine has gone on from where it was read."""
    key, value = stored_sweep(name), _encoded(state)
    if loaded.version is None:
        return bool(await records.create(key, value))
    return bool(await records.put(key, value, at=loaded.version))


def _renamed(state: SweepState, name: Callable[[str], str]) -> SweepState:
    """With the sweeps in its reports by the names that this gives them."""
    if all(name(report.sweep) == report.sweep for report in state.reports):
        return state
    reports = tuple(replace(report, sweep=name(report.sweep)) for report in state.reports)
    return replace(state, reports=reports)
