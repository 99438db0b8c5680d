"""From settings to the sweeps of tasks: `stuck_jobs` and `finished_jobs`, each with an instance of its own for tasks,
since a place has a cadence of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

from wrasse.app.settings import Settings
from wrasse.app.sweep_ports import Opened, sweep_home
from wrasse.clock import Clock
from wrasse.engine.budget import Budget
from wrasse.engine.guard import MassDeath
from wrasse.engine.loop import Scheduled
from wrasse.engine.plain_lock import PlainLockGuard
from wrasse.engine.pulses import backend_guards
from wrasse.engine.run import AnySweep
from wrasse.jobs.stray_search import StraySearch
from wrasse.jobs.stream_tasks.queue import AgedTasks, StreamedJobs
from wrasse.ports.guard import Guard
from wrasse.sweeps.finished_jobs import FinishedJobs
from wrasse.sweeps.stuck_jobs import StuckJobs


def instance_of(name: str) -> str:
    """What the instance of a sweep for tasks is called in leases, state, journal and metrics."""
    return f"{name}@tasks"


def build_task_sweeps(
    settings: Settings, opened: Opened, clock: Clock, only: Collection[str] | None
) -> Iterator[Scheduled]:
    """The sweeps of tasks, where there are types of tasks."""
    tasks = opened.tasks
    if tasks is None:
        return
    if only is None or StuckJobs.name in only:
        yield _stuck(settings, opened, tasks, clock)
    if only is None or FinishedJobs.name in only:
        yield _finished(settings, opened, tasks, clock)


def _stuck(settings: Settings, opened: Opened, tasks: StreamedJobs, clock: Clock) -> Scheduled:
    silence = settings.sweeper.stuck_threshold
    own = settings.reaper
    sweep = StuckJobs(
        tasks,
        # The deadline of each task is its record's own; nothing is added to it here.
        silence=timedelta(0),
        search=StraySearch(tasks.strays, clock, own.scan_count, own.pass_budget, own.page_delay, own.page_jitter),
        retries={name: each.max_retries for name, each in settings.task_types.items()},
        reports=tasks.reports,
    )
    guards: tuple[Guard, ...] = (
        *backend_guards(opened.records, clock, silence, skew_max=settings.engine.skew_max),
        MassDeath(tasks.workers, silence),
    )
    if opened.records.plain_locks is not None:
        guards = (PlainLockGuard(opened.records.plain_locks, settings.sweeper.lock_ttl), *guards)
    scheduled = _scheduled(StuckJobs.name, sweep, settings, guards)
    return replace(scheduled, interval=settings.sweeper.interval, home=sweep_home(opened.records, clock))


def _finished(settings: Settings, opened: Opened, tasks: StreamedJobs, clock: Clock) -> Scheduled:
    fields = settings.sweeps[FinishedJobs.name].fields
    sweep = FinishedJobs(AgedTasks(tasks.ports, tasks.types), **fields)  # type: ignore[arg-type]
    guards = backend_guards(opened.records, clock, skew_max=settings.engine.skew_max)
    return replace(
        _scheduled(FinishedJobs.name, sweep, settings, guards), home=sweep_home(opened.records, clock)
    )


def _scheduled(name: str, sweep: AnySweep, settings: Settings, guards: tuple[Guard, ...]) -> Scheduled:
    own = settings.sweeps[name]
    return Scheduled(
        sweep,
        interval=own.interval,
        jitter=own.jitter,
        budget=Budget(own.actions_max, own.runtime_max, own.pause),
        guards=guards,
        enabled=own.enabled,
        name=instance_of(name),
    )
