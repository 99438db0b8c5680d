"""Entries of streams: appending, loading and trimming them. Appending and trimming are for the writer.

Many entries are read in one step: their ids and lengths as one JSON text, their bodies joined to one blob.
SQLite joins blobs like texts, byte for byte, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import accumulate

import apsw
import msgspec

from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.write_transaction import WriteTransaction, texts, write_rows
from wrasse.bounded import UNREADABLE
from wrasse.clock import from_micros
from wrasse.ports.streams import START, Draft, Entry, EntryId, Trimmed, draft_bytes

DEDUP_WINDOW = timedelta(minutes=2)
LOAD_BYTES_MAX = 32 << 20  # bodies in one answer, unless the first one alone is longer
_ROWS_MAX = 256
STREAM_NAME = "\0stream "  # the prefix of a subject among wakeup names, which also include queues

_HEAD = """
    SELECT id, last_ms, last_seq, length, bytes FROM streams WHERE subject = ?
"""
_LOAD = """
    SELECT json_group_array(json_array(ms, seq, length(body))), total(fields IS NOT NULL),
      CAST(group_concat(body, '') AS BLOB)
    FROM (SELECT ms, seq, fields, body FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?)
      ORDER BY ms, seq LIMIT ?)
"""
_BESIDE = """
    SELECT seq, fields FROM entries
    WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?) AND fields IS NOT NULL
"""
_SIZES = """
    SELECT ms, seq, size FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) ORDER BY ms, seq LIMIT ?
"""
_RANGE = """
    SELECT count(*), total(size), max(ms), max(seq)
    FROM (SELECT ms, seq, size FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?)
      ORDER BY ms, seq LIMIT ?)
"""
_GROWN = "UPDATE streams SET length = length + ?, bytes = bytes + ?, last_ms = ?, last_seq = ? WHERE id = ?"
_KNOWN = "SELECT key, ms, seq FROM entry_keys WHERE stream = ? AND key IN carray(?) AND noted_at > ?"

_decode_ids = msgspec.json.Decoder(list[tuple[int, int, int]]).decode
_decode_fields = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_encode_fields = msgspec.msgpack.Encoder().encode
_FLOOR = """
    SELECT g.delivered_ms, g.delivered_seq, p.ms, p.seq
    FROM entry_groups g LEFT JOIN pending p ON p.entry_group = g.id
      AND p.seq = (SELECT min(seq) FROM pending WHERE entry_group = g.id)
    WHERE g.stream = ? AND g.name = ?
"""
_FORGET_PENDING = "DELETE FROM pending WHERE entry_group IN (SELECT id FROM entry_groups WHERE stream = ?) AND seq <= ?"


@dataclass(frozen=True, slots=True)
class Head:
    """A stream without its entries."""

    id: int
    last: EntryId
    length: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LoadedEntries:
    """Entries in SQLite's format: decoded by the caller, after the transaction."""

    subject: str
    ids: str
    bodies: bytes
    beside: Mapping[int, bytes]  # by number, fields as they are stored


def head(db: apsw.Connection, subject: str) -> Head | None:
    """The stream of this subject."""
    found = db.execute(_HEAD, (subject,)).get
    if found is None:
        return None
    id, ms, seq, length, size = found
    return Head(id, EntryId(ms, seq), length, size)


def make(tx: WriteTransaction, subject: str) -> Head:
    """The stream of this subject, made if there is none."""
    found = head(tx.db, subject)
    if found is None:
        tx.db.execute("INSERT INTO streams (subject) VALUES (?)", (subject,))
        found = Head(tx.db.last_insert_rowid(), START, 0, 0)
    return found


def append_plain(tx: WriteTransaction, subject: str, bodies: Sequence[bytes], size: int) -> tuple[int, int]:
    """Stores entries of one stream that have only a body; returns the milliseconds of all and the first number."""
    stream, count = make(tx, subject), len(bodies)
    ms, first = _next(stream, tx.now())
    _write_bodies(tx.db, stream.id, ms, first, bodies)
    _grow(tx, subject, stream, count, size, ms)
    return ms, first


