"""Deliveries of entries, and the answers to them, a whole batch in one transaction. For the writer.

Due and new entries become pending for a consumer; ack, nak, dead letter and extended deadlines change or delete pending
ones. The rows of a delivery are returned in SQLite's format and decoded after the commit, by the caller: other
processes wait for us only while SQLite works.

Numbers have no gap, so entries that were delivered together are usually one range, found and deleted as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import apsw
import msgspec

from wrasse.backends.sqlite import entries
from wrasse.backends.sqlite.entries import LoadedEntries, Range
from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.write_transaction import WriteTransaction, numbers, texts
from wrasse.clock import from_micros
from wrasse.ports.groups import Ack, Answer, DeadLetter, Delivery, Nak, no_group
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import EntryId

_MEMBERS = """
    SELECT json_group_array(json_array(g.id, s.id, s.subject, g.delivered_ms, g.delivered_seq, s.last_ms, s.last_seq))
    FROM streams s JOIN entry_groups g ON g.stream = s.id AND g.name = ? WHERE s.subject IN carray(?)
"""
_SEEN = """
    INSERT INTO consumers SELECT value, ?2, ?3, ?4 FROM carray(?1) WHERE true
    ON CONFLICT DO UPDATE SET seen_at = excluded.seen_at, until = excluded.until WHERE consumers.until < ?5
"""
_DUE = """
    SELECT json_group_array(json_array(entry_group, ms, seq, number, size)) FROM (
      SELECT p.entry_group, p.ms, p.seq, p.number, e.size
      FROM pending p JOIN entry_groups g ON g.id = p.entry_group
        JOIN entries e ON e.stream = g.stream AND e.ms = p.ms AND e.seq = p.seq
      WHERE p.entry_group IN carray(?) AND p.until <= ? ORDER BY p.until, p.ms, p.seq LIMIT ?)
"""
_AGAIN = """
    UPDATE pending SET until = ?, consumer = ?, number = number + 1 WHERE entry_group = ? AND seq IN carray(?)
"""
_LOAD_DUE = """
    SELECT json_group_array(json_array(ms, seq, length(body))), total(fields IS NOT NULL),
      CAST(group_concat(body, '') AS BLOB)
    FROM (SELECT e.ms, e.seq, e.fields, e.body
      FROM pending p JOIN entries e ON e.stream = ? AND e.ms = p.ms AND e.seq = p.seq
      WHERE p.entry_group = ? AND p.seq IN carray(?))
"""
_BESIDE_DUE = """
    SELECT e.seq, e.fields FROM pending p JOIN entries e ON e.stream = ? AND e.ms = p.ms AND e.seq = p.seq
    WHERE p.entry_group = ? AND p.seq IN carray(?) AND e.fields IS NOT NULL
"""
_NEW_IDS = """
    SELECT json_group_array(json_array(ms, seq, size)) FROM (
      SELECT ms, seq, size FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) ORDER BY ms, seq LIMIT ?)
"""
_HAND_OUT = """
    INSERT INTO pending (entry_group, seq, ms, until, number, consumer)
    SELECT ?, seq, ms, ?, 1, ? FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?)
    -- Only where somebody set the group's position back: the entry is delivered again.
    ON CONFLICT DO UPDATE SET until = excluded.until, number = number + 1, consumer = excluded.consumer
"""
_READ = "UPDATE entry_groups SET delivered_ms = ?, delivered_seq = ? WHERE id = ?"
_WAITS = """
    SELECT total((g.delivered_ms, g.delivered_seq) < (s.last_ms, s.last_seq)) > 0,
      min((SELECT min(until) FROM pending WHERE entry_group = g.id))
    FROM streams s JOIN entry_groups g ON g.stream = s.id AND g.name = ? WHERE s.subject IN carray(?)
"""
# As if it had not been delivered: the next delivery has the number that this one had.
_GIVE_BACK = """
    UPDATE pending SET until = ?, consumer = '', number = number - 1
    WHERE entry_group = ? AND consumer = ? AND seq IN carray(?)
"""
_decode_ids = msgspec.json.Decoder(list[tuple[int, int, int]]).decode
_NONE: Mapping[int, int] = {}
_FAR = 1 << 62
_SHARE_MIN = 8
_FIND_GROUP = """
    SELECT g.id FROM streams s JOIN entry_groups g ON g.stream = s.id WHERE s.subject = ? AND g.name = ?
