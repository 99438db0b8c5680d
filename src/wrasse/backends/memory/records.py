"""Records in memory. The reference for what the port's header promises.

A key keeps the nonces of its last writes, also after the record is deleted and after another record was created under
the same key, so that a write whose reply was lost is recognised. Deleted keys are remembered for the newest GONE_MAX of
them; for older ones the answer is `unknown`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count, islice, takewhile
from typing import TypeVar

from wrasse.backends.memory.ordered import Ordered
from wrasse.backends.memory.streams import Logs
from wrasse.backends.record_files import LastWrites
from wrasse.clock import Clock, to_micros
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.records import (
    IndexedRecords,
    IndexEntry,
    Record,
    StatusRange,
    Written,
    index_cursor,
    namespace_of,
    page_of,
    read_cursor,
    stored_name,
)
from wrasse.ports.rules.conditional_records import ConditionalRecords, RecordWrite

GONE_MAX = 10_000
_LAST = chr(0x10FFFF)  # after every name

K = TypeVar("K", str, tuple[int, str])


class MemoryRecords(ConditionalRecords):
    """One collection of records, in memory."""

    emits = True

    def __init__(self, clock: Clock, logs: Logs) -> None:
        self._clock = clock
        self._logs = logs
        self._records: dict[str, Record] = {}
        self._writes: dict[str, LastWrites] = {}
        self._gone: OrderedDict[str, LastWrites] = OrderedDict()  # writes to deleted keys, oldest first
        self._forgot = False  # whether the writes of any deleted key were dropped
        self._names: Ordered[str] = Ordered()
        self._due: Ordered[tuple[int, str]] = Ordered()
        self._index_entries: dict[str, IndexEntry] = {}
        self._status_index: defaultdict[str, Ordered[tuple[int, str]]] = defaultdict(Ordered)
        self._versions = count(1)

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        return self._records.get(stored_name(key))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        start = stored_name(prefix)
        names = self._names.walk_from(start) if after is None else self._names.walk(after)
        matching = takewhile(lambda name: name.startswith(start), names)
        return self._cut(matching, limit, lambda name: (name, name))

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        horizon = to_micros(before if before is not None else self._clock.now())
        moments = self._due.walk(None if after is None else read_cursor(after))
        found = takewhile(lambda moment: moment[0] <= horizon, moments)
        return self._cut(found, limit, lambda moment: (moment[1], index_cursor(*moment)))

    @property
    def status_index(self) -> IndexedRecords:
        return self

    async def reindex(self, placed: Sequence[tuple[Record, IndexEntry | None]]) -> int:
        """See IndexedRecords."""
        true = [each for each in placed if self._version(stored_name(each[0].key)) == each[0].version]
        return sum(self._stands(stored_name(record.key), index_entry) for record, index_entry in true)

    async def status_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """See IndexedRecords."""
        counts = tuple(
            len(self._status_index[each.status]) if each.upto is None
            else self._status_index[each.status].count_upto((each.upto, _LAST))
            for each in spans
        )  # fmt: skip
        return counts, self._clock.now()

    async def status_page(self, status: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """See IndexedRecords."""
        moments = self._status_index[status].walk(None if after is None else read_cursor(after), newest=newest)
        return self._cut(moments, limit, lambda moment: (moment[1], index_cursor(*moment)))

    async def write(self, asked: RecordWrite) -> Written:
        """The write and its entries, without an await in between."""
        name = stored_name(asked.key)
        answer = self._answer(name, asked.nonce, asked.at)
        if answer is not None:
            return answer
        if asked.value is None:
            return self._remove(name, asked.nonce)
        written = self._store(name, asked, asked.value)
        if asked.emit:
            self._logs.append(asked.emit, self._logs.now())
        return written

    def _answer(self, name: str, nonce: str | None, at: str | None) -> Written | None:
        """The answer to a write that was made before or whose condition fails; None if it is to be made now."""
        writes = self._writes.get(name) or self._gone.get(name) or LastWrites(whole=not self._forgot)
        answer = writes.answer(nonce, at, self._version(name))
        return None if answer is None else Written(*answer, self._clock.now())

    def _version(self, name: str) -> str | None:
        record = self._records.get(name)
        return None if record is None else record.version

    def _store(self, name: str, asked: RecordWrite, value: bytes) -> Written:
        due_at, version = asked.due_at, str(next(self._versions))
        before = self._records.get(name)
        if before is None:
            self._names.add(name)
            self._writes[name] = self._gone.pop(name, LastWrites(whole=not self._forgot))
        elif before.due_at is not None:
            self._due.remove((to_micros(before.due_at), name))
        self._records[name] = Record(asked.key, bytes(value), version, due_at)
        if due_at is not None:
            self._due.add((to_micros(due_at), name))
        self._writes[name] = self._writes[name].and_then(asked.nonce, version)
        self._stands(name, asked.index_entry)
        return Written(Outcome.DONE, version, self._clock.now())

    def _stands(self, name: str, index_entry: IndexEntry | None) -> bool:
        """Changes the index entry of a record; returns whether it differed."""
        before = self._index_entries.pop(name, None)
        if before is not None:
            self._status_index[before.status].remove((before.position, name))
        if index_entry is not None:
            self._index_entries[name] = index_entry
            self._status_index[index_entry.status].add((index_entry.position, name))
        return before != index_entry

    def _remove(self, name: str, nonce: str | None) -> Written:
        record = self._records.pop(name)
        self._names.remove(name)
        self._stands(name, None)
        if record.due_at is not None:
            self._due.remove((to_micros(record.due_at), name))
        self._gone[name] = self._writes.pop(name).and_then(nonce, None)
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
            self._forgot = True
        return Written(Outcome.DONE, None, self._clock.now())

    def _cut(self, keys: Iterable[K], limit: int, named: Callable[[K], tuple[str, str]]) -> Page[Record]:
        """The first `limit` records; `named` gives the name and the cursor of a key."""
        check_limit(limit, "records")
        found = [(cursor, self._records[name]) for name, cursor in map(named, islice(keys, limit + 1))]
        return Page.cut(found, limit, self._clock.now())


class MemoryNamespaces:
    """The namespaces of the collections that were opened."""

    def __init__(self, collections: Mapping[str, MemoryRecords], clock: Clock) -> None:
        self._collections, self._clock = collections, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        names = filter(None, map(namespace_of, self._collections))
        return page_of(names, after, limit, self._clock.now())
