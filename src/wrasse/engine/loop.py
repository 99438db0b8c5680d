"""The engine: all sweeps in one TaskGroup, each waiting for its time, its lease and its turn.

Errors of one sweep never stop the others, and no outage stops the engine: a backend that is down is asked again after
a backoff with a cap. What other engines do shows in the shared state; what this one does shows in `status`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wrasse.duration import format_duration
from wrasse.engine.guard import STOPPING
from wrasse.engine.report import BACKEND_DOWN, ERROR, Report, Totals, describe, worth_telling
from wrasse.engine.run import RunContext, first_pause
from wrasse.engine.turn import (
    Elsewhere,
    Fresh,
    PausedBy,
    Ran,
    Scheduled,
    Shared,
    SweepBackend,
    SweepState,
    backoff,
    dry_run,
    load,
    remember,
    take_turns,
)
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, UnknownName
from wrasse.leases.core import leases_in
from wrasse.ports.guard import Guard
from wrasse.ports.journal import LineFilter

__all__ = ["ENGINE_LEASES", "Engine", "Scheduled", "SweepBackend", "SweepStatus"]

ENGINE_LEASES = leases_in(".wrasse")  # a reserved namespace: neither indexed nor counted as traffic
LEASE_TTL = timedelta(seconds=10)  # renewed while a run lasts; whoever is killed in one keeps others waiting so long
JOURNAL_KEPT = timedelta(days=90)
JOURNAL_EVERY = timedelta(hours=1)
JOURNAL_BATCH = 1_000
JOURNAL_BATCHES_MAX = 100  # per hour: a bound on one round, not a rate anybody reaches

_log = logging.getLogger("wrasse.engine")


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """One sweep as a person sees it now."""

    name: str
    enabled: bool
    interval: timedelta
    running: bool
    elsewhere: str  # the owner that runs it in another process, or empty
    next_at: datetime | None
    paused: PausedBy | None
    reports: tuple[Report, ...]  # oldest first, the newest of any engine last
    totals: Totals  # of this process

    @property
    def last(self) -> Report | None:
        """The newest report."""
        return self.reports[-1] if self.reports else None


class _Stopping(Guard):
    """Ends runs within one batch when the engine is asked to stop."""

    name = STOPPING

    def __init__(self) -> None:
        self.asked = False

    async def pause_reason(self) -> str | None:
        return "the engine is stopping" if self.asked else None


@dataclass(slots=True)
class _Post:
    """A sweep, and what this process knows about it."""

    scheduled: Scheduled
    wake: asyncio.Event
    lock: asyncio.Lock
    state: SweepState = field(default_factory=SweepState)
    totals: Totals = field(default_factory=Totals)
    told: Report | None = None
    running: bool = False
    elsewhere: str = ""
    next_at: datetime | None = None
    failures: int = 0  # outages in a row


class Engine:
    """Runs sweeps. Several engines on one store share the work; the lease of each sweep decides who."""

    def __init__(
        self,
        sweeps: Sequence[Scheduled],
        *,
        home: SweepBackend,
        context: RunContext,
        owner: str,
        lease_ttl: timedelta = LEASE_TTL,
        journal_kept: timedelta = JOURNAL_KEPT,
    ) -> None:
        self._stopping = _Stopping()
        self._clock = context.clock
        self._journal_kept = journal_kept
        self._shared = Shared(home, context, owner, lease_ttl, guards=(self._stopping,))
        self._posts: dict[str, _Post] = {}
        self._running: asyncio.TaskGroup | None = None
        self._journal_wake = asyncio.Event()
        self.add(sweeps)

    @property
    def names(self) -> tuple[str, ...]:
        """The instances this engine knows, in the order they were given."""
        return tuple(self._posts)

    def add(self, sweeps: Sequence[Scheduled]) -> None:
        """Adds sweeps, also while the engine runs: their backend may have come up later. A group is added at once."""
        added = _posts(sweeps)
        assert len(added) == len(sweeps), "every instance of a sweep has a name of its own"
        assert not added.keys() & self._posts.keys(), "every instance of a sweep has a name of its own"
        self._posts |= added
        if self._running is not None and not self._stopping.asked:
            self._start(self._running, added)

    async def run(self) -> None:
        """Runs every enabled sweep until `stop`, or until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._running = tasks
            self._start(tasks, self._posts)
            await self._forget()
            self._running = None

    def _start(self, tasks: asyncio.TaskGroup, posts: Mapping[str, _Post]) -> None:
        for name, group in _groups(posts).items():
            tasks.create_task(self._keep(group), name=f"sweep {name}")

    def stop(self) -> None:
        """Lets runs end within one batch, gives their leases back, and makes `run` return."""
        self._stopping.asked = True
        self._journal_wake.set()
        for post in self._posts.values():
            post.wake.set()

    async def sweep_now(self, name: str, *, wait: timedelta = timedelta(0)) -> Report:
        """Runs one sweep once and gives its report; refused if another process has been at it for all of `wait`."""
        post = self._post(name)
        async with post.lock:
            found = await self._take((post,), force=True, wait=wait)
        if isinstance(found, tuple):
            return found[0].report
        assert isinstance(found, Elsewhere), "a forced turn is never too early"
        owner = "another process" if found.lease is None else found.lease.owner
        raise Refused(
            f"{name} is being run by {owner}, for at most {format_duration(max(found.left, timedelta(0)))} more",
            do="wait for its report, or stop that process; its lease then ends by itself",
        )

    async def plan(self, name: str) -> Report:
        """A dry run: the report carries the plan, and nothing is changed."""
        post = self._post(name)
        async with post.lock:
            return await dry_run(post.scheduled, self._shared)

    async def refresh(self) -> None:
        """Reads what other engines did; `status` then shows it. A backend that is down hides only its own sweeps, and
        a record that cannot be read only its sweep."""
        for name, post in tuple(self._posts.items()):
            home = self._shared.home_of(post.scheduled)
            try:
                state = (await load(home.state, name)).state
                lease = await home.lease_manager.get(post.scheduled.lease_key)
            except (StoreUnavailable, StoreBroken):  # the latter is what its own runs say
                continue
            post.state = state
            post.elsewhere = lease.owner if lease is not None and lease.owner != self._shared.owner else ""

    def status(self) -> tuple[SweepStatus, ...]:
        """Every sweep as far as this engine knows."""
        return tuple(
            SweepStatus(
                name=name,
                enabled=post.scheduled.enabled,
                interval=post.scheduled.interval,
                running=post.running,
                elsewhere=post.elsewhere,
                next_at=post.next_at,
                paused=post.state.paused,
                reports=post.state.reports,
                totals=post.totals,
            )
            for name, post in self._posts.items()
        )

    def _post(self, name: str) -> _Post:
        try:
            return self._posts[name]
        except KeyError:
            raise UnknownName(name, self._posts, what="sweep") from None

    async def _keep(self, posts: Sequence[_Post]) -> None:
        """One sweep or one group, for as long as the engine runs."""
        first = posts[0]
        delay = first.scheduled.schedule.first(random.random())
        while not self._stopping.asked:
            next_at = self._clock.now() + timedelta(seconds=delay)
            for post in posts:
                post.next_at = next_at
            await _wait(first.wake, delay)
            if self._stopping.asked:
                return
            delay = await self._turn(posts)

    async def _turn(self, posts: Sequence[_Post]) -> float:
        """One turn, whatever happens in it; gives how long to wait for the next."""
        first = posts[0]
        try:
            async with first.lock:
                found = await self._take(posts)
        except Exception as error:
            reports = [self._failed(post, error) for post in posts]
            if reports[0].stopped_by != BACKEND_DOWN:
                return self._delay(first, timedelta(0))
            # Guards learn of an outage also when it is the lease that could not be had.
            await first_pause(first.scheduled.guards, foreseen=True)
            return self._backoff(first)
        match found:
            case Fresh(passed=passed):
                return self._delay(first, passed)
            case Elsewhere(left=left):
                # If whoever runs it dies, its lease ends; no need to wait for a long interval then.
                return min(self._delay(first, timedelta(0)), max(left.total_seconds(), 0.0) + 1 + random.random())
        down = any(each.report.stopped_by == BACKEND_DOWN or not each.saved for each in found)
        return self._backoff(first) if down else self._delay(first, max(each.report.took for each in found))

    async def _take(
        self, posts: Sequence[_Post], *, force: bool = False, wait: timedelta = timedelta(0)
    ) -> tuple[Ran, ...] | Fresh | Elsewhere:
        for post in posts:
            post.running = True
        try:
            found = await take_turns([post.scheduled for post in posts], self._shared, force=force, wait=wait)
        finally:
            for post in posts:
                post.running = False
        lease = found.lease if isinstance(found, Elsewhere) else None
        for post in posts:
            post.elsewhere = "" if lease is None else lease.owner
        if isinstance(found, Fresh):
            posts[0].state = found.state
        elif isinstance(found, tuple):
            for post, ran in zip(posts, found, strict=True):
                post.state = ran.state
                self._count(post, ran.report)
        return found

    def _delay(self, post: _Post, passed: timedelta) -> float:
        post.failures = 0
        return post.scheduled.schedule.after(passed, random.random())

    def _backoff(self, post: _Post) -> float:
        post.failures += 1
        usual = post.scheduled.schedule.after(timedelta(0), random.random())
        return min(backoff(post.failures, random.random()), usual)

    def _failed(self, post: _Post, error: Exception) -> Report:
        """The report of a turn that never came to its run."""
        down = isinstance(error, (StoreUnavailable, TimeoutError))
        now = self._clock.now()
        report = Report(
            run=self._shared.context.ids.new(),
            sweep=post.scheduled.instance,
            started_at=now,
            ended_at=now,
            failed=0 if down else 1,
            stopped_by=BACKEND_DOWN if down else ERROR,
            why=describe(error),
            cursor=post.state.cursor,
            errors=() if down else (describe(error),),
        )
        post.state = remember(post.state, report, post.state.ran_at, post.scheduled.guards)
        self._count(post, report)
        return report

    def _count(self, post: _Post, report: Report) -> None:
        post.totals.add(report)
        if not worth_telling(report, post.told):
            return
        post.told = report
        facts = {"sweep": report.sweep, "run": report.run, "reason": report.stopped_by, "count": report.done}
        _log.log(logging.INFO if report.good else logging.WARNING, _told(report), extra=facts)

    async def _forget(self) -> None:
        """Deletes journal lines past their time, once an hour. Two engines doing it do no harm."""
        delay, failures = random.uniform(0, 60), 0
        while not self._stopping.asked:
            await _wait(self._journal_wake, delay)
            if self._stopping.asked:
                return
            try:
                await self.forget_journal()
                delay, failures = JOURNAL_EVERY.total_seconds() * random.uniform(1, 1.1), 0
            except Exception as error:
                failures += 1
                delay = backoff(failures, random.random())
                if failures == 1:  # said once; the next hour that works needs no word
                    _log.warning("old journal lines could not be deleted: %s", describe(error))

    async def forget_journal(self) -> int:
        """Deletes settled journal lines older than `journal_kept`, by the journal's clock; gives how many."""
        journal, deleted = self._shared.context.journal, 0
        before = (await journal.page(LineFilter(), None, 1)).at - self._journal_kept
        for _ in range(JOURNAL_BATCHES_MAX):
            count = await journal.delete(before, JOURNAL_BATCH)
            deleted += count
            if count < JOURNAL_BATCH or self._stopping.asked:
                break
        return deleted


