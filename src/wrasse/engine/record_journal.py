"""The journal on Records, for every backend without a table of its own: Redis, NATS, S3 and directories.

One record per batch, under the smallest id of its lines, so that records are in the order of time and a page of old
lines begins at the first record. A batch with an open line is due, so that open lines are found in the due index
without a listing; once all its lines are settled it is not. A batch of more than BATCH_MAX lines or half a record is
several records; the other half is for what settles say, which is shortened if it is more.

Records list in one direction only. Newest first is read in windows of time, which the ids carry: the last minute, then
the eight before it, and so on, narrowed again where one holds too many records.

Instants are those of the store, as its last answer told them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import EPOCH, Clock
from wrasse.errors import StoreUnavailable
from wrasse.ids import first_at, made_at
from wrasse.ports.journal import (
    Intent,
    Line,
    LineFilter,
    SettledIntent,
    intent_from_stored,
    matches,
    stored_intent,
)
from wrasse.ports.outcome import FROM_STORED, STORED, Outcome
from wrasse.ports.page import Page, check_limit, pages
from wrasse.ports.records import VALUE_BYTES_MAX, Collection, Record, Records, Written, stored_name
from wrasse.ports.rules.store_time import StoreTime

JOURNAL = Collection.named(".wrasse/journal")
BATCH_MAX = 200  # lines in one record
BATCH_BYTES_MAX = VALUE_BYTES_MAX // 2  # of them as they are intended
DETAIL_CHARS_MAX = 300  # of what was said at a settle, where a record is full
OPEN_MAX = 10_000  # batches with open lines that one page looks at
PAGE_MAX = 10_000
WINDOW_MIN, WINDOW_FACTOR = timedelta(minutes=1), 8
CLOCKS_APART_MAX = timedelta(hours=1)  # between the host that made an id and the store that dated its line
WRITES_MAX = 8  # tries to settle one batch against other writers
_KNOWN_MAX = 10_000
_KEPT = 3_600.0  # seconds until the store is asked for its time again: it tells it with every write
_READ = 100


@dataclass(frozen=True, slots=True)
class StoredLine:
    """A line as it is stored: its sweep, verb and outcome under the names that those are stored by."""

    intent: Intent
    intended_at: datetime
    outcome: str | None = None
    detail: str = ""
    settled_at: datetime | None = None


_DECODER = msgspec.json.Decoder(tuple[StoredLine, ...])


class RecordJournal:
    """The journal of one store."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._time = StoreTime(clock, self._asked, kept=_KEPT)
        self._written: dict[str, Record] = {}  # line id -> the record it is in, while we have not settled it

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        now = await self._time.now()
        ordered, earliest = sorted(intents, key=lambda intent: intent.id), now
        for lines in _batches([Line(intent, now) for intent in ordered]):
            earliest = min(earliest, await self._create(lines))
        return earliest

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        left = {settled.id: settled for settled in outcomes}
        while left:
            id = next(iter(left))
            record = self._written.get(id) or await self._find(id)
            found = {id, *(line.intent.id for line in read_lines(record))} & left.keys()
            if record is not None:
                await self._settle(record, [left[each] for each in found])
            for each in found:
                del left[each]
                self._written.pop(each, None)

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        limit = check_limit(limit, "lines", PAGE_MAX)
        found: list[tuple[str, Line]] = []
        key, _, id = (after or "").rpartition(" ")
        async for record in self._listed(where, key, newest):
            lines = read_lines(record)
            for line in reversed(lines) if newest else lines:
                behind = after is None or record.key != key or (line.intent.id < id if newest else line.intent.id > id)
                if behind and matches(line, where):
                    found.append((f"{record.key} {line.intent.id}", line))
            if len(found) > limit:
                break
        return Page.cut(found, limit, await self._time.now())

    async def delete(self, before: datetime, limit: int) -> int:
        deleted = 0
        async for record in self._ascending(None):
            lines = read_lines(record)
            if deleted >= limit or (lines and lines[0].intended_at >= before):
                break
            settled = [line.intent.id for line in lines if line.outcome is not None][: limit - deleted]
            kept = tuple(line for line in lines if line.intent.id not in settled)
            if not settled:
                continue
            written = (
                await self._put(record, kept) if kept else await self._records.delete(record.key, at=record.version)
            )
            deleted += len(settled) if written else 0
        return deleted

    async def _asked(self) -> datetime:
        return (await self._records.page("", None, 1)).at

    async def _create(self, lines: tuple[Line, ...]) -> datetime:
        """Writes one record; a batch that is asked for again is found as it is. Gives the time its lines carry."""
        key, value, due = lines[0].intent.id, _pack(lines), self._due(lines)
        written = await self._records.create(key, value, due_at=due)
        self._time.note(written.at)
        if written and written.version is not None:
            self._know(Record(key, value, written.version, due))
            return lines[0].intended_at
        for _ in range(WRITES_MAX):
            record = await self._records.get(key)
            if record is None:
                break
            stored = read_lines(record)
            missing = {line.intent.id: line for line in lines} | {line.intent.id: line for line in stored}
            if len(missing) == len(stored) or await self._put(record, tuple(missing[id] for id in sorted(missing))):
                return min((line.intended_at for line in stored), default=lines[0].intended_at)
        raise _undecided(key)

    async def _settle(self, record: Record, outcomes: Sequence[SettledIntent]) -> None:
        now, by_id = await self._time.now(), {settled.id: settled for settled in outcomes}
        found: Record | None = record
        for _ in range(WRITES_MAX):
            if found is None:
                return
            lines = read_lines(found)
            changed = tuple(_settled(line, by_id.get(line.intent.id), now) for line in lines)
            if changed == lines or await self._put(found, changed):
                return
            found = await self._records.get(record.key)
        raise _undecided(record.key)

    async def _put(self, record: Record, lines: tuple[Line, ...]) -> Written:
        value, due = _encoded(lines), self._due(lines)
        written = await self._records.put(record.key, value, at=record.version, due_at=due)
        self._time.note(written.at)
        if written and written.version is not None and due is not None:
            self._know(Record(record.key, value, written.version, due))
        return written

    def _due(self, lines: Sequence[Line]) -> datetime | None:
        """Open lines make a record due at once, also where the index is late by a bucket."""
        opened = [line.intended_at for line in lines if line.outcome is None]
        return min(opened) - 2 * self._records.resolution if opened else None

    def _know(self, record: Record) -> None:
        for line in read_lines(record):
            if line.outcome is None:
                self._written[line.intent.id] = record
        while len(self._written) > _KNOWN_MAX:
            del self._written[next(iter(self._written))]

    async def _find(self, id: str) -> Record | None:
        """The record that holds a line which another process wrote. The ids of a batch are made at one moment."""
        made = made_at(id)
        start = None if made is None else first_at(made - WINDOW_MIN)
        async for record in self._ascending(start):
            if any(line.intent.id == id for line in read_lines(record)):
                return record
            if record.key > id:
                break
        return None

    def _listed(self, where: LineFilter, key: str, newest: bool) -> AsyncIterator[Record]:
        """The records that may hold what is asked for, from the one of the cursor on."""
        if where.open:
            return self._open(key, newest)
        if newest:
            return self._newest(key, where.since)
        start = key or (where.since and first_at(where.since - CLOCKS_APART_MAX))
        return self._ascending(start or None, begin=key)

    async def _open(self, key: str, newest: bool) -> AsyncIterator[Record]:
        found: list[Record] = []
        async for page in pages(lambda after: self._records.due(None, after, _READ)):
            self._time.note(page.at)
            found += page
            if len(found) >= OPEN_MAX:
                break
        for record in sorted(found, key=lambda record: record.key, reverse=newest):
            if not key or (record.key <= key if newest else record.key >= key):
                yield record

    async def _ascending(self, after: str | None, *, begin: str = "") -> AsyncIterator[Record]:
        """Records behind `after`, oldest first; `begin` itself comes first."""
        if begin and (record := await self._records.get(begin)):
            yield record
        start = None if after is None else stored_name(after)
        async for page in pages(lambda cursor: self._records.page("", cursor, _READ), start):
            self._time.note(page.at)
            for record in page:
                yield record

    async def _newest(self, key: str, since: datetime | None) -> AsyncIterator[Record]:
        """Records from the newest, or from `key`, back to the first."""
        if key and (record := await self._records.get(key)):
            yield record
        end = since - CLOCKS_APART_MAX if since else EPOCH
        # Without a key the first window has no upper end: the clock that made the newest id may be ahead.
        top, upper, span, grows = made_at(key) or await self._time.now(), key, WINDOW_MIN, True
        while True:
            low = max(top - span, end, EPOCH)
            whole = low == EPOCH
            found = await self._window(None if whole else first_at(low), upper, span <= WINDOW_MIN)
            if found is None:
                span, grows = span / WINDOW_FACTOR, False
                continue
            for record in reversed(found):
                yield record
            if low <= end:
                return
            # Right after one that held too many, windows grow only once something was found in them.
            grows = grows or bool(found)
            top, upper, span = low, first_at(low), span * WINDOW_FACTOR if grows else span

    async def _window(self, low: str | None, upper: str, smallest: bool) -> list[Record] | None:
        """The records between two keys; None if they are too many and the window can be narrowed."""
        found: list[Record] = []
        async for record in self._ascending(low):
            if upper and record.key >= upper:
                break
            if not smallest and len(found) == _READ:
                return None
            found.append(record)
        return found


