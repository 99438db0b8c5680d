"""How a row becomes what the port shows. Rows come as JSON arrays, one text for a whole batch (see bulk)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import apsw
import msgspec

from wrasse.backends.sqlite.bulk import numbers
from wrasse.backends.sqlite.step import DEAD, DELAYED, DONE, HELD, READY
from wrasse.clock import from_micros, to_micros
from wrasse.ports.jobs import ERROR_CHARS_MAX, Hold, JobState, Place, Reason

PLACES = {READY: Place.READY, DELAYED: Place.READY, HELD: Place.HELD, DONE: Place.DONE, DEAD: Place.DEAD}
INLINE_BYTES_MAX = 1_024  # longer payloads stand apart
_MICROSECOND = timedelta(microseconds=1)


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a change looks at before it is made."""

    seq: int
    id: str
    place: int
    queue: str
    token: int
    nonce: str
    until: int | None
    worker: str
    taken_at: int | None
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    lasting: int
    size: int
    team: str | None  # the group that has not counted it yet
    kept_until: int  # of a done job whose result is kept, else 0

    def held_by(self, hold: Hold) -> bool:
        """Whether this hold is the newest one."""
        return self.token == hold.token and self.nonce == hold.nonce


class StateRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row as a listing needs it. `order` and `seq` are its position there."""

    order: int
    seq: int
    id: str
    kind: str
    queue: str
    priority: str
    size: int
    place: int
    token: int
    nonce: str
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    created_at: int
    ready_at: int
    worker: str
    taken_at: int | None
    beat_at: int | None
    until: int | None
    finished_at: int | None
    reason: Reason | None
    error: str
    keep: int


class Extras(msgspec.Struct, frozen=True, omit_defaults=True):
    """What few jobs have, as it is stored: durations in microseconds."""

    unique: str = ""
    window: int = 0
    keep: int = 0
    group: str = ""


class BodyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row as whoever runs the job needs it. `payload` is in hex; None if it is long."""

    seq: int
    id: str
    kind: str
    queue: str
    priority: str
    payload: str | None
    headers: str | None
    not_before: int | None
    delay: int | None
    timeout: int | None
    lasting: int
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    created_at: int
    until: int | None
    extras: str | None


def _columns(row: type[msgspec.Struct], *renamed: tuple[str, str]) -> str:
    """The SQL of one such row as a JSON array."""
    names = dict(renamed)
    return f"json_array({', '.join(names.get(name, name) for name in row.__struct_fields__)})"


FACT = _columns(
    Fact,
    ("team", "iif(member, extras ->> '$.group', NULL)"),
    ("kept_until", "iif(keep > 0 AND place = 3, finished_at + keep, 0)"),
)
BODY = _columns(BodyRow, ("payload", "CASE WHEN payload IS NOT NULL THEN hex(payload) END"))
decode_numbers = msgspec.json.Decoder(list[int]).decode
decode_texts = msgspec.json.Decoder(list[str]).decode
decode_facts = msgspec.json.Decoder(list[Fact]).decode
decode_states = msgspec.json.Decoder(list[StateRow]).decode
decode_bodies = msgspec.json.Decoder(list[BodyRow]).decode
decode_extras = msgspec.json.Decoder(Extras).decode


def state_columns(order: str) -> str:
    """The SQL of a StateRow in a listing by this column."""
    return _columns(StateRow, ("order", order))


def state_of(row: StateRow, now: int) -> JobState:
    """As a listing shows it. What was delayed until now is ready, whether or not anybody has moved it yet."""
    return JobState(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        priority=row.priority,
        size=row.size,
        place=PLACES[row.place],
        token=row.token,
        nonce=row.nonce,
        attempts=row.attempts,
        failures=row.failures,
        rescues=row.rescues,
        interruptions=row.interruptions,
        created_at=from_micros(row.created_at),
        not_before=from_micros(row.ready_at) if row.place == DELAYED and row.ready_at > now else None,
        worker=row.worker,
        taken_at=instant(row.taken_at),
        beat_at=instant(row.beat_at),
        until=instant(row.until),
        finished_at=instant(row.finished_at),
        kept_until=instant(row.finished_at + row.keep) if row.keep and row.finished_at and row.place == DONE else None,
        reason=row.reason,
        error=row.error,
    )


def long_payloads(db: apsw.Connection, seqs: Sequence[int], longest: int) -> dict[int, bytes]:
    """Those payloads of these jobs that stand apart."""
    if longest <= INLINE_BYTES_MAX:
        return {}
    return dict(db.execute("SELECT seq, payload FROM payloads WHERE seq IN carray(?)", (numbers(seqs),)))


def instant(micros: int | None) -> datetime | None:
    """An instant that may be missing."""
    return None if micros is None else from_micros(micros)


def micros(instant: datetime | None) -> int | None:
    """An instant that may be missing, as it is stored."""
    return None if instant is None else to_micros(instant)


def span(duration: timedelta) -> int:
    """A duration as it is stored."""
    return duration // _MICROSECOND


def error_text(error: str) -> str:
    """An error as it is stored: bounded, and storable whatever a handler raised."""
    return error[:ERROR_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