def _posts(sweeps: Sequence[Scheduled]) -> dict[str, _Post]:
    """A post per sweep; those of one group are woken together and wait for each other."""
    wakeups: dict[str, asyncio.Event] = {}
    locks: dict[str, asyncio.Lock] = {}
    return {
        each.instance: _Post(
            each, wakeups.setdefault(each.lease_key, asyncio.Event()), locks.setdefault(each.lease_key, asyncio.Lock())
        )
        for each in sweeps
    }


def _groups(posts: Mapping[str, _Post]) -> dict[str, tuple[_Post, ...]]:
    """The sweeps that are to run, those of one group together."""
    found: dict[str, tuple[_Post, ...]] = {}
    for post in posts.values():
        if post.scheduled.enabled:
            name = post.scheduled.lease_key
            found[name] = (*found.get(name, ()), post)
    return found


def _told(report: Report) -> str:
    kept = sum(report.kept.values())
    text = f"{report.sweep}: {report.seen} seen, {kept} kept"
    text += f", {report.done} done, {report.conflict} in conflict, {report.failed} failed"
    if report.unknown:
        text += f", {report.unknown} unknown"
    if report.stopped_by:
        text += f"; stopped by {report.stopped_by}: {report.why}"
    return "; ".join((text, *report.notes, *report.errors))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event or the time, whichever comes first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
