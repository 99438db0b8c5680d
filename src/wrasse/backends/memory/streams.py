"""Streams in memory. The reference for what the port's header promises.

Every change is made without an await in between, so each method is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice

from wrasse.backends.memory.logs import DEDUP_WINDOW, Log, Logs
from wrasse.clock import to_micros
from wrasse.ports.entry_chunks import EntryChunk, chunk_of
from wrasse.ports.page import Page, check_limit
from wrasse.ports.rules.subjects import check_pattern, check_subject, fixed_part, matches
from wrasse.ports.streams import START, Draft, Entry, EntryId, StreamState, Trimmed, check_drafts

_MICROSECOND = timedelta(microseconds=1)


class MemoryStreams:
    """All streams of one process, in memory."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @property
    def dedup_window(self) -> timedelta:
        return DEDUP_WINDOW

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        check_drafts(drafts)
        return self._logs.append(drafts, self._logs.now())

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        check_subject(subject)
        check_limit(limit, "entries")
        log = self._logs.find(subject)
        found = [] if log is None else list(islice(log.after(after), limit + 1))
        return Page.of(found, limit, self._logs.now(), lambda entry: str(entry.id))

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        page = await self.read(subject, after, limit)
        return chunk_of(subject, page.items, page.at, more=page.more)

    async def info(self, subject: str) -> StreamState | None:
        check_subject(subject)
        log = self._logs.find(subject)
        return None if log is None else log.state(self._logs.now())

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        check_pattern(pattern)
        check_limit(limit, "streams")
        start = fixed_part(pattern)
        names = self._logs.names.walk_from(start) if after is None or after < start else self._logs.names.walk(after)
        found: list[str] = []
        for name in names:
            if not name.startswith(start) or len(found) > limit:
                break
            if matches(pattern, name):
                found.append(name)
        return Page.of(found, limit, self._logs.now(), str)

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        check_subject(subject)
        check_limit(limit, "entries")
        now = self._logs.now()
        log = self._logs.find(subject)
        if log is None:
            return Trimmed(0, START, "", False, now)
        upto = log.last
        if age is not None:
            upto = min(upto, EntryId(max((to_micros(now) - age // _MICROSECOND) // 1_000, 0), 0).previous)
        if below is not None:
            upto = min(upto, below.previous)
        upto, held_by = _protected(log, protect, upto)
        count = log.trim(upto, limit)
        return Trimmed(count, upto, held_by, bool(log.entries) and log.entries[0].id <= upto, now)


def _protected(log: Log, protect: Sequence[str], upto: EntryId) -> tuple[EntryId, str]:
    """How far a trim may go, and the group that stops it there."""
    held_by = ""
    for name in protect:
        group = log.groups.get(name)
        if group is None:
            return START, name
        if group.floor < upto:
            upto, held_by = group.floor, name
    return upto, held_by
