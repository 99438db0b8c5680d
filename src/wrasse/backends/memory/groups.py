"""Groups in memory. The reference for what the port's header promises.

Every change is made without an await in between, so each method is atomic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from wrasse.backends.memory.streams import ConsumerSeen, Group, Log, Logs, PendingEntry
from wrasse.errors import Refused
from wrasse.ports.groups import (
    Ack,
    Answer,
    ConsumerState,
    DeadLetter,
    Delivery,
    Nak,
    StartAt,
    check_answers,
    check_deliver,
    check_group,
    no_group,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import Entry, EntryId

_SHORTEST_WAIT = 0.001  # keeps a clock slower than the event loop's from being polled in a tight loop


class MemoryGroups:
    """All groups of one process, in memory."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    async def join(
        self, subject: str, group: str, start: StartAt, *, ack_timeout: timedelta | None = None, cursor: bool = False
    ) -> bool:
        check_group(subject, group)
        log = self._logs.make(subject)
        if group in log.groups:
            return False
        log.groups[group] = Group(group, start.cursor(log.last))
        return True

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = timedelta(0),
    ) -> Sequence[Delivery]:
        limit = check_deliver(limit, ack_timeout)
        subjects = tuple(dict.fromkeys(subjects))
        delivered = self._grant(subjects, group, consumer, limit, ack_timeout)
        if delivered or not limit or wait <= timedelta(0):
            return delivered
        wakeup = asyncio.Event()
        self._logs.wakeups[wakeup] = frozenset(subjects)
        try:
            async with asyncio.timeout(wait.total_seconds()):
                while not delivered:
                    await self._wait_for_wakeup(wakeup, subjects, group)
                    delivered = self._grant(subjects, group, consumer, limit, ack_timeout)
        except TimeoutError:
            delivered = self._grant(subjects, group, consumer, limit, ack_timeout)
        finally:
            del self._logs.wakeups[wakeup]
        return delivered

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        now = self._logs.now()
        mine = []
        for delivery in deliveries:
            group = self._find(delivery.entry.subject, delivery.group)
            pending = None if group is None else group.find(delivery.entry.id)
            held = pending is not None and (pending.consumer, pending.number) == (consumer, delivery.number)
            if group is not None and pending is not None and held:
                group.set(replace(pending, until=now + ack_timeout))
            if group is not None and consumer in group.consumers:
                # A busy consumer asks for nothing new, and is alive all the same.
                group.consumers[consumer] = ConsumerSeen(now, now + ack_timeout)
            mine.append(held)
        return tuple(mine)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        check_answers(answers)
        now = self._logs.now()
        return tuple(self._settle(answer, now) for answer in answers)

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        log = self._logs.find(subject)
        found = self._find(subject, group)
        if log is None or found is None or found.floor >= upto:
            return Outcome.CONFLICT
        if upto > log.last:
            raise Refused(
                f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                do="read the stream again: a mark there would count future entries as acked",
            )
        found.delivered = max(found.delivered, upto)
        found.drop_below(EntryId(upto.ms, upto.seq + 1))
        return Outcome.DONE

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        found = self._find(subject, group)
        if found is None:
            return ()
        return tuple(
            ConsumerState(subject, group, name, len(found.held(name)), seen.at, seen.until)
            for name, seen in sorted(found.consumers.items())
        )

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        found = self._find(subject, group)
        seen = None if found is None else found.consumers.get(consumer)
        now = self._logs.now()
        if found is None or seen is None or seen.until > now:
            return Outcome.CONFLICT
        for pending in found.held(consumer):
            found.set(replace(pending, consumer="", until=now))
        del found.consumers[consumer]
        self._logs.fire({subject})
        return Outcome.DONE

    def _find(self, subject: str, group: str) -> Group | None:
        log = self._logs.find(subject)
        return None if log is None else log.groups.get(group)

    def _joined(self, subject: str, group: str) -> tuple[Log, Group]:
        log = self._logs.find(subject)
        found = None if log is None else log.groups.get(group)
        if log is None or found is None:
            raise no_group(group, subject)
        return log, found

    def _grant(
        self, subjects: Sequence[str], group: str, consumer: str, limit: int, ack_timeout: timedelta
    ) -> tuple[Delivery, ...]:
        now = self._logs.now()
        until = now + ack_timeout
        joined = [self._joined(subject, group) for subject in subjects]
        for _, found in joined:
            found.consumers[consumer] = ConsumerSeen(now, until)
        again = sorted(
            ((p.until, p.id, log, found) for log, found in joined for p in islice(found.due(now), limit)),
            key=lambda due: due[:2],
        )[:limit]
        due = sorted(((log, found, id) for _, id, log, found in again), key=lambda d: d[2])
        handed = [self._hand(log, found, entry, consumer, until) for log, found, id in due if (entry := log.get(id))]
        handed += [
            self._hand(log, found, entry, consumer, until) for log, found, entry in _new(joined, limit - len(handed))
        ]
        return tuple(handed)

    def _hand(self, log: Log, group: Group, entry: Entry, consumer: str, until: datetime) -> Delivery:
        before = group.find(entry.id)
        number = 1 if before is None else before.number + 1
        group.set(PendingEntry(entry.id, consumer, number, until))
        group.delivered = max(group.delivered, entry.id)
        return Delivery(entry, group.name, consumer, number, until)

    async def _wait_for_wakeup(self, wakeup: asyncio.Event, subjects: Sequence[str], group: str) -> None:
        """Waits for a change on one of the streams, or until something pending on one of them is due."""
        wakeup.clear()
        dues = [due for subject in subjects if (due := self._joined(subject, group)[1].next_due_at()) is not None]
        seconds = max((min(dues) - self._logs.now()).total_seconds(), _SHORTEST_WAIT) if dues else None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wakeup.wait()

    def _settle(self, answer: Answer, now: datetime) -> Outcome:
        group = self._find(answer.subject, answer.group)
        pending = None if group is None else group.find(answer.id)
        if group is None or pending is None:
            return Outcome.CONFLICT
        match answer:
            case Ack():
                group.drop(answer.id.seq)
            case Nak():
                group.set(replace(pending, consumer="", until=now + answer.delay))
                self._logs.fire({answer.subject})
            case DeadLetter():
                self._logs.append([answer.draft], now)
                group.drop(answer.id.seq)
        return Outcome.DONE


def _new(joined: Sequence[tuple[Log, Group]], limit: int) -> Iterator[tuple[Log, Group, Entry]]:
    """Entries that were never delivered to the group, the oldest of all streams first."""
    for log, group in joined if limit > 0 else ():
        if not log.count_after(group.delivered):
            group.delivered = max(group.delivered, log.last)  # the rest was trimmed: read to the end
    found = [
        (entry.id, log.subject, log, group, entry)
        for log, group in joined
        for entry in islice(log.after(group.delivered), limit)
    ]
    for _, _, log, group, entry in sorted(found, key=lambda f: f[:2])[:limit]:
        yield log, group, entry