"""
_SELECT_PENDING = "SELECT json_group_array(json_array(seq, ms, number, consumer)) FROM pending WHERE"
_COUNT_RANGE = "SELECT count(*), total(ms) FROM pending WHERE entry_group = ? AND seq BETWEEN ? AND ?"
_DELETE_RANGE = "DELETE FROM pending WHERE entry_group = ? AND seq BETWEEN ? AND ?"
_EXTEND = "UPDATE pending SET until = ? WHERE"
_NAK = "UPDATE pending SET until = ?, consumer = '' WHERE"
_ALIVE = "UPDATE consumers SET seen_at = ?, until = ? WHERE entry_group = ? AND name = ?"


class _Member(msgspec.Struct, frozen=True, array_like=True):
    group: int
    stream: int
    subject: str
    delivered_ms: int
    delivered_seq: int
    last_ms: int
    last_seq: int

    @property
    def delivered(self) -> EntryId:
        return EntryId(self.delivered_ms, self.delivered_seq)

    @property
    def last(self) -> EntryId:
        return EntryId(self.last_ms, self.last_seq)


class _Due(msgspec.Struct, frozen=True, array_like=True):
    group: int
    ms: int
    seq: int
    number: int
    size: int


_decode_members = msgspec.json.Decoder(list[_Member]).decode
_decode_due = msgspec.json.Decoder(list[_Due]).decode


@dataclass(frozen=True, slots=True)
class EntriesWanted:
    """The request of a consumer."""

    subjects: tuple[str, ...]
    group: str
    consumer: str
    limit: int
    ack_timeout: int


@dataclass(frozen=True, slots=True)
class DeliveredPart:
    """Delivered entries of one stream; `numbers` has the delivery counts of those that were delivered before."""

    group: int
    loaded: LoadedEntries
    numbers: Mapping[int, int] = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, slots=True)
class DeliveredEntries:
    """Delivered entries: those that were due again, and new ones."""

    due: tuple[DeliveredPart, ...]
    new: tuple[DeliveredPart, ...]
    until: int

    def __bool__(self) -> bool:
        return bool(self.due or self.new)


def deliver(tx: WriteTransaction, want: EntriesWanted) -> DeliveredEntries:
    """Delivers up to `limit` entries, and notes that the consumer is alive."""
    now = tx.now()
    until = now + want.ack_timeout
    members = _members(tx.db, want)
    ids = [member.group for member in members]
    due = _again(tx.db, want, members, now, until) if want.limit and ids else ()
    new = _new(tx.db, want, members, until, want.limit - sum(len(part.numbers) for part in due))
    if ids:
        # Without a delivery it is enough to be in time: a consumer that waits does not write with every poll.
        exact = due or new or not want.ack_timeout
        late = _FAR if exact else now + want.ack_timeout * 3 // 4
        tx.db.execute(_SEEN, (numbers(ids), want.consumer, now, until, late))
    return DeliveredEntries(due, new, until)


def waits(db: apsw.Connection, want: EntriesWanted) -> tuple[bool, int | None]:
    """Whether there may be something new, and when something pending is due. Changes nothing."""
    new, due = db.execute(_WAITS, (want.group, texts(want.subjects))).get
    return bool(new), due


def decode_deliveries(granted: DeliveredEntries, want: EntriesWanted) -> list[Delivery]:
    """The deliveries for the port."""
    until = from_micros(granted.until)
    due, new = _deliveries(granted.due, want, until), _deliveries(granted.new, want, until)
    due.sort(key=_order)
    if len(granted.new) > 1:
        new.sort(key=_order)
    return due + new


def give_back(tx: WriteTransaction, granted: DeliveredEntries, want: EntriesWanted) -> None:
    """Undoes a delivery whose consumer was cancelled before it got the answer."""
    now = tx.now()
    for part in (*granted.due, *granted.new):
        seqs = numbers(entry.id.seq for entry in entries.decode_entries(part.loaded))
        tx.db.execute(_GIVE_BACK, (now, part.group, want.consumer, seqs))
        tx.ready_queues.add(entries.STREAM_NAME + part.loaded.subject)


def _deliveries(parts: Sequence[DeliveredPart], want: EntriesWanted, until: datetime) -> list[Delivery]:
    group, consumer = want.group, want.consumer
    return [
        Delivery(entry, group, consumer, part.numbers.get(entry.id.seq, 1) if part.numbers else 1, until)
        for part in parts
        for entry in entries.decode_entries(part.loaded)
    ]


def _order(delivery: Delivery) -> tuple[EntryId, str]:
    return delivery.entry.id, delivery.entry.subject


def _members(db: apsw.Connection, want: EntriesWanted) -> list[_Member]:
    if not want.subjects:
        return []
    members = _decode_members(db.execute(_MEMBERS, (want.group, texts(want.subjects))).get)
    if len(members) < len(want.subjects):
        missing = sorted(set(want.subjects) - {member.subject for member in members})[0]
        raise no_group(want.group, missing)
    return members


def _again(
    db: apsw.Connection, want: EntriesWanted, members: Sequence[_Member], now: int, until: int
) -> tuple[DeliveredPart, ...]:
    """Entries that are due again, longest overdue first."""
    rows = _decode_due(db.execute(_DUE, (numbers(m.group for m in members), now, want.limit)).get)
    by_group: dict[int, dict[int, int]] = {}
    held = 0
    for row in rows:
        held += row.size
        if by_group and held > entries.LOAD_BYTES_MAX:
            break
        by_group.setdefault(row.group, {})[row.seq] = row.number + 1
    by_id = {member.group: member for member in members}
    parts = []
    for group, counts in by_group.items():
        member = by_id[group]
        db.execute(_AGAIN, (until, want.consumer, group, numbers(counts)))
        ids, beside, bodies = db.execute(_LOAD_DUE, (member.stream, group, numbers(counts))).get
        fields = dict(db.execute(_BESIDE_DUE, (member.stream, group, numbers(counts)))) if beside else {}
        parts.append(DeliveredPart(group, LoadedEntries(member.subject, ids, bodies or b"", fields), counts))
    return tuple(parts)


def _new(
    db: apsw.Connection, want: EntriesWanted, members: Sequence[_Member], until: int, limit: int
) -> tuple[DeliveredPart, ...]:
    """Entries that were never delivered to the group, the oldest of all streams first."""
    active = [member for member in members if member.delivered < member.last] if limit > 0 else []
    parts = []
    for member, found in _shares(db, active, limit):
        if not found.count:
            # All of it was trimmed. The position is moved to the end, or waiting consumers would take it for new
            # entries.
            db.execute(_READ, (member.last_ms, member.last_seq, member.group))
            continue
        bounds = (found.after.ms, found.after.seq, found.last.ms, found.last.seq)
        parts.append(DeliveredPart(member.group, entries.load(db, member.stream, found, member.subject)))
        db.execute(_HAND_OUT, (member.group, until, want.consumer, member.stream, *bounds))
        db.execute(_READ, (found.last.ms, found.last.seq, member.group))
    return tuple(parts)


def _shares(db: apsw.Connection, active: Sequence[_Member], limit: int) -> list[tuple[_Member, Range]]:
    """The entries of each stream that are delivered."""
    if len(active) != 1:
        return list(_oldest(db, active, limit))
    (member,) = active
    found = entries.measure(db, member.stream, member.delivered, member.last, limit)
    return [(member, entries.fitting(db, member.stream, found))]


def _oldest(db: apsw.Connection, active: Sequence[_Member], limit: int) -> Iterator[tuple[_Member, Range]]:
    """The oldest entries of all streams. With very many streams each gives at most its share."""
    each = min(max(2 * limit // max(len(active), 1), _SHARE_MIN), limit)
    found: list[tuple[int, int, int, int]] = []
    for place, member in enumerate(active):
        after = (member.delivered_ms, member.delivered_seq)
        rows = _decode_ids(db.execute(_NEW_IDS, (member.stream, *after, each)).get)
        found += [(ms, seq, place, size) for ms, seq, size in rows]
        if not rows:
            yield member, Range(0, 0, member.delivered, member.delivered)
    chosen: dict[int, Range] = {}
    held = 0
    for ms, seq, place, size in sorted(found)[:limit]:
        if chosen and held + size > entries.LOAD_BYTES_MAX:
            break
        held += size
        before = chosen.get(place, Range(0, 0, active[place].delivered, active[place].delivered))
        chosen[place] = Range(before.count + 1, before.bytes + size, before.after, EntryId(ms, seq))
    for place, share in chosen.items():
        yield active[place], share


class _MemberRow(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    ms: int
    number: int
    consumer: str


_decode_rows = msgspec.json.Decoder(list[_MemberRow]).decode


@dataclass(frozen=True, slots=True)
class _PendingSet:
    """Some pending entries of one group, as a condition for SQL."""

    where: str
    values: tuple[apsw.SQLiteValue | apsw.CArrayBinding, ...]


def group_id(db: apsw.Connection, subject: str, group: str) -> int | None:
    """The row of this group."""
    found: int | None = db.execute(_FIND_GROUP, (subject, group)).get
    return found


def extend(tx: WriteTransaction, consumer: str, deliveries: Sequence[Delivery], ack_timeout: int) -> list[bool]:
    """Extends deadlines; False for a delivery that does not belong to this consumer any more."""
    now = tx.now()
    until = now + ack_timeout
    mine: set[tuple[str, str, int, int]] = set()
    for (subject, name), asked in _by_group(deliveries).items():
        group = group_id(tx.db, subject, name)
        if group is None:
            continue
        held = {
            (row.seq, row.number)
            for row in _look(tx.db, group, [delivery.entry.id.seq for delivery in asked])
            if row.consumer == consumer
        }
        seqs = [d.entry.id.seq for d in asked if (d.entry.id.seq, d.number) in held]
        if seqs:
            some = _pending_set(group, seqs)
            tx.db.execute(f"{_EXTEND} {some.where}", (until, *some.values))
        # A busy consumer asks for nothing new, and is alive all the same.
        tx.db.execute(_ALIVE, (now, until, group, consumer))
        mine |= {(subject, name, seq, number) for seq, number in held}
    return [(d.entry.subject, d.group, d.entry.id.seq, d.number) in mine for d in deliveries]


def answer(tx: WriteTransaction, answers: Sequence[Answer]) -> list[Outcome]:
    """Settles deliveries, as if one after the other."""
    now = tx.now()
    if _acked_together(tx.db, answers):
        return [Outcome.DONE] * len(answers)
    outcomes = [Outcome.CONFLICT] * len(answers)
    if len({(a.subject, a.group, a.id.seq) for a in answers}) == len(answers):
        batches = [list(range(len(answers)))]
    else:
        batches = [[place] for place in range(len(answers))]  # each must see the effect of those before it
    for batch in batches:
        for place in _settle(tx, answers, batch, now):
            outcomes[place] = Outcome.DONE
    return outcomes


def _acked_together(db: apsw.Connection, answers: Sequence[Answer]) -> bool:
    """The common case, in the fewest statements: acks of one group for entries that were delivered together. False,
    with nothing changed, in any other case."""
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


def _settle(tx: WriteTransaction, answers: Sequence[Answer], batch: Sequence[int], now: int) -> list[int]:
    """Settles answers to different entries; returns the positions of those that were pending."""
    done: list[int] = []
    by_group: dict[tuple[str, str], list[int]] = {}
    for place in batch:
        by_group.setdefault((answers[place].subject, answers[place].group), []).append(place)
    for (subject, name), places in by_group.items():
        group = group_id(tx.db, subject, name)
        if group is not None:
            there = _pending(tx.db, group, answers, places)
            _change(tx, group, subject, [answers[place] for place in there], now)
            done += there
    dead_letters = [answer.draft for place in sorted(done) if isinstance(answer := answers[place], DeadLetter)]
    if dead_letters:
        entries.append(tx, dead_letters)
    return done


def _change(tx: WriteTransaction, group: int, subject: str, answers: Sequence[Answer], now: int) -> None:
    if gone := [answer.id.seq for answer in answers if isinstance(answer, Ack | DeadLetter)]:
        some = _pending_set(group, gone)
        tx.db.execute(f"DELETE FROM pending WHERE {some.where}", some.values)
    naks = [answer for answer in answers if isinstance(answer, Nak)]
    for delay in {nak.delay for nak in naks}:
        some = _pending_set(group, [nak.id.seq for nak in naks if nak.delay == delay])
        tx.db.execute(f"{_NAK} {some.where}", (now + span(delay), *some.values))
        tx.ready_queues.add(entries.STREAM_NAME + subject)


def _pending(db: apsw.Connection, group: int, answers: Sequence[Answer], places: Sequence[int]) -> list[int]:
    """The positions of those answers whose entry is pending."""
    some = _pending_set(group, [answers[place].id.seq for place in places])
    count, sum_ms = db.execute(f"SELECT count(*), total(ms) FROM pending WHERE {some.where}", some.values).get
    if count == len(places) and int(sum_ms) == sum(answers[place].id.ms for place in places):
        return list(places)
    there = {(row.ms, row.seq) for row in _look(db, group, [answers[place].id.seq for place in places])}
    return [place for place in places if (answers[place].id.ms, answers[place].id.seq) in there]


def _look(db: apsw.Connection, group: int, seqs: Sequence[int]) -> list[_MemberRow]:
    some = _pending_set(group, seqs)
    return _decode_rows(db.execute(f"{_SELECT_PENDING} {some.where}", some.values).get)


def _pending_set(group: int, seqs: Sequence[int]) -> _PendingSet:
    low, high = min(seqs), max(seqs)
    if high - low == len(seqs) - 1:
        return _PendingSet("entry_group = ? AND seq BETWEEN ? AND ?", (group, low, high))
    return _PendingSet("entry_group = ? AND seq IN carray(?)", (group, numbers(seqs)))


def _by_group(deliveries: Sequence[Delivery]) -> dict[tuple[str, str], list[Delivery]]:
    found: dict[tuple[str, str], list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault((delivery.entry.subject, delivery.group), []).append(delivery)
    return found
