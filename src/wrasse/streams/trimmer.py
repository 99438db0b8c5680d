"""Trims streams in bounded steps, and counts lost entries where loss is allowed.

Each step is one atomic operation of the backend, which checks age and groups again. Steps are repeated until nothing is
left to trim or the time of one batch is over; the next run continues. Where a rule allows data loss, entries that every
group has acked are trimmed first, so that the rest can be counted as lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import GroupState, Streams, StreamState
from wrasse.streams.alerts import Alert, Alerts
from wrasse.streams.publisher import Publisher
from wrasse.streams.retention import Bound

SLICE = 20.0  # seconds of one batch; the engine ends a call after sixty


@dataclass(frozen=True, slots=True)
class TrimOrder:
    """Trim this stream as far as allowed, up to `entries_max` entries per step."""

    subject: str
    bound: Bound
    entries_max: int


class RetentionTally:
    """Numbers that only grow, for metrics to read."""

    __slots__ = ("alerts", "lost", "trimmed", "trimmed_pending")

    def __init__(self) -> None:
        self.trimmed = 0  # entries, of which
        self.lost = 0  # some protecting group had not acked
        self.trimmed_pending = 0  # entries that another program trimmed while pending in a group
        self.alerts = 0


class Trimmer:
    """Trims streams of one backend."""

    def __init__(self, streams: Streams, alerts: Alerts, clock: Clock, tally: RetentionTally) -> None:
        self._streams = streams
        self._alerts = alerts
        self._clock = clock
        self._publisher = Publisher(streams, clock)
        self._removed: dict[str, int] = {}  # since the last call of `removed`
        self.tally = tally

    def ends(self) -> float:
        """When a batch that begins now ends."""
        return self._clock.monotonic() + SLICE

    async def trim(self, order: TrimOrder, ends: float) -> Outcome:
        """Trims one stream until `ends`; `conflict` if there was nothing to trim."""
        removed = await self._trim_steps(order, order.bound.protect, ends)
        if order.bound.rule.allow_data_loss and self._clock.monotonic() < ends:
            removed += await self._trim_unacked(order, ends)
        return Outcome.DONE if removed else Outcome.CONFLICT

    def removed(self) -> Mapping[str, int]:
        """How many entries were trimmed, by stream, since the last call."""
        removed, self._removed = self._removed, {}
        return removed

    async def publish(self, subject: str, payload: bytes) -> None:
        """Publishes an event; a failure is ignored."""
        with contextlib.suppress(StoreUnavailable):
            await self._publisher.publish(subject, payload)

    async def _trim_steps(self, order: TrimOrder, protect: Sequence[str], ends: float) -> int:
        removed = 0
        while True:
            done = await self._streams.trim(
                order.subject, age=order.bound.rule.age, below=None, protect=protect, limit=order.entries_max
            )
            removed += done.count
            self.tally.trimmed += done.count
            if done.count:
                self._removed[order.subject] = self._removed.get(order.subject, 0) + done.count
            if not done.more or self._clock.monotonic() >= ends:
                return removed

    async def _trim_unacked(self, order: TrimOrder, ends: float) -> int:
        """Trims entries that a protecting group has not acked, too."""
        before = await self._streams.info(order.subject)
        removed = await self._trim_steps(order, (), ends)
        after = await self._streams.info(order.subject)
        lost = lost_entries(before, after, order.bound.protect, removed)
        if lost:
            self.tally.lost += lost
            await self._alerts.say(
                Alert(
                    order.subject,
                    "entries were trimmed that a protecting group had not acked, as retention allows here",
                    "take allow_data_loss from its retention rule to keep them",
                    group=", ".join(order.bound.protect),
                    count=lost,
                )
            )
        return removed


def lost_entries(before: StreamState | None, after: StreamState | None, protect: Sequence[str], removed: int) -> int:
    """How many of the removed entries some protecting group had not acked: pending, or never read. Pure."""
    if before is None or after is None or not removed:
        return removed if protect else 0
    added = after.appended - before.appended
    later = {group.name: group for group in after.groups}
    earlier = {group.name: group for group in before.groups}
    return max((_unacked(earlier.get(name), later.get(name), added, removed) for name in protect), default=0)


def _unacked(before: GroupState | None, after: GroupState | None, added: int, removed: int) -> int:
    if before is None or after is None:
        return removed
    pending = max(before.pending - after.pending, 0)
    if before.lag is None or after.lag is None:
        return removed  # unknown: all of them, rather than too few
    return min(pending + max(before.lag + added - after.lag, 0), removed)
