"""Where a task stands among those of its type, and which tasks a filter means; pure.

A shelf is a type and a place, delayed tasks apart; the turn is the order in which a place is listed. What is written
with a record's spot is also what a listing reads in its cursor, so the two cannot differ.
"""

from __future__ import annotations

from wrasse.ports.job_transitions import Shelf, StoredJob
from wrasse.ports.jobs import Place
from wrasse.ports.page import number_in
from wrasse.ports.shelves import Spot

Position = tuple[int, int, str]  # 0, or 1 among delayed ones; the turn; the id


def shelf_name(task_type: str, shelf: str) -> str:
    """The shelf of a type."""
    return f"{task_type}/{shelf}"


def shelves_of(place: Place) -> tuple[str, ...]:
    """What a listing of a place is made of, in order."""
    return (Shelf.READY, Shelf.DELAYED) if place is Place.READY else (place.value,)


def spot_of(stored: StoredJob) -> Spot:
    """Where a task stands."""
    return Spot(shelf_name(stored.state.queue, stored.shelf), stored.turn)


def position_of(stored: StoredJob) -> Position:
    """A task's position in the listing of its place."""
    return int(stored.delayed), stored.turn, stored.state.id


def write_position(position: Position) -> str:
    """A cursor that goes on after this position."""
    return ":".join(map(str, position))


def read_position(cursor: str) -> Position:
    """The position in a cursor."""
    shelf, _, rest = cursor.partition(":")
    number, _, id = rest.partition(":")
    return number_in(cursor, shelf), number_in(cursor, number), id
