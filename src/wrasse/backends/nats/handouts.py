"""Handing out: what is due first, then what is new, each entry to one consumer of a group.

New entries are read before they are claimed, so that a claim names what is really there. If others claimed some of
them first, the ledger gives what is left. A claim that reached nobody, because its caller was cancelled, is given back
with the count it had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.nats.lanes import Lane, Lanes
from wrasse.backends.nats.ledger import Ledger
from wrasse.backends.nats.ledger_entries import Back, Deliver, Gone, Skip
from wrasse.backends.nats.ledger_state import RUNS_MAX, Handed, LedgerState, Run, spans
from wrasse.backends.nats.ledgers import Ledgers
from wrasse.backends.nats.stored import Stored, entry
from wrasse.backends.nats.stream_time import ServerTime
from wrasse.clock import from_micros, to_micros
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.groups import Delivery

_MICROSECOND = timedelta(microseconds=1)
_LOOKS = 8  # at a stream that others empty under our hands
_BEAT_SHARE = 4  # a consumer that waits shows that it is alive after a quarter of its time
_WIDE_MAX = 1_000
_GIVE_BACK_SECONDS = 10.0


class Shelf:
    """One stream as one question sees it: what is due, what is new, and how much of it is to be taken."""

    __slots__ = ("due", "handed", "lane", "ledger", "ms", "new", "subject", "take")

    def __init__(self, subject: str, lane: Lane, ledger: Ledger, due: list[Run], new: list[Stored]) -> None:
        self.subject = subject
        self.lane = lane
        self.ledger = ledger
        self.due = due
        self.new = new
        self.ms = _rising(new, ledger.state.delivered.ms)  # of the new ones' ids
        self.take = 0
        self.handed: Sequence[Handed] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """Who asks for how much."""

    group: str
    consumer: str
    limit: int
    ack_timeout: timedelta


class Handouts:
    """Hands out for one backend."""

    def __init__(self, lanes: Lanes, ledgers: Ledgers, time: ServerTime) -> None:
        self._lanes = lanes
        self._ledgers = ledgers
        self._time = time

    async def hand_out(self, subjects: Sequence[str], asked: Question) -> tuple[Delivery, ...]:
        """What there is now."""
        for look in range(_LOOKS):
            shelves: list[Shelf] = []
            claiming = asyncio.ensure_future(self._claimed(subjects, asked, look, shelves))
            try:
                until = await asyncio.shield(claiming)
                found = await self._fetch(shelves, asked, until)
            except asyncio.CancelledError:
                await self._give_back(claiming, shelves, asked)
                raise
            if found or not any(shelf.take for shelf in shelves):
                return found
        return ()

    async def _claimed(
        self, subjects: Sequence[str], asked: Question, look: int, shelves: list[Shelf]
    ) -> datetime:
        """Looks and claims; one after the other within a process, or all would look at the same entries."""
        async with AsyncExitStack() as turns:
            for subject in sorted(subjects):  # always in the same order, so that nobody waits in a circle
                await turns.enter_async_context(self._ledgers.of(subject, asked.group).turn)
            # Where other processes were faster, further ahead.
            wide = min(asked.limit << look, max(asked.limit, _WIDE_MAX))
            looks = (self._look(subject, asked, wide) for subject in subjects)
            for found in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(found, BaseException):
                    raise found  # that of the first stream, whoever failed first
                shelves.append(found)
            now = to_micros(await self._time.now())
            _share(shelves, asked.limit)
            await self._claim(shelves, asked, now)
            return from_micros(now) + asked.ack_timeout

    async def _look(self, subject: str, asked: Question, wide: int) -> Shelf:
        lane = await self._lanes.find(subject)
        ledger = self._ledgers.of(subject, asked.group)
        if lane is None:
            raise _not_joined(subject, asked.group)
        new: list[Stored] = []
        before = ledger.state.delivered.seq
        reads = asked.limit > 0 and ledger.state.joined
        if reads:
            state, (new, _) = await asyncio.gather(ledger.catch_up(), self._beyond(lane, before, wide))
        else:
            state = await ledger.catch_up()
        if not state.joined:
            raise _not_joined(subject, asked.group)
        if asked.limit and (not reads or (state.delivered.seq != before and new)):
            new = [message for message in new if message.seq > state.delivered.seq]
            if not new:
                new, _ = await self._beyond(lane, state.delivered.seq, wide)
        if state.start_ms and new:
            new = await self._begun(ledger, state.start_ms, new)
            state = ledger.state
        if len(state.runs) >= RUNS_MAX:
            new = []
        now = to_micros(await self._time.now())
        return Shelf(subject, lane, ledger, state.due(now, asked.limit), new)

    async def _beyond(self, lane: Lane, seq: int, limit: int) -> tuple[list[Stored], bool]:
        return await self._lanes.reader.page(lane.stream, lane.subject, seq, limit)

    async def _begun(self, ledger: Ledger, start_ms: int, new: list[Stored]) -> list[Stored]:
        """Leaves out what came before the moment at which the group begins."""
        kept = [message for message in new if message.ms >= start_ms]
        early = [message for message in new if message.ms < start_ms]
        if early or kept:
            last = early[-1].id if early else ledger.state.delivered
            await ledger.submit(Skip(last.ms, last.seq, bool(kept)))
        return kept

    async def _claim(self, shelves: Sequence[Shelf], asked: Question, now: int) -> None:
        until = now + asked.ack_timeout // _MICROSECOND
        await asyncio.gather(*(self._claim_one(shelf, asked, now, until) for shelf in shelves))

    async def _claim_one(self, shelf: Shelf, asked: Question, now: int, until: int) -> None:
        if not shelf.take and not _beats(shelf.ledger.state, asked.consumer, now, until):
            return
        new = spans((each.seq, ms) for each, ms in zip(shelf.new, shelf.ms, strict=True))
        command = Deliver(now, asked.consumer, shelf.take, until, tuple(new))
        shelf.handed = [tuple(span) for span in await shelf.ledger.submit(command)]

    async def _fetch(self, shelves: Sequence[Shelf], asked: Question, until: datetime) -> tuple[Delivery, ...]:
        again: list[Delivery] = []
        fresh: list[Delivery] = []
        for shelf in shelves:
            read = {message.seq: message for message in shelf.new}
            await self._complete(shelf, read)
            for seq, count, ms, number in shelf.handed:
                out = fresh if number == 1 else again
                out += [
                    Delivery(entry(shelf.subject, read[each], ms), asked.group, asked.consumer, number, until)
                    for each in range(seq, seq + count)
                    if each in read
                ]
        if len(shelves) > 1:
            fresh.sort(key=_by_id)
        return (*sorted(again, key=_by_id), *fresh)

    async def _complete(self, shelf: Shelf, read: dict[int, Stored]) -> None:
        """Reads what was handed out and is not at hand; what is not stored any more is pending no more."""
        lane, gone = shelf.lane, []
        for seq, count, _, _ in shelf.handed:
            missing = [each for each in range(seq, seq + count) if each not in read]
            if not missing:
                continue
            page, _ = await self._beyond(lane, missing[0] - 1, missing[-1] - missing[0] + 1)
            read |= {message.seq: message for message in page}
            for each in (each for each in missing if each not in read):
                # A replica may be behind: only the leader says that something is gone.
                message = await self._lanes.reader.one(lane.stream, {"seq": each}, leader=True)
                if message is None:
                    gone.append((each, 1))
                else:
                    read[each] = message
        if gone:
            await shelf.ledger.submit(Gone(tuple(gone)))

    async def _give_back(self, claiming: asyncio.Future[datetime], shelves: Sequence[Shelf], asked: Question) -> None:
        try:
            async with asyncio.timeout(_GIVE_BACK_SECONDS):
                await claiming
                now = to_micros(self._time.reckoned())
                for shelf in shelves:
                    if shelf.handed:
                        await shelf.ledger.submit(Back(now, asked.consumer, tuple(shelf.handed)))
        except (StoreUnavailable, TimeoutError):
            return  # it comes back when its time is over


def _share(shelves: Sequence[Shelf], limit: int) -> None:
    """Due before new, the longest overdue and the oldest of all streams first."""
    if len(shelves) == 1:
        (shelf,) = shelves
        due = sum(run.count for run in shelf.due)
        shelf.take = min(limit, due + len(shelf.new))
        return
    left = limit
    late = sorted(((run.until, run.seq, place, run.count) for place, s in enumerate(shelves) for run in s.due))
    for _, _, place, count in late:
        part = min(left, count)
        shelves[place].take += part
        left -= part
    fresh = sorted(
        (ms, message.seq, shelf.subject, place)
        for place, shelf in enumerate(shelves)
        for message, ms in zip(shelf.new, shelf.ms, strict=True)
    )
    for _, _, _, place in fresh[: max(left, 0)]:
        shelves[place].take += 1


def _rising(new: Sequence[Stored], ms: int) -> list[int]:
    rising = []
    for message in new:
        ms = max(ms, message.ms)
        rising.append(ms)
    return rising


def _beats(state: LedgerState, consumer: str, now: int, until: int) -> bool:
    """Whether it has to be noted that the consumer is alive, or says goodbye."""
    seen: Any = state.consumers.get(consumer)
    return seen is None or until <= now or seen[1] - now < (until - now) * (_BEAT_SHARE - 1) // _BEAT_SHARE


def _by_id(delivery: Delivery) -> tuple[int, int, str]:
    id = delivery.entry.id
    return id.ms, id.seq, delivery.entry.subject


def _not_joined(subject: str, group: str) -> UsageError:
    return UsageError(f"there is no group {group!r} on {subject!r}", do="join it before asking for deliveries")
