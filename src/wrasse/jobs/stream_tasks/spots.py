"""Where a task stands among those of its type, and which tasks a filter means; pure.

A shelf is a type and a place, delayed tasks apart; the turn is the order in which a place is listed. What is written
with a record's spot is also what a listing reads in its cursor, so the two cannot differ.
"""

from __future__ import annotations

from datetime import datetime

from wrasse.clock import to_micros
from wrasse.jobs.stream_tasks.fields import FAR
from wrasse.ports.job_transitions import StoredJob
from wrasse.ports.jobs import Place
from wrasse.ports.page import number_in
from wrasse.ports.shelves import Spot

DELAYED = "delayed"
Position = tuple[int, int, str]  # 0, or 1 among delayed ones; the turn; the id


def shelf_name(task_type: str, shelf: str) -> str:
    """The shelf of a type."""
    return f"{task_type}/{shelf}"


def shelves_of(place: Place) -> tuple[str, ...]:
    """What a listing of a place is made of, in order."""
    return (place.value, DELAYED) if place is Place.READY else (place.value,)


def spot_of(stored: StoredJob) -> Spot:
    """Where a task stands."""
    delayed, turn, _ = position_of(stored)
    return Spot(shelf_name(stored.state.queue, DELAYED if delayed else stored.state.place.value), turn)


def position_of(stored: StoredJob) -> Position:
    """A task's position in the listing of its place."""
    state = stored.state
    if state.not_before is not None:
        return 1, to_micros(min(state.not_before, FAR)), state.id
    turns = {
        Place.READY: stored.rank,
        Place.HELD: _micros(state.until),
        Place.DONE: _micros(state.kept_until or state.finished_at),
        Place.DEAD: _micros(state.finished_at),
    }
    return 0, turns[state.place], state.id


def write_position(position: Position) -> str:
    """A cursor that goes on after this position."""
    return ":".join(map(str, position))


def read_position(cursor: str) -> Position:
    """The position in a cursor."""
    shelf, _, rest = cursor.partition(":")
    number, _, id = rest.partition(":")
    return number_in(cursor, shelf), number_in(cursor, number), id


def _micros(at: datetime | None) -> int:
    return 0 if at is None else to_micros(at)
