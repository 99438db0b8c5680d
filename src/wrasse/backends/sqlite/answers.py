"""Answers to deliveries: ack, nak, dead letter, and deadlines moved on, a whole batch in one step. For the writer.

Ids come in bulk. Numbers have no gap, so what was handed out together is usually one range, found and deleted as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import msgspec

from wrasse.backends.sqlite import entries
from wrasse.backends.sqlite.bulk import numbers
from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.step import Step
from wrasse.ports.groups import Ack, Answer, DeadLetter, Delivery, Nak
from wrasse.ports.outcome import Outcome

_GROUP = """
    SELECT g.id FROM streams s JOIN entry_groups g ON g.stream = s.id WHERE s.subject = ? AND g.name = ?
"""
_LOOK = "SELECT json_group_array(json_array(seq, ms, number, consumer)) FROM pending WHERE"
_COUNT_RANGE = "SELECT count(*), total(ms) FROM pending WHERE entry_group = ? AND seq BETWEEN ? AND ?"
_DELETE_RANGE = "DELETE FROM pending WHERE entry_group = ? AND seq BETWEEN ? AND ?"
_EXTEND = "UPDATE pending SET until = ? WHERE"
_NAK = "UPDATE pending SET until = ?, consumer = '' WHERE"
_ALIVE = "UPDATE consumers SET seen_at = ?, until = ? WHERE entry_group = ? AND name = ?"


class _Row(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    ms: int
    number: int
    consumer: str


_decode_rows = msgspec.json.Decoder(list[_Row]).decode


@dataclass(frozen=True, slots=True)
class _Some:
    """Some pending entries of one group, as a condition for SQL."""

    where: str
    values: tuple[apsw.SQLiteValue | apsw.CArrayBinding, ...]


def group_id(db: apsw.Connection, subject: str, group: str) -> int | None:
    """Which group this is."""
    found: int | None = db.execute(_GROUP, (subject, group)).get
    return found


def extend(step: Step, consumer: str, deliveries: Sequence[Delivery], ack_timeout: int) -> list[bool]:
    """Moves deadlines on; False for one that is no longer this consumer's."""
    now = step.now()
    until = now + ack_timeout
    mine: set[tuple[str, str, int, int]] = set()
    for (subject, name), asked in _by_group(deliveries).items():
        group = group_id(step.db, subject, name)
        if group is None:
            continue
        held = {
            (row.seq, row.number)
            for row in _look(step.db, group, [delivery.entry.id.seq for delivery in asked])
            if row.consumer == consumer
        }
        seqs = [d.entry.id.seq for d in asked if (d.entry.id.seq, d.number) in held]
        if seqs:
            some = _some(group, seqs)
            step.db.execute(f"{_EXTEND} {some.where}", (until, *some.values))
        # One that is busy asks for nothing new, and is alive all the same.
        step.db.execute(_ALIVE, (now, until, group, consumer))
        mine |= {(subject, name, seq, number) for seq, number in held}
    return [(d.entry.subject, d.group, d.entry.id.seq, d.number) in mine for d in deliveries]


def answer(step: Step, answers: Sequence[Answer]) -> list[Outcome]:
    """Settles deliveries, as if one after the other."""
    now = step.now()
    if _acked_together(step.db, answers):
        return [Outcome.DONE] * len(answers)
    outcomes = [Outcome.LOST] * len(answers)
    if len({(a.subject, a.group, a.id.seq) for a in answers}) == len(answers):
        batches = [list(range(len(answers)))]
    else:
        batches = [[place] for place in range(len(answers))]  # what comes second must see what the first one did
    for batch in batches:
        for place in _settle(step, answers, batch, now):
            outcomes[place] = Outcome.DONE
    return outcomes


def _acked_together(db: apsw.Connection, answers: Sequence[Answer]) -> bool:
    """The commonest case by far, in the fewest steps: acks of one group for what was handed out together. False, with
    nothing changed, if it is anything else."""
    subject, name = answers[0].subject, answers[0].group
    if any(type(a) is not Ack or a.subject != subject or a.group != name for a in answers):
        return False
    seqs = [a.id.seq for a in answers]
    low, high = min(seqs), max(seqs)
    group = group_id(db, subject, name) if high - low == len(set(seqs)) - 1 == len(seqs) - 1 else None
    if group is None:
        return False
    some = (group, low, high)
    count, sum_ms = db.execute(_COUNT_RANGE, some).get
    if count != len(seqs) or int(sum_ms) != sum([a.id.ms for a in answers]):
        return False
    db.execute(_DELETE_RANGE, some)
    return True


def _settle(step: Step, answers: Sequence[Answer], batch: Sequence[int], now: int) -> list[int]:
    """Settles answers to different entries; gives the places of those that were pending."""
    done: list[int] = []
    by_group: dict[tuple[str, str], list[int]] = {}
    for place in batch:
        by_group.setdefault((answers[place].subject, answers[place].group), []).append(place)
    for (subject, name), places in by_group.items():
        group = group_id(step.db, subject, name)
        if group is not None:
            there = _pending(step.db, group, answers, places)
            _change(step, group, subject, [answers[place] for place in there], now)
            done += there
    letters = [answer.draft for place in sorted(done) if isinstance(answer := answers[place], DeadLetter)]
    if letters:
        entries.append(step, letters)
    return done


def _change(step: Step, group: int, subject: str, answers: Sequence[Answer], now: int) -> None:
    if gone := [answer.id.seq for answer in answers if isinstance(answer, Ack | DeadLetter)]:
        some = _some(group, gone)
        step.db.execute(f"DELETE FROM pending WHERE {some.where}", some.values)
    naks = [answer for answer in answers if isinstance(answer, Nak)]
    for delay in {nak.delay for nak in naks}:
        some = _some(group, [nak.id.seq for nak in naks if nak.delay == delay])
        step.db.execute(f"{_NAK} {some.where}", (now + span(delay), *some.values))
        step.rung.add(entries.STREAM_NAME + subject)


def _pending(db: apsw.Connection, group: int, answers: Sequence[Answer], places: Sequence[int]) -> list[int]:
    """The places of those answers whose entry is pending."""
    some = _some(group, [answers[place].id.seq for place in places])
    count, sum_ms = db.execute(f"SELECT count(*), total(ms) FROM pending WHERE {some.where}", some.values).get
    if count == len(places) and int(sum_ms) == sum(answers[place].id.ms for place in places):
        return list(places)
    there = {(row.ms, row.seq) for row in _look(db, group, [answers[place].id.seq for place in places])}
    return [place for place in places if (answers[place].id.ms, answers[place].id.seq) in there]


def _look(db: apsw.Connection, group: int, seqs: Sequence[int]) -> list[_Row]:
    some = _some(group, seqs)
    return _decode_rows(db.execute(f"{_LOOK} {some.where}", some.values).get)


def _some(group: int, seqs: Sequence[int]) -> _Some:
    low, high = min(seqs), max(seqs)
    if high - low == len(seqs) - 1:
        return _Some("entry_group = ? AND seq BETWEEN ? AND ?", (group, low, high))
    return _Some("entry_group = ? AND seq IN carray(?)", (group, numbers(seqs)))


def _by_group(deliveries: Sequence[Delivery]) -> dict[tuple[str, str], list[Delivery]]:
    found: dict[tuple[str, str], list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault((delivery.entry.subject, delivery.group), []).append(delivery)
    return found