def _batches(lines: Sequence[Line]) -> Iterator[tuple[Line, ...]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        longer = len(_pack((line,))) - 1
        if batch and (len(batch) == BATCH_MAX or size + longer > BATCH_BYTES_MAX):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(line)
        size += longer
    if batch:
        yield tuple(batch)


def _encoded(lines: Sequence[Line]) -> bytes:
    value = _pack(lines)
    if len(value) > VALUE_BYTES_MAX:
        value = _pack([replace(line, detail=line.detail[:DETAIL_CHARS_MAX]) for line in lines])
    return value


def _pack(lines: Sequence[Line]) -> bytes:
    return msgspec.json.encode(
        [
            StoredLine(
                stored_intent(line.intent),
                line.intended_at,
                None if line.outcome is None else STORED[line.outcome],
                line.detail,
                line.settled_at,
            )
            for line in lines
        ]
    )


def _unpack(stored: StoredLine) -> Line:
    outcome = None if stored.outcome is None else FROM_STORED.get(stored.outcome)
    if stored.outcome is not None and outcome is None:
        raise ValueError(f"{stored.outcome!r} is no outcome")
    return Line(intent_from_stored(stored.intent), stored.intended_at, outcome, stored.detail, stored.settled_at)


def _settled(line: Line, settled: SettledIntent | None, now: datetime) -> Line:
    if settled is None or line.outcome not in (None, Outcome.UNKNOWN):
        return line
    return replace(line, outcome=settled.outcome, detail=settled.detail, settled_at=now)


def read_lines(record: Record | None) -> tuple[Line, ...]:
    """The lines of a record; none of one that something else wrote."""
    try:
        return () if record is None else tuple(map(_unpack, decoded(_DECODER.decode, record.value)))
    except ValueError:
        return ()


def _undecided(key: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the journal record {key} could not be written", do="see who else writes there; the next run tries again"
    )
