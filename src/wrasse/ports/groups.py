"""Groups: consumers that share a stream, each entry delivered to one of them until it is acked.

Promise. Two groups each get every entry; two consumers of one group share without overlap. A delivery that is not
answered by its deadline is delivered again, to any consumer, with its count kept. An acked entry is never delivered
again. A dead letter is stored before its original is acked. No group and no consumer with something pending is ever
removed. What not every engine can give (the outcome of each ack, a time-out per call, the consumer of each
pending entry) is declared in `Capabilities`.

Costs. deliver and answer: one round trip a batch, following what is delivered, not what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from wrasse.clock import to_micros
from wrasse.errors import UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.rules.subjects import check_subject
from wrasse.ports.streams import START, Draft, Entry, EntryId, check_drafts

DELIVERIES_MAX = 10_000  # in one call
GROUP_BYTES_MAX = 255
ACK_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a new group begins: at the first entry, after the last, at a moment, or after an id."""

    first: bool = False
    at: datetime | None = None
    after: EntryId | None = None  # none of the three set: after the last entry there is now

    def cursor(self, last: EntryId) -> EntryId:
        """What a group that begins so has read already, in a stream with this last entry."""
        if self.first:
            return START
        if self.at is not None:
            return EntryId(max(to_micros(self.at) // 1_000, 0), 0).previous
        return last if self.after is None else self.after


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One hand-out of an entry. `number` counts hand-outs, this one included."""

    entry: Entry
    group: str
    consumer: str
    number: int
    until: datetime


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The entry is dealt with."""

    subject: str
    group: str
    id: EntryId


class Nak(msgspec.Struct, frozen=True, gc=False):
    """Deliver it again, not before `delay` from now."""

    subject: str
    group: str
    id: EntryId
    delay: timedelta = timedelta(0)


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """Append `draft` to where dead letters go and ack the entry: in one step, or in this order."""

    subject: str
    group: str
    id: EntryId
    draft: Draft


Answer = Ack | Nak | DeadLetter


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """One consumer of a group. Past `until` it counts as dead. One of another program (`foreign`) never said until when
    it lives: only that it did nothing since `seen_at` is known."""

    subject: str
    group: str
    consumer: str
    pending: int
    seen_at: datetime
    until: datetime
    foreign: bool = False


def no_group(group: str, subject: str) -> UsageError:
    """The error for a group that was not joined, or was removed since."""
    return UsageError(f"there is no group {group!r} on {subject!r}", do="join it before asking for deliveries")


class Groups(Protocol):
    """The groups of all streams."""

    async def join(
        self, subject: str, group: str, start: StartAt, *, ack_timeout: timedelta | None = None, cursor: bool = False
    ) -> bool:
        """Makes the group (and the stream) exist; False if it did, and then `start` means nothing. `ack_timeout` is for
        backends with one per group: None takes that of an existing group, or 30 s. `cursor`: the group is moved by
        `mark` and delivers nothing."""
        ...

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
        """Up to `limit` entries: first those whose deadline passed or whose delay is over, then new ones, in order.
        Also notes that the consumer is alive for `ack_timeout`, where the backend knows consumers. A limit of zero
        delivers nothing; with an `ack_timeout` of zero as well the consumer counts as dead at once. A cancelled call
        delivers nothing."""
        ...

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        """Moves the deadlines on; False for one that is acked, or delivered to another consumer since. Shows, like
        deliver, that the consumer is alive."""
        ...

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        """`done`, or `conflict` where the entry was not pending in that group, as far as the backend tells
        (`ack_outcome`). All are stored when it returns."""
        ...

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        """Moves a group that reads by cursor on to `upto`, acking everything at or below it; `conflict` if it is there
        or beyond already, or if there is no such group. Beyond the last entry it is refused."""
        ...

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        """The consumers that the group knows."""
        ...

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        """Makes all pending entries of a dead consumer due at once for the others, counts kept, and removes it;
        `conflict` if it is alive after all."""
        ...


def check_group(subject: str, group: str) -> None:
    """Refuses names that no backend could keep, before anything is sent."""
    check_subject(subject)
    if not 1 <= len(group.encode("utf-8", "surrogatepass")) <= GROUP_BYTES_MAX or not group.isprintable():
        raise UsageError(
            f"the group {group[:40]!r} of {subject!r}", do=f"use 1 to {GROUP_BYTES_MAX} bytes of printable characters"
        )


def check_deliver(limit: int, ack_timeout: timedelta) -> int:
    """How many deliveries one call may return; refuses what makes no sense."""
    if limit < 0 or ack_timeout < timedelta(0) or (limit and not ack_timeout):
        raise UsageError(
            f"{limit} deliveries to be acked within {ack_timeout}", do="ask for zero or more, for longer than zero"
        )
    return min(limit, DELIVERIES_MAX)


def check_answers(answers: Sequence[Answer]) -> Sequence[DeadLetter]:
    """Refuses answers that no backend could keep; returns the dead letters among them."""
    if len(answers) > DELIVERIES_MAX:
        raise UsageError(f"{len(answers)} answers at once", do=f"send at most {DELIVERIES_MAX}")
    if DeadLetter not in set(map(type, answers)):  # as nearly always, and found out at a quarter of the price
        return ()
    dead_letters = [answer for answer in answers if isinstance(answer, DeadLetter)]
    check_drafts([dead_letter.draft for dead_letter in dead_letters])
    return dead_letters
