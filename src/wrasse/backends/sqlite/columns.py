"""Entries of a stream in columns, for whoever drains it: ids as texts, bodies as slices of one blob.

What SQLite can join is joined there: one text of ids, one of lengths, one blob of bodies, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import apsw
import msgspec

from wrasse.backends.sqlite.entries import Range, decode_fields

_COLUMNS = """
    SELECT group_concat(ms || '-' || seq, ' '), json_group_array(length(body)), total(fields IS NOT NULL),
      CAST(group_concat(body, '') AS BLOB)
    FROM (SELECT ms, seq, fields, body FROM entries WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?)
      ORDER BY ms, seq LIMIT ?)
"""
_BESIDE = """
    SELECT ms || '-' || seq, fields FROM entries
    WHERE stream = ? AND (ms, seq) > (?, ?) AND (ms, seq) <= (?, ?) AND fields IS NOT NULL
"""
_decode_lengths = msgspec.json.Decoder(list[int]).decode


@dataclass(frozen=True, slots=True)
class Columns:
    """Entries as SQLite gave them: to be taken apart by whoever asked, after the transaction."""

    ids: str
    lengths: str
    bodies: bytes
    beside: Mapping[str, bytes]  # by id, fields as they are stored


def load(db: apsw.Connection, stream: int, found: Range) -> Columns:
    """The entries of a range."""
    bounds = (stream, found.after.ms, found.after.seq, found.last.ms, found.last.seq)
    ids, lengths, beside, bodies = db.execute(_COLUMNS, (*bounds, found.count)).get
    return Columns(ids or "", lengths, bodies or b"", dict(db.execute(_BESIDE, bounds)) if beside else {})


def taken_apart(loaded: Columns) -> tuple[Sequence[bytes], Sequence[bytes], Mapping[int, Mapping[str, bytes]]]:
    """Ids, bodies, and by place the fields beside them."""
    blob, ids, lengths = loaded.bodies, loaded.ids.encode().split(), _decode_lengths(loaded.lengths)
    ends = [0, *accumulate(lengths)]
    assert ends[-1] == len(blob), "bodies that were joined keep their lengths"
    bodies = [blob[start:end] for start, end in pairwise(ends)]
    if not loaded.beside:
        return ids, bodies, {}
    places = {id.decode(): place for place, id in enumerate(ids)}
    return ids, bodies, {places[id]: decode_fields(fields) for id, fields in loaded.beside.items()}
