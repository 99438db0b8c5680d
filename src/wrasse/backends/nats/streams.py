"""Streams on JetStream. The layout is in `docs/design/015-nats-client.md`.

A trim is some checks and a purge. The floors are read before the purge and only ever rise, and so does the clock; what
was allowed then is allowed still. The last entry of a stream is noted before it is removed, so that later ids stay
above it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from wrasse.backends.nats.append import Appender
from wrasse.backends.nats.client.jetstream import ServerTime
from wrasse.backends.nats.durables import Durable, Durables
from wrasse.backends.nats.group_cursors import Ages, GroupCursor, Marks
from wrasse.backends.nats.message_codec import StoredMessage, beside, entry, ids_of
from wrasse.backends.nats.stream_map import DEDUP_SECONDS, StreamMap, StreamNumbers, SubjectStream, Tip, size_between
from wrasse.clock import from_micros, to_micros
from wrasse.errors import StoreBroken, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit
from wrasse.ports.rules.subjects import SUBJECT_BYTES_MAX, check_pattern, check_subject, is_subject, matches
from wrasse.ports.streams import (
    PLAIN,
    SEQ_MAX,
    START,
    Draft,
    Entry,
    EntryChunk,
    EntryId,
    GroupState,
    ServerAge,
    StreamState,
    Trimmed,
    check_drafts,
)

_MICROSECOND = timedelta(microseconds=1)
_NAMES_MAX = 100_000
_NAMELESS_MAX = 1_000  # invalid names that are logged
_AT_ONCE = 250  # streams requested concurrently, so that their answers fit the buffers

_log = logging.getLogger("wrasse.streams")


class NatsStreams:
    """All streams over one connection."""

    def __init__(
        self, stream_map: StreamMap, marks: Marks, durables: Durables, appender: Appender, time: ServerTime
    ) -> None:
        self._stream_map = stream_map
        self._marks = marks
        self._durables = durables
        self._appender = appender
        self._time = time
        self._ages = Ages(stream_map, marks)
        self._nameless = set[str]()  # names that are not subjects and were logged

    @property
    def dedup_window(self) -> timedelta:
        return timedelta(seconds=DEDUP_SECONDS)

    async def append(self, drafts: Sequence[Draft]) -> Sequence[EntryId]:
        check_drafts(drafts)
        return await self._appender.append(drafts) if drafts else ()

    async def read(self, subject: str, after: EntryId, limit: int) -> Page[Entry]:
        check_subject(subject)
        check_limit(limit, "entries")
        subject_stream = await self._stream_map.find(subject)
        if subject_stream is None:
            return Page((), (), await self._time.now(), False)
        found, more = await self._stream_map.reader.page(
            subject_stream.stream, subject_stream.subject, await self._seq(subject_stream, after), limit
        )
        shown, ms = [], after.ms
        for message in found:
            ms = max(ms, message.ms)  # after entries of other programs the server's clock may have stepped back
            shown.append(entry(subject, message, ms))
        return Page(tuple(shown), tuple([str(each.id) for each in shown]), await self._time.now(), more)

    async def chunk(self, subject: str, after: EntryId, limit: int) -> EntryChunk:
        """Entries in columns, for `Streams.chunk`."""
        check_subject(subject)
        check_limit(limit, "entries")
        subject_stream = await self._stream_map.find(subject)
        if subject_stream is None:
            return EntryChunk(subject, (), (), PLAIN, await self._time.now(), False)
        found, more = await self._stream_map.reader.frames(
            subject_stream.stream, subject_stream.subject, await self._seq(subject_stream, after), limit
        )
        bodies = [each[7] for each in found]
        return EntryChunk(subject, ids_of(found, after.ms), bodies, beside(found), await self._time.now(), more)

    async def _seq(self, subject_stream: SubjectStream, after: EntryId) -> int:
        """The sequence of an id; for an id that stands for a moment, that of the last entry before it."""
        if 0 < after.seq < SEQ_MAX or not after.ms:
            return after.seq
        last = await self._stream_map.reader.one(subject_stream.stream, {"last_by_subj": subject_stream.subject})
        found = None if last is None else await self._stream_map.last_upto(subject_stream, after, 1, last.seq)
        return 0 if found is None else found.seq

    async def info(self, subject: str) -> StreamState | None:
        check_subject(subject)
        subject_stream = await self._stream_map.find(subject)
        if subject_stream is None:
            return None
        state, names = await asyncio.gather(self._stream_map.state(subject_stream), self._marks.groups(subject))
        if state is None:
            self._stream_map.forget(subject)
            return None
        marks, invalid = dict[str, GroupCursor](), dict[str, str]()
        for name in names:
            try:
                if (mark := await self._marks.get(subject, name)) is not None:
                    marks[name] = mark
            except StoreBroken as broken:
                invalid[name] = f"{broken.message}; {broken.do}"
        # Groups before the entries: so no group is ahead of the last entry reported here.
        durables = await self._durables.of(subject_stream) if state.consumers else []
        first, tip = await asyncio.gather(
            self._stream_map.reader.one(
                subject_stream.stream, {"seq": 1, "next_by_subj": subject_stream.subject}, leader=True
            ),
            self._tip(subject, subject_stream, state),
        )
        # Counted after the tip was read: an older count would look as if entries had been trimmed.
        state = await self._stream_map.state(subject_stream) or state
        if not subject_stream.own and not (state.count or tip.seq or names or durables):
            return None
        shown = [await self._marked(subject_stream, name, mark, first, tip) for name, mark in marks.items()]
        shown += [GroupState(name, START, START, pending=0, invalid=why) for name, why in invalid.items()]
        shown += [await self._group(subject_stream, each, first, tip) for each in durables if each.group not in names]
        shown.sort(key=lambda group: group.name)
        at = self._time.heard(state.at) if state.at else await self._time.now()
        return StreamState(
            subject,
            length=state.count - (max(state.last_seq - tip.seq, 0) if subject_stream.own else 0),
            bytes=_size(state, first, tip),
            appended=tip.number,
            first=None if first is None else first.id,
            last=tip.id,
            groups=tuple(shown),
            at=at,
            history="" if self._time.told is not None else state.history,
            server_age=await self._age(subject_stream, state, grouped=bool(shown)),
            work_queue=state.work_queue,
        )

    async def _tip(self, subject: str, subject_stream: SubjectStream, state: StreamNumbers) -> Tip:
        try:
            return await self._stream_map.tip_of(subject, subject_stream, leader=True)
        except StoreBroken:  # its note cannot be read, which writers report; the server's own numbers are enough here
            return Tip(state.last_seq, state.last_ms, state.last_seq) if subject_stream.own else Tip()

    async def _age(self, subject_stream: SubjectStream, state: StreamNumbers, *, grouped: bool) -> ServerAge:
        """What the server removes by itself; other readers are looked up only where it matters."""
        if grouped or not state.age.ours or not state.consumers:
            return state.age
        return replace(state.age, read=await self._ages.durable(subject_stream))

    async def _marked(
        self, subject_stream: SubjectStream, name: str, mark: GroupCursor, first: StoredMessage | None, tip: Tip
    ) -> GroupState:
        stored_from = tip.seq + 1 if first is None else first.seq
        lag = await self._lag(subject_stream, max(mark.at.seq, stored_from - 1), tip)
        return GroupState(name, floor=mark.at, delivered=mark.at, pending=0, lag=lag)

    async def _group(
        self, subject_stream: SubjectStream, durable: Durable, first: StoredMessage | None, tip: Tip
    ) -> GroupState:
        if first is None or first.seq > durable.delivered:
            durable = replace(durable, pending=0)  # servers before 2.10 count trimmed entries as pending
        last = EntryId(tip.ms, tip.seq)
        floor = await self._stream_map.place_after(subject_stream, durable.floor, last)
        delivered = floor
        if durable.delivered != durable.floor:
            delivered = await self._stream_map.place_after(subject_stream, durable.delivered, last)
        oldest = None
        if durable.pending:
            asked = {"seq": durable.floor + 1, "next_by_subj": subject_stream.subject}
            oldest = await self._stream_map.reader.one(subject_stream.stream, asked, leader=True)
        return GroupState(
            durable.group,
            floor=floor,
            delivered=delivered,
            pending=durable.pending,
            oldest_pending_at=None if oldest is None else from_micros(oldest.ms * 1_000),
            consumers=durable.waiting,
            lag=durable.unread,
            protects=durable.proves,
            active_at=durable.active_at,
        )

    async def _lag(self, subject_stream: SubjectStream, after: int, tip: Tip) -> int | None:
        if subject_stream.own or after >= tip.seq:
            return max(tip.seq - after, 0)
        message = await self._stream_map.reader.one(
            subject_stream.stream, {"seq": after + 1, "next_by_subj": subject_stream.subject}
        )
        if message is None:
            return 0
        return tip.number - message.number + 1 if message.number and tip.number >= message.number else None

    async def subjects(self, pattern: str, after: str | None, limit: int) -> Page[str]:
        check_pattern(pattern)
        check_limit(limit, "streams")
        found = sorted(await self._matching(pattern), key=str.encode)
        rest = [name for name in found if after is None or name.encode() > after.encode()]
        return Page.of(rest, limit, await self._time.now(), str)

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See `Surveys`: first the names, then the states of a page concurrently, _AT_ONCE at a time."""
        names = await self.subjects(pattern, after, limit)
        states: list[StreamState] = []
        for begin in range(0, len(names.items), _AT_ONCE):
            asked = (self.info(name) for name in names.items[begin : begin + _AT_ONCE])
            states += [state for state in await asyncio.gather(*asked) if state is not None]
        if not states and names.more:
            return await self.survey(pattern, names.items[-1], limit)
        cursors = [state.subject for state in states]
        if names.more:
            cursors[-1] = names.items[-1]  # a stream deleted meanwhile is not requested again
        return Page(tuple(states), tuple(cursors), names.at, names.more)

    async def _matching(self, pattern: str) -> set[str]:
        """Subjects with entries, of any stream that contains them, and those of streams of their own."""
        layout, found = self._stream_map.layout, set[str]()
        wanted = layout.stored(pattern)
        async for page in self._stream_map.js.pages("STREAM.LIST", "streams", {"subject": wanted}):
            if len(found) > _NAMES_MAX:
                raise UsageError(f"more than {_NAMES_MAX} streams match {pattern!r}", do="use a narrower pattern")
            for stream in page:
                subjects = [each for each in stream["config"].get("subjects") or [] if not layout.reserved(each)]
                wild = [each for each in subjects if "*" in each or ">" in each]
                found |= {subject for each in subjects if each not in wild and (subject := layout.subject(each))}
                if wild:
                    found |= await self._in_stream(str(stream["config"]["name"]), wanted)
        matching = {subject for subject in found if matches(pattern, subject)}
        for name in sorted(subject for subject in matching if not is_subject(subject)):
            matching.discard(name)
            if name not in self._nameless and len(self._nameless) < _NAMELESS_MAX:
                self._nameless.add(name)
                _log.warning("a stream is skipped, since its name is not a subject: %r", name[:SUBJECT_BYTES_MAX])
        return matching

    async def _in_stream(self, name: str, wanted: str) -> set[str]:
        layout, found = self._stream_map.layout, set[str]()
        async for page in self._stream_map.js.pages(f"STREAM.INFO.{name}", "subjects", {"subjects_filter": wanted}):
            found.update(page)
            if len(found) > _NAMES_MAX:
                break
        return {subject for each in found if (subject := layout.subject(each)) is not None}

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        check_subject(subject)
        check_limit(limit, "entries")
        subject_stream = await self._stream_map.find(subject)
        # Floors first: what they allow now they allow later, too.
        floors = (
            []
            if subject_stream is None
            else await asyncio.gather(*(self._floor(subject, subject_stream, name) for name in protect))
        )
        now = await self._time.now()
        tip = Tip() if subject_stream is None else await self._stream_map.tip_of(subject, subject_stream, leader=True)
        if subject_stream is None or not tip.seq:
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
        count, more = await self._purge(subject, subject_stream, tip, allowed, bound, limit)
        return Trimmed(count, upto, held_by, more, now)

    async def _floor(self, subject: str, subject_stream: SubjectStream, group: str) -> tuple[EntryId, int] | None:
        """How far a group has acked; None if there is no such group, or if its floor proves nothing: without acks and
        with a MaxDeliver the floor passes unacked messages. A group whose mark cannot be read counts as one that has
        acked nothing."""
        try:
            mark = await self._marks.get(subject, group)
        except StoreBroken:
            return START, 0
        if mark is not None:
            return mark.at, mark.at.seq
        durable = await self._durables.find(subject_stream, group, reads_more=True)
        if durable is None or not durable.proves:
            return None
        return await self._stream_map.place_after(subject_stream, durable.floor), durable.floor

    async def _purge(
        self, subject: str, subject_stream: SubjectStream, tip: Tip, upto: EntryId, bound: int, limit: int
    ) -> tuple[int, bool]:
        first = await self._stream_map.reader.one(
            subject_stream.stream, {"seq": 1, "next_by_subj": subject_stream.subject}, leader=True
        )
        if first is None or first.seq > bound or first.id > upto:
            return 0, False
        if subject_stream.own:
            highest = min(bound, first.seq + limit - 1)
            last = await self._highest(subject_stream, first, highest, upto)
        else:
            page, _ = await self._stream_map.reader.page(
                subject_stream.stream, subject_stream.subject, first.seq - 1, limit
            )
            last = max((each.seq for each in page if each.seq <= bound and each.id <= upto), default=first.seq)
        if last >= tip.seq:
            await self._stream_map.remember(subject, subject_stream, tip)
        asked: dict[str, object] = (
            {"seq": last + 1} if subject_stream.own else {"seq": last + 1, "filter": subject_stream.subject}
        )
        answer = await self._stream_map.js.call(f"STREAM.PURGE.{subject_stream.stream}", asked)
        rest = await self._stream_map.reader.one(
            subject_stream.stream, {"seq": last + 1, "next_by_subj": subject_stream.subject}, leader=True
        )
        return int(answer.get("purged", 0)), rest is not None and rest.seq <= bound and rest.id <= upto

    async def _highest(self, subject_stream: SubjectStream, first: StoredMessage, highest: int, upto: EntryId) -> int:
        top = await self._stream_map.reader.one(
            subject_stream.stream, {"seq": highest, "next_by_subj": subject_stream.subject}
        )
        if top is not None and top.seq == highest and top.id <= upto:
            return highest  # the usual case: all of it is old
        found = await self._stream_map.last_upto(subject_stream, upto, first.seq, highest)
        return first.seq if found is None else found.seq

    async def keep_for(self, subject: str, age: timedelta | None) -> Outcome:
        """As `ServerAges` promises."""
        check_subject(subject)
        return await self._ages.keep_for(subject, age)


def _size(state: StreamNumbers, first: StoredMessage | None, tip: Tip) -> int:
    return 0 if first is None else size_between(first, tip, state)
