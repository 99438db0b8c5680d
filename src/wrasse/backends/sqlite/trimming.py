"""How far a stream may be trimmed, and trimming it, in one transaction. For the writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import apsw

from wrasse.backends.sqlite.entries import Head, head, measure
from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.step import Step
from wrasse.clock import from_micros
from wrasse.ports.streams import START, EntryId, Trimmed

_FLOOR = """
    SELECT g.delivered_ms, g.delivered_seq, p.ms, p.seq
    FROM entry_groups g LEFT JOIN pending p ON p.entry_group = g.id
      AND p.seq = (SELECT min(seq) FROM pending WHERE entry_group = g.id)
    WHERE g.stream = ? AND g.name = ?
"""
_FORGET = "DELETE FROM pending WHERE entry_group IN (SELECT id FROM entry_groups WHERE stream = ?) AND seq <= ?"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a trim asks for."""

    age: timedelta | None
    below: EntryId | None
    protect: Sequence[str]
    limit: int


def floor(db: apsw.Connection, stream: int, group: str) -> EntryId | None:
    """Everything at or below this is acked by the group; None if there is no such group."""
    found = db.execute(_FLOOR, (stream, group)).get
    if found is None:
        return None
    delivered_ms, delivered_seq, ms, seq = found
    return EntryId(delivered_ms, delivered_seq) if seq is None else EntryId(ms, seq).previous


def trim(step: Step, subject: str, wish: Wish) -> Trimmed:
    """Removes entries from the start of a stream, as far as age, bound and protecting groups allow."""
    now = step.now()
    at = from_micros(now)
    stream = head(step.db, subject)
    if stream is None:
        return Trimmed(0, START, "", False, at)
    upto, held_by = _allowed(step.db, stream, wish, now)
    found = measure(step.db, stream.id, START, upto, wish.limit)
    if not found.count:
        return Trimmed(0, upto, held_by, False, at)
    last = (found.last.ms, found.last.seq)
    step.db.execute("DELETE FROM entries WHERE stream = ? AND (ms, seq) <= (?, ?)", (stream.id, *last))
    step.db.execute(
        "UPDATE streams SET length = length - ?, bytes = bytes - ? WHERE id = ?", (found.count, found.bytes, stream.id)
    )
    step.db.execute(_FORGET, (stream.id, found.last.seq))
    more = found.count == wish.limit and measure(step.db, stream.id, found.last, upto, 1).count > 0
    return Trimmed(found.count, upto, held_by, more, at)


def _allowed(db: apsw.Connection, stream: Head, wish: Wish, now: int) -> tuple[EntryId, str]:
    """How far the trim may go, and the group that holds it there."""
    upto, held_by = stream.last, ""
    if wish.age is not None:
        upto = min(upto, EntryId(max((now - span(wish.age)) // 1_000, 0), 0).previous)
    if wish.below is not None:
        upto = min(upto, wish.below.previous)
    for name in wish.protect:
        acked = floor(db, stream.id, name)
        if acked is None:
            return START, name
        if acked < upto:
            upto, held_by = acked, name
    return upto, held_by
