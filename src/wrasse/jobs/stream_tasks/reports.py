"""What the sweep of tasks tells others: `gbe.events.system.sweep` when it changed something and every ten minutes,
`gbe.events.system.error` once for each record that is malformed.

An event that cannot be published undoes nothing, and is counted: what was moved is moved, with its own events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from wrasse.clock import Clock
from wrasse.errors import StoreUnavailable
from wrasse.jobs.stream_tasks.events import WATCHER, Post, SweepReport
from wrasse.jobs.stream_tasks.names import ERRORS, SWEEPS, TASKS
from wrasse.ports.streams import Draft, Streams

EVERY = timedelta(minutes=10)


class MalformedTask(msgspec.Struct, frozen=True):
    """A record that is no task: it is left as it is."""

    key: str
    reason: str
    source: str = WATCHER


class TaskReports:
    """Publishes what the sweep of tasks did."""

    def __init__(self, streams: Streams, post: Post, clock: Clock, malformed: Mapping[str, str]) -> None:
        self._streams = streams
        self._post = post
        self._clock = clock
        self._told_at: float | None = None
        self._malformed = malformed  # why, by key: what whoever reads records has found
        self._told: set[str] = set()
        self.lost = 0  # events that could not be published

    async def did(self, retried: int, failed: int) -> None:
        """The sweep changed something."""
        if retried or failed:
            await self._report(retried, failed)

    async def looked(self) -> None:
        """The sweep is at work; whatever was found malformed is told of once."""
        if self._told_at is None or self._clock.monotonic() - self._told_at >= EVERY.total_seconds():
            await self._report(0, 0)
        fresh = {key: why for key, why in self._malformed.items() if key not in self._told}
        self._told = set(self._malformed)
        events = [MalformedTask(f"{TASKS.data}:{key}", why) for key, why in fresh.items()]
        await self._publish([self._post.seal(ERRORS, msgspec.json.encode(event), "") for event in events])

    async def _report(self, retried: int, failed: int) -> None:
        self._told_at = self._clock.monotonic()
        event = msgspec.json.encode(SweepReport(retried, failed))
        await self._publish([self._post.seal(SWEEPS, event, "")])

    async def _publish(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        try:
            await self._streams.append(drafts)
        except StoreUnavailable:
            self.lost += len(drafts)
