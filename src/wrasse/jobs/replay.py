"""Requeues many dead jobs, canaries first.

A few jobs are requeued first and watched; if too many fail again, the cause is still there and the rest stays dead.
Otherwise the rest follows, no faster than the given rate. Only jobs that were dead when the replay began are touched,
so a job that dies again is not replayed twice, and an interrupted replay is simply started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.ports.jobs import JobFilter, JobInfo, JobQueue, JobState, Rate, RequeueDead
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages

PAGE = 500
_POLL = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """How careful a replay is. No canaries: all at once. `share`: the fraction of them that may fail."""

    canaries: int = 10
    watch: timedelta = timedelta(seconds=30)
    share: float = 0.2
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """The result of the canaries: `failed` are dead again, or have failed and wait for another attempt."""

    count: int = 0
    done: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. `why` is empty unless it stopped early."""

    requeued: int
    conflict: int  # changed by another caller meanwhile
    canaries: Watched
    why: str = ""


def verdict(watched: Watched, share: float) -> str:
    """Why the rest should stay dead; empty when it need not. Pure."""
    if watched.count and watched.failed > share * watched.count:
        return f"{watched.failed} of {watched.count} canaries failed again"
    if watched.count and not watched.done:
        return f"none of {watched.count} canaries ended while they were watched"
    return ""


class JobReplay:
    """One replay of the dead jobs that match a filter. `began` is the backend's time at its beginning."""

    def __init__(self, jobs: JobQueue, clock: Clock, where: JobFilter, began: datetime, plan: ReplayPlan) -> None:
        self._jobs, self._clock, self._plan = jobs, clock, plan
        before = began if where.finished_before is None else min(began, where.finished_before)
        self._where = replace(where, finished_before=before)

    async def pages(self) -> AsyncIterator[Sequence[JobInfo]]:
        """The jobs it would requeue, the longest dead first."""
        async for page in pages(lambda after: self._jobs.page(JobState.DEAD, self._where, after, PAGE)):
            if page.items:
                yield page.items

    async def run(self, seen: Callable[[int], None]) -> ReplayResult:
        """Replays. `seen` is called with the number of jobs processed since the last call."""
        requeued = conflict = 0
        watched = Watched()
        began = self._clock.monotonic()
        waiting = self._plan.canaries
        async for page in self.pages():
            infos = [*page]
            if waiting:
                canaries, infos, waiting = infos[:waiting], infos[waiting:], 0
                requeued_infos = await self._requeue(canaries)
                requeued, conflict = len(requeued_infos), len(canaries) - len(requeued_infos)
                seen(len(canaries))
                watched = await self._watch(requeued_infos)
                why = verdict(watched, self._plan.share)
                if why:
                    return ReplayResult(requeued, conflict, watched, why)
                began = self._clock.monotonic()
            for start in range(0, len(infos), self._step()):
                some = infos[start : start + self._step()]
                await self._pace(began, requeued - watched.count)
                requeued_infos = await self._requeue(some)
                requeued, conflict = requeued + len(requeued_infos), conflict + len(some) - len(requeued_infos)
                seen(len(some))
        return ReplayResult(requeued, conflict, watched)

    async def _requeue(self, infos: Sequence[JobInfo]) -> list[JobInfo]:
        outcomes = await self._jobs.move([RequeueDead(info.claim) for info in infos])
        return [info for info, outcome in zip(infos, outcomes, strict=True) if outcome is Outcome.DONE]

    def _step(self) -> int:
        """How many at once: the share of a tenth of a second."""
        rate = self._plan.rate
        return PAGE if rate is None else max(1, min(PAGE, int(rate.limit / rate.per.total_seconds() / 10)))

    async def _pace(self, began: float, sent: int) -> None:
        rate = self._plan.rate
        if rate is not None:
            due = began + sent * rate.per.total_seconds() / rate.limit
            await asyncio.sleep(max(due - self._clock.monotonic(), 0))

    async def _watch(self, canaries: Sequence[JobInfo]) -> Watched:
        """Polls until all have ended, the time is up, or too many have failed."""
        deadline = self._clock.monotonic() + self._plan.watch.total_seconds()
        left = {info.id for info in canaries}
        done = dead = 0
        while True:
            failing = 0
            for id in sorted(left):
                record = await self._jobs.get(id)
                if record is None or record.info.state is JobState.DONE:
                    done += 1
                elif record.info.state is JobState.DEAD:
                    dead += 1
                else:
                    failing += record.info.failures > 0
                    continue
                left.discard(id)
            watched = Watched(len(canaries), done, dead + failing)
            too_many = dead > self._plan.share * len(canaries)
            if not left or too_many or self._clock.monotonic() >= deadline:
                return watched
            await asyncio.sleep(_POLL)
