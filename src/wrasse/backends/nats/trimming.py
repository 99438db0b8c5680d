"""Trims: how far one may go, and the purge.

The floors are read before the purge and only ever rise, and so does the clock; what was allowed then is allowed still.
The last entry of a stream is noted before it goes, so that ids go on growing from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from wrasse.backends.nats.durables import Durables
from wrasse.backends.nats.lanes import Lane, Lanes, Tip
from wrasse.backends.nats.marks import Marks
from wrasse.backends.nats.stored import Stored
from wrasse.backends.nats.stream_time import ServerTime
from wrasse.clock import to_micros
from wrasse.errors import StoreBroken
from wrasse.ports.streams import SEQ_MAX, START, EntryId, Trimmed

_MICROSECOND = timedelta(microseconds=1)


class Trimmer:
    """Trims for one backend."""

    def __init__(self, lanes: Lanes, marks: Marks, durables: Durables, time: ServerTime) -> None:
        self._lanes = lanes
        self._marks = marks
        self._durables = durables
        self._time = time

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        """Removes up to `limit` entries from the start of a stream."""
        lane = await self._lanes.find(subject)
        # Floors before everything else: what they allow now they allow later, too.
        floors = [] if lane is None else await asyncio.gather(*(self._floor(subject, lane, name) for name in protect))
        now = await self._time.now()
        tip = Tip() if lane is None else await self._lanes.tip_of(subject, lane, leader=True)
        if lane is None or not tip.seq:
            missing = next((name for name, floor in zip(protect, floors, strict=False) if floor is None), "")
            return Trimmed(0, START, missing, False, now)
        upto = EntryId(tip.ms, tip.seq)
        if age is not None:
            upto = min(upto, EntryId(max((to_micros(now) - age // _MICROSECOND) // 1_000, 0), 0).previous)
        if below is not None:
            upto = min(upto, below.previous)
        allowed, held_by, bound = upto, "", min(tip.seq, below.seq - 1 if below is not None and below.seq else SEQ_MAX)
        for name, floor in zip(protect, floors, strict=True):
            if floor is None:
                return Trimmed(0, START, name, False, now)
            shown, seq = floor
            if shown < upto:
                upto, held_by = shown, name
            bound = min(bound, seq)
        count, more = await self._purge(subject, lane, tip, allowed, bound, limit)
        return Trimmed(count, upto, held_by, more, now)

    async def _floor(self, subject: str, lane: Lane, group: str) -> tuple[EntryId, int] | None:
        """How far a group has acked; None where it is missing, or where nobody can tell: without acks and with a
        MaxDeliver the floor passes what nobody acked. One whose mark cannot be read counts as one that has acked
        nothing."""
        try:
            mark = await self._marks.get(subject, group)
        except StoreBroken:
            return START, 0
        if mark is not None:
            return mark.at, mark.at.seq
        durable = await self._durables.find(lane, group, reads_more=True)
        if durable is None or not durable.proves:
            return None
        return await self._lanes.place_after(lane, durable.floor), durable.floor

    async def _purge(
        self, subject: str, lane: Lane, tip: Tip, upto: EntryId, bound: int, limit: int
    ) -> tuple[int, bool]:
        first = await self._lanes.reader.one(lane.stream, {"seq": 1, "next_by_subj": lane.subject}, leader=True)
        if first is None or first.seq > bound or first.id > upto:
            return 0, False
        if lane.own:
            highest = min(bound, first.seq + limit - 1)
            last = await self._highest(lane, first, highest, upto)
        else:
            page, _ = await self._lanes.reader.page(lane.stream, lane.subject, first.seq - 1, limit)
            last = max((each.seq for each in page if each.seq <= bound and each.id <= upto), default=first.seq)
        if last >= tip.seq:
            await self._lanes.remember(subject, lane, tip)
        asked: dict[str, object] = {"seq": last + 1} if lane.own else {"seq": last + 1, "filter": lane.subject}
        answer = await self._lanes.js.call(f"STREAM.PURGE.{lane.stream}", asked)
        rest = await self._lanes.reader.one(lane.stream, {"seq": last + 1, "next_by_subj": lane.subject}, leader=True)
        return int(answer.get("purged", 0)), rest is not None and rest.seq <= bound and rest.id <= upto

    async def _highest(self, lane: Lane, first: Stored, highest: int, upto: EntryId) -> int:
        top = await self._lanes.reader.one(lane.stream, {"seq": highest, "next_by_subj": lane.subject})
        if top is not None and top.seq == highest and top.id <= upto:
            return highest  # the usual case: all of it is old
        found = await self._lanes.last_upto(lane, upto, first.seq, highest)
        return first.seq if found is None else found.seq
