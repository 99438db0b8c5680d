"""Bugs in streams, planted on purpose: each takes away one precondition. The simulation must notice every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from simulation.stream_world import Bug
from wrasse.backends.memory.groups import MemoryGroups
from wrasse.backends.memory.streams import Group, MemoryStreams
from wrasse.ports.groups import Ack, Answer, DeadLetter, Delivery, Nak
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import EntryId, Trimmed
from wrasse.streams.consumer import Consumer
from wrasse.streams.envelope import Envelope


class TrimIgnoresTheFloor(MemoryStreams):
    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        return await super().trim(subject, age=age, below=below, protect=(), limit=limit)


class TrimIgnoresWhatIsPending(MemoryStreams):
    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        log = self._logs.find(subject)
        assert log is not None
        read = min(log.groups[name].delivered for name in protect)
        return await super().trim(subject, age=age, below=EntryId(read.ms, read.seq + 1), protect=(), limit=limit)


class TrimAsksHowMuchIsPending(MemoryStreams):
    """The design document's guard: an archiver or a worker group with few entries pending counts as up to date."""

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        log = self._logs.find(subject)
        assert log is not None
        behind = any(len(log.groups[name]) > 10 for name in protect)
        return await super().trim(subject, age=age, below=below, protect=protect if behind else (), limit=limit)


class TrimByAClockAhead(MemoryStreams):
    """Whoever trims takes its own clock, and that is 25 hours ahead."""

    async def trim(
        self, subject: str, *, age: timedelta | None, below: EntryId | None, protect: Sequence[str], limit: int
    ) -> Trimmed:
        ahead = None if age is None else age - timedelta(hours=25)
        return await super().trim(subject, age=ahead, below=below, protect=protect, limit=limit)


class DeliveryIgnoresTheDeadline(MemoryGroups):
    def _grant(self, *asked: Any) -> tuple[Delivery, ...]:
        for group in (self._joined(subject, asked[1])[1] for subject in asked[0]):
            first = group.first()
            if first is not None:
                group.set(replace(first, until=self._logs.now()))
        return super()._grant(*asked)


class AnAckIsForgotten(MemoryGroups):
    def _settle(self, answer: Answer, now: datetime) -> Outcome:
        return Outcome.DONE if isinstance(answer, Ack) and answer.id.seq % 7 == 0 else super()._settle(answer, now)


class ANakIsAnAck(MemoryGroups):
    def _settle(self, answer: Answer, now: datetime) -> Outcome:
        outcome = super()._settle(answer, now)
        group = self._find(answer.subject, answer.group)
        if isinstance(answer, Nak) and group is not None:
            group.drop(answer.id.seq)
        return outcome


class ADeadLetterIsNotAcked(MemoryGroups):
    def _settle(self, answer: Answer, now: datetime) -> Outcome:
        group = self._find(answer.subject, answer.group)
        before = None if group is None else group.find(answer.id)
        outcome = super()._settle(answer, now)
        if isinstance(answer, DeadLetter) and group is not None and before is not None:
            group.set(before)
        return outcome


class ExtendIgnoresTheHolder(MemoryGroups):
    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        found = [(self._find(each.entry.subject, each.group), each.entry.id) for each in deliveries]
        return [group is not None and group.find(id) is not None for group, id in found]


class RetireIgnoresLife(MemoryGroups):
    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        found: Group | None = self._find(subject, group)
        if found is not None and consumer in found.consumers:
            found.consumers[consumer] = replace(found.consumers[consumer], until=self._logs.now())
        return await super().retire(subject, group, consumer)


class CountsAreForgotten(MemoryGroups):
    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        outcome = await super().retire(subject, group, consumer)
        found = self._find(subject, group)
        for pending in found.held("") if found is not None else ():
            found.set(replace(pending, number=0))  # type: ignore[union-attr]
        return outcome


class AcksBeforeHandling(Consumer):
    async def _handle(self, delivery: Delivery, envelope: Envelope) -> None:
        self._send_answer(delivery, Ack(delivery.entry.subject, delivery.group, delivery.entry.id))
        await super()._handle(delivery, envelope)


class AcksWhatFailed(Consumer):
    def _failed(self, delivery: Delivery, received: Any, error: Exception) -> None:
        self._send_answer(delivery, Ack(delivery.entry.subject, delivery.group, delivery.entry.id))


BUGS = (
    Bug("trim ignores the floor", streams=TrimIgnoresTheFloor),
    Bug("trim ignores what is pending", streams=TrimIgnoresWhatIsPending),
    Bug("trim asks how much is pending", streams=TrimAsksHowMuchIsPending),
    Bug("trim by a clock that is ahead", streams=TrimByAClockAhead),
    Bug("delivery ignores the deadline", groups=DeliveryIgnoresTheDeadline),
    Bug("an ack is forgotten", groups=AnAckIsForgotten),
    Bug("a nak is an ack", groups=ANakIsAnAck),
    Bug("a dead letter is not acked", groups=ADeadLetterIsNotAcked),
    Bug("extend ignores the worker", groups=ExtendIgnoresTheHolder),
    Bug("retire ignores life", groups=RetireIgnoresLife),
    Bug("counts are forgotten", groups=CountsAreForgotten),
    Bug("acks before handling", consumer=AcksBeforeHandling),
    Bug("acks what failed", consumer=AcksWhatFailed),
)
