"""From settings to the sweeps of tasks: `stuck_jobs` and `finished_jobs`, each with an instance of its own for tasks,
since a place has a cadence of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta

from wrasse.app.settings import Settings
from wrasse.app.sweep_ports import Opened, scheduled, stray_search, sweep_home
from wrasse.clock import Clock
from wrasse.engine.guard import MassDeath, PlainLockGuard
from wrasse.engine.loop import Scheduled
from wrasse.engine.pulses import backend_guards
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
    sweep = StuckJobs(
        tasks,
        # The deadline of each task is its record's own; nothing is added to it here.
        silence=timedelta(0),
        search=stray_search(settings.reaper, tasks.strays, clock),
        retries={name: each.max_retries for name, each in settings.task_types.items()},
        reports=tasks.reports,
    )
    guards: tuple[Guard, ...] = (
        *backend_guards(opened.records, clock, silence, skew_max=settings.engine.skew_max),
        MassDeath(tasks.workers, silence),
    )
    if opened.records.plain_locks is not None:
        guards = (PlainLockGuard(opened.records.plain_locks, settings.sweeper.lock_ttl), *guards)
    own, home = settings.sweeps[StuckJobs.name], sweep_home(opened.records, clock)
    return scheduled(sweep, own, guards, instance_of(StuckJobs.name), home, interval=settings.sweeper.interval)


def _finished(settings: Settings, opened: Opened, tasks: StreamedJobs, clock: Clock) -> Scheduled:
    own = settings.sweeps[FinishedJobs.name]
    sweep = FinishedJobs(AgedTasks(tasks.ports, tasks.types), **own.fields)  # type: ignore[arg-type]
    guards = backend_guards(opened.records, clock, skew_max=settings.engine.skew_max)
    return scheduled(sweep, own, guards, instance_of(FinishedJobs.name), sweep_home(opened.records, clock))
