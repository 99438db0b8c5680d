"""Stretches: entries of a stream in columns, for whoever reads millions of them and makes no value of each.

Promise. `Streams.chunk` gives what `Streams.read` gives, in the same order, byte for byte.

Costs. One round trip a stretch, and no object per entry beyond its id and its body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from wrasse.ports.streams import Entry, EntryId

PLAIN: Mapping[int, Mapping[str, bytes]] = {}


@dataclass(frozen=True, slots=True)
class EntryChunk:
    """Entries of one stream that follow each other. `ids` are written as `ms-seq`; `beside` holds, by place, the fields
    of those entries that have any. `at` is the backend's clock, `more` says that there was more to read."""

    subject: str
    ids: Sequence[bytes]
    bodies: Sequence[bytes]
    beside: Mapping[int, Mapping[str, bytes]]
    at: datetime
    more: bool

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.bodies), "every entry has an id and a body"

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, place: int) -> EntryId:
        """The id at this place."""
        ms, _, seq = self.ids[place].partition(b"-")
        return EntryId(int(ms), int(seq))

    def entries(self, count: int) -> Iterator[Entry]:
        """The first entries, as values."""
        for place in range(count):
            yield Entry(self.id(place), self.subject, self.bodies[place], self.beside.get(place))


def chunk_of(subject: str, entries: Sequence[Entry], at: datetime, *, more: bool) -> EntryChunk:
    """Entries as a stretch."""
    beside = {place: entry.fields for place, entry in enumerate(entries) if entry.fields}
    ids = [b"%d-%d" % (entry.id.ms, entry.id.seq) for entry in entries]
    return EntryChunk(subject, ids, [entry.body for entry in entries], beside, at, more)
