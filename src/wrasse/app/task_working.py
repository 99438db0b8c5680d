"""Workers of tasks: one for each type, since a type has slots, a deadline and a budget of its own. Handlers are those
of all jobs; a task's kind, or its type where it has none, says which one does it."""

from __future__ import annotations

from wrasse.app.building import breaker_settings
from wrasse.app.config import Config
from wrasse.app.sweep_ports import Opened
from wrasse.app.task_opening import task_home
from wrasse.app.task_settings import threshold
from wrasse.clock import Clock
from wrasse.jobs.beats import Beats, ChildBeats, LoopBeats
from wrasse.jobs.handlers import Handlers
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker import Worker, WorkerSettings


def build_task_workers(
    config: Config, opened: Opened, clock: Clock, handlers: Handlers, tally: Tally
) -> tuple[Worker, ...]:
    """A worker for every type of tasks."""
    home, own = task_home(config), config.settings.worker
    if home is None or opened.tasks is None:
        return ()
    in_memory = home.records.startswith("memory:")
    breaker = breaker_settings(config.settings.circuit_breaker)
    workers = []
    for name, kind in config.settings.task_types.items():
        beats: Beats = LoopBeats(opened.tasks, clock) if in_memory else ChildBeats(home.url(), tally)
        settings = WorkerSettings(
            queues=(name,),
            concurrency=kind.workers,
            silence=threshold(kind, config.settings.sweeper),
            timeout=own.timeout,
            retry=RetryPolicy(kind.max_retries, own.backoff.base, own.backoff.max),
            wait=own.brpoplpush_timeout,
            breaker=breaker,
            breaker_pause=own.breaker_pause,
        )
        workers.append(Worker(opened.tasks, handlers.serving(name), clock, beats, settings, tally))
    return tuple(workers)
