"""Decodes rows to the values of the port. Rows are read as JSON arrays, in one blob for a whole batch.

A batch is decoded at once. Only if that fails it is decoded row by row, so that an invalid row affects that job alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import apsw
import msgspec

from wrasse.backends.sqlite.write_transaction import DEAD, DONE, READY, RUNNING, SCHEDULED, numbers
from wrasse.bounded import UNREADABLE, why
from wrasse.clock import from_micros, to_micros
from wrasse.ports.jobs import Claim, JobInfo, JobState, Reason

STATES = {
    READY: JobState.READY,
    SCHEDULED: JobState.READY,
    RUNNING: JobState.RUNNING,
    DONE: JobState.DONE,
    DEAD: JobState.DEAD,
}
INLINE_BYTES_MAX = 1_024  # longer payloads are stored separately
_MICROSECOND = timedelta(microseconds=1)
Micros = TypeVar("Micros", int, int | None)


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The columns that a change needs to decide."""

    seq: int
    id: str
    state: int
    queue: str
    token: int
    nonce: str
    deadline: int | None
    worker: str
    claimed_at: int | None
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    lasting: int
    size: int
    member_of: str | None  # the group that has not counted it yet
    kept_until: int  # of a done job whose result is kept, else 0

    def held_by(self, claim: Claim) -> bool:
        """Whether this claim is the current one."""
        return self.token == claim.token and self.nonce == claim.nonce


class StateRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row for a listing. `order` and `seq` are its position there."""

    order: int
    seq: int
    id: str
    kind: str
    queue: str
    priority: str
    size: int
    state: int
    token: int
    nonce: str
    attempts: int
    failures: int
    rescues: int
    interruptions: int
    created_at: int
    ready_at: int
    worker: str
    claimed_at: int | None
    heartbeat_at: int | None
    deadline: int | None
    finished_at: int | None
    reason: Reason | None
    error: str
    keep: int


class Extras(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rarely used columns in their stored form: durations in microseconds."""

    unique: str = ""
    window: int = 0
    keep: int = 0
    group: str = ""


class BodyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row for the worker that runs the job. `payload` is in hex; None if it is long."""

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
    deadline: int | None
    extras: str | None


@dataclass(frozen=True, slots=True)
class Invalid:
    """A row that is not a valid job, and why."""

    seq: int
    error: str


def _columns(row: type[msgspec.Struct], *renamed: tuple[str, str]) -> str:
    """The SQL of one such row as a JSON array."""
    names = dict(renamed)
    return f"json_array({', '.join(names.get(name, name) for name in row.__struct_fields__)})"


FACT = _columns(
    Fact,
    ("member_of", "iif(member AND json_valid(extras), extras ->> '$.group', NULL)"),
    ("kept_until", "iif(keep > 0 AND state = 3, finished_at + keep, 0)"),
)
BODY = _columns(BodyRow, ("payload", "CASE WHEN payload IS NOT NULL THEN hex(payload) END"))
_decode_facts = msgspec.json.Decoder(list[Fact]).decode
_decode_states = msgspec.json.Decoder(list[StateRow]).decode
_decode_state = msgspec.json.Decoder(StateRow).decode
_decode_bodies = msgspec.json.Decoder(list[BodyRow]).decode
_decode_body = msgspec.json.Decoder(BodyRow).decode
_decode_each = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_extras = msgspec.json.Decoder(Extras).decode


def state_columns(order: str) -> str:
    """The SQL of a StateRow in a listing by this column."""
    return _columns(StateRow, ("order", order))


def decode_facts(rows: bytes) -> list[Fact]:
    """The rows of a batch. An invalid one is read as closely as possible: another id or nonce matches no claim."""
    try:
        return _decode_facts(rows)
    except UNREADABLE:
        return [Fact(*_converted_to(Fact, raw)) for raw in _decode_each(rows)]


def decode_bodies(rows: bytes) -> tuple[list[BodyRow], list[Invalid]]:
    """The rows of a batch, and those that are invalid."""
    try:
        return _decode_bodies(rows), []
    except UNREADABLE:
        pass
    found: list[BodyRow] = []
    invalid: list[Invalid] = []
    for raw in _decode_each(rows):
        try:
            found.append(_decode_body(raw))
        except UNREADABLE as error:
            invalid.append(Invalid(_values(raw)[0], why(error)))
    return found, invalid


def decode_states(rows: bytes) -> list[StateRow]:
    """The rows of a batch; an invalid one has a reason and an error that say so."""
    try:
        return _decode_states(rows)
    except UNREADABLE:
        return [_state_row(raw) for raw in _decode_each(rows)]


def _state_row(raw: msgspec.Raw) -> StateRow:
    try:
        return _decode_state(raw)
    except UNREADABLE as error:
        row = StateRow(*_converted_to(StateRow, raw))
        return msgspec.structs.replace(
            row, id=row.id or f"unreadable-{row.seq}", reason=Reason.INVALID_PAYLOAD, error=flaw_of(row.seq, why(error))
        )


def _values(raw: msgspec.Raw) -> list[Any]:
    """The columns of an invalid row, with a replacement for each invalid byte."""
    found: list[Any] = msgspec.json.decode(bytes(raw).decode("utf-8", "replace"))
    return found


def _converted_to(row: type[msgspec.Struct], raw: msgspec.Raw) -> list[Any]:
    """The values of such a row, each as closely as possible."""
    return [
        _converted(value, field.type) for value, field in zip(_values(raw), msgspec.structs.fields(row), strict=True)
    ]


def _converted(value: object, kind: Any) -> Any:
    """The value of a column, or an empty one."""
    try:
        return msgspec.convert(value, kind)
    except UNREADABLE:
        return {int: 0, str: ""}.get(kind)


def flaw_of(seq: int, error: str) -> str:
    """The error text of an invalid row."""
    return f"the row {seq} of the table jobs is invalid: {error}"


def state_of(row: StateRow, now: int) -> JobInfo:
    """A row for a listing; one with invalid values is shown without them, with a reason and an error that say so."""
    try:
        return _state_of(row, now)
    except UNREADABLE as error:
        instants = ("created_at", "ready_at", "claimed_at", "heartbeat_at", "deadline", "finished_at")
        fixed: dict[str, Any] = {name: in_calendar(getattr(row, name), now) for name in instants}
        if row.state not in STATES:
            fixed["state"] = DEAD
        flaw = flaw_of(row.seq, why(error))
        return _state_of(msgspec.structs.replace(row, **fixed, keep=0, reason=Reason.INVALID_PAYLOAD, error=flaw), now)


def in_calendar(micros: Micros, now: int) -> Micros | int:
    """The instant; now instead of one that the calendar does not have."""
    try:
        instant(micros)
    except OverflowError:
        return now
    return micros


def _state_of(row: StateRow, now: int) -> JobInfo:
    """A scheduled job that is due by now is ready, whether or not it has been promoted yet."""
    return JobInfo(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        priority=row.priority,
        size=row.size,
        state=STATES[row.state],
        token=row.token,
        nonce=row.nonce,
        attempts=row.attempts,
        failures=row.failures,
        rescues=row.rescues,
        interruptions=row.interruptions,
        created_at=from_micros(row.created_at),
        not_before=from_micros(row.ready_at) if row.state == SCHEDULED and row.ready_at > now else None,
        worker=row.worker,
        claimed_at=instant(row.claimed_at),
        heartbeat_at=instant(row.heartbeat_at),
        deadline=instant(row.deadline),
        finished_at=instant(row.finished_at),
        kept_until=instant(row.finished_at + row.keep) if row.keep and row.finished_at and row.state == DONE else None,
        reason=row.reason,
        error=row.error,
    )


def long_payloads(db: apsw.Connection, seqs: Sequence[int], longest: int) -> dict[int, bytes]:
    """Those payloads of these jobs that are stored separately."""
    if longest <= INLINE_BYTES_MAX:
        return {}
    return dict(db.execute("SELECT seq, payload FROM payloads WHERE seq IN carray(?)", (numbers(seqs),)))


def instant(micros: int | None) -> datetime | None:
    """An instant that may be missing."""
    return None if micros is None else from_micros(micros)


def micros(instant: datetime | None) -> int | None:
    """An instant that may be missing, in its stored form."""
    return None if instant is None else to_micros(instant)


def span(duration: timedelta) -> int:
    """A duration in its stored form."""
    return duration // _MICROSECOND