def append(tx: WriteTransaction, drafts: Sequence[Draft]) -> list[EntryId]:
    """Stores all drafts; the id of each, or of the earlier entry with its key."""
    now = tx.now()
    subjects = {draft.subject for draft in drafts}
    if len(subjects) == 1:
        return _append_to(tx, subjects.pop(), drafts, now)
    placed: dict[int, EntryId] = {}
    by_subject: dict[str, list[int]] = {}
    for place, draft in enumerate(drafts):
        by_subject.setdefault(draft.subject, []).append(place)
    for subject, places in by_subject.items():
        ids = _append_to(tx, subject, [drafts[place] for place in places], now)
        placed.update(zip(places, ids, strict=True))
    return [placed[place] for place in range(len(drafts))]


def _append_to(tx: WriteTransaction, subject: str, drafts: Sequence[Draft], now: int) -> list[EntryId]:
    stream = make(tx, subject)
    ms, _ = _next(stream, now)
    ids, count, size = _append_special(tx.db, stream, drafts, ms, now)
    if count:
        _grow(tx, subject, stream, count, size, ms)
    return ids


def _next(stream: Head, now: int) -> tuple[int, int]:
    """The milliseconds and the number of the next entry. The clock may stand still or step back; ids only grow."""
    return max(now // 1_000, stream.last.ms), stream.last.seq + 1


def _grow(tx: WriteTransaction, subject: str, stream: Head, count: int, size: int, ms: int) -> None:
    tx.db.execute(_GROWN, (count, size, ms, stream.last.seq + count, stream.id))
    tx.ready_queues.add(STREAM_NAME + subject)


def _write_bodies(db: apsw.Connection, stream: int, ms: int, first: int, bodies: Sequence[bytes]) -> None:
    done = 0
    while left := len(bodies) - done:
        # Powers of two: a batch of any size uses a few statements out of a small set.
        count = 1 << (min(left, _ROWS_MAX).bit_length() - 1)
        db.execute(_insert(count), (stream, ms, first + done, *bodies[done : done + count]))
        done += count


@lru_cache(16)
def _insert(count: int) -> str:
    rows = ",".join(f"(?1,?2,?3+{n},length(?{n + 4}),NULL,?{n + 4})" for n in range(count))
    return f"INSERT INTO entries (stream, ms, seq, size, fields, body) VALUES {rows}"


def _append_special(
    db: apsw.Connection, stream: Head, drafts: Sequence[Draft], ms: int, now: int
) -> tuple[list[EntryId], int, int]:
    """Stores entries with keys or fields. Returns their ids, and the number and size of the new ones."""
    known = _known(db, stream.id, drafts, now)
    seq = stream.last.seq
    ids: list[EntryId] = []
    rows: list[tuple[int, int, int, int, bytes | None, bytes]] = []
    keys: list[tuple[int, str, int, int, int]] = []
    for draft in drafts:
        if draft.key and draft.key in known:
            ids.append(known[draft.key])
            continue
        seq += 1
        ids.append(EntryId(ms, seq))
        beside = None if draft.fields is None else _encode_fields(dict(draft.fields))
        rows.append((stream.id, ms, seq, draft_bytes(draft), beside, draft.body))
        if draft.key:
            known[draft.key] = ids[-1]
            keys.append((stream.id, draft.key, ms, seq, now))
    write_rows(db, "INSERT INTO entries (stream, ms, seq, size, fields, body)", rows)
    if keys:
        _note(db, keys, now)
    return ids, len(rows), sum(row[3] for row in rows)


def _known(db: apsw.Connection, stream: int, drafts: Sequence[Draft], now: int) -> dict[str, EntryId]:
    keys = [draft.key for draft in drafts if draft.key]
    if not keys:
        return {}
    horizon = now - span(DEDUP_WINDOW)
    return {str(key): EntryId(*id) for key, *id in db.execute(_KNOWN, (stream, texts(keys), horizon))}


def _note(db: apsw.Connection, keys: Sequence[tuple[int, str, int, int, int]], now: int) -> None:
    write_rows(db, "INSERT OR REPLACE INTO entry_keys (stream, key, ms, seq, noted_at)", keys)
    # Twice as many as were added, so that the table shrinks to the unexpired keys however it grew.
    db.execute(
        "DELETE FROM entry_keys WHERE (stream, key) IN"
        " (SELECT stream, key FROM entry_keys WHERE noted_at <= ? ORDER BY noted_at LIMIT ?)",
        (now - span(DEDUP_WINDOW), 2 * len(keys)),
    )


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one stream from after one id up to another."""

    count: int
    bytes: int
    after: EntryId
    last: EntryId


def measure(db: apsw.Connection, stream: int, after: EntryId, upto: EntryId, limit: int) -> Range:
    """The first `limit` entries beyond `after` and not beyond `upto`."""
    count, size, ms, seq = db.execute(_RANGE, (stream, after.ms, after.seq, upto.ms, upto.seq, limit)).get
    return Range(count, int(size), after, EntryId(ms, seq) if count else after)


def fitting(db: apsw.Connection, stream: int, found: Range) -> Range:
    """As much of a range as one answer may contain, and at least one entry."""
    if found.bytes <= LOAD_BYTES_MAX:
        return found
    held, last = 0, found.after
    for count, (ms, seq, size) in enumerate(db.execute(_SIZES, (stream, *_pair(found.after), found.count))):
        if count and held + size > LOAD_BYTES_MAX:
            return Range(count, held, found.after, last)
        held, last = held + size, EntryId(ms, seq)
    return found


def load(db: apsw.Connection, stream: int, found: Range, subject: str) -> LoadedEntries:
    """The entries of a range."""
    bounds = (stream, *_pair(found.after), *_pair(found.last))
    ids, beside, bodies = db.execute(_LOAD, (*bounds, found.count)).get
    return LoadedEntries(subject, ids, bodies or b"", dict(db.execute(_BESIDE, bounds)) if beside else {})


def decode_entries(loaded: LoadedEntries) -> list[Entry]:
    """The entries in what was loaded."""
    subject, bodies, beside = loaded.subject, loaded.bodies, loaded.beside
    ids = _decode_ids(loaded.ids)
    ends = accumulate(length for _, _, length in ids)
    found = [
        Entry(
            EntryId(ms, seq), subject, bodies[end - length : end], decode_fields(beside[seq]) if seq in beside else None
        )
        for (ms, seq, length), end in zip(ids, ends, strict=True)
    ]
    assert sum(len(entry.body) for entry in found) == len(bodies), "bodies that were joined keep their lengths"
    return found


def decode_fields(stored: bytes) -> Mapping[str, bytes]:
    """The fields beside a body; invalid bytes are returned in a field of their own."""
    try:
        return _decode_fields(stored)
    except UNREADABLE:
        return {"unreadable": stored}


def _pair(id: EntryId) -> tuple[int, int]:
    return id.ms, id.seq


@dataclass(frozen=True, slots=True)
class TrimLimits:
    """The limits of a trim."""

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


def trim(tx: WriteTransaction, subject: str, limits: TrimLimits) -> Trimmed:
    """Removes entries from the start of a stream, as far as age, bound and protecting groups allow."""
    now = tx.now()
    at = from_micros(now)
    stream = head(tx.db, subject)
    if stream is None:
        return Trimmed(0, START, "", False, at)
    upto, held_by = _allowed(tx.db, stream, limits, now)
    found = measure(tx.db, stream.id, START, upto, limits.limit)
    if not found.count:
        return Trimmed(0, upto, held_by, False, at)
    last = (found.last.ms, found.last.seq)
    tx.db.execute("DELETE FROM entries WHERE stream = ? AND (ms, seq) <= (?, ?)", (stream.id, *last))
    tx.db.execute(
        "UPDATE streams SET length = length - ?, bytes = bytes - ? WHERE id = ?", (found.count, found.bytes, stream.id)
    )
    tx.db.execute(_FORGET_PENDING, (stream.id, found.last.seq))
    more = found.count == limits.limit and measure(tx.db, stream.id, found.last, upto, 1).count > 0
    return Trimmed(found.count, upto, held_by, more, at)


def _allowed(db: apsw.Connection, stream: Head, limits: TrimLimits, now: int) -> tuple[EntryId, str]:
    """How far the trim may go, and the group that stops it there."""
    upto, held_by = stream.last, ""
    if limits.age is not None:
        upto = min(upto, EntryId(max((now - span(limits.age)) // 1_000, 0), 0).previous)
    if limits.below is not None:
        upto = min(upto, limits.below.previous)
    for name in limits.protect:
        acked = floor(db, stream.id, name)
        if acked is None:
            return START, name
        if acked < upto:
            upto, held_by = acked, name
    return upto, held_by
