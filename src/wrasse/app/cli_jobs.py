"""wrasse jobs: the group, and how its commands reach the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from wrasse.app.cli_group import LazyGroup
from wrasse.app.config import Config
from wrasse.app.homes import homes
from wrasse.app.task_opening import open_tasks, task_home
from wrasse.app.wiring import Stores, open_store, with_jobs
from wrasse.clock import SystemClock
from wrasse.jobs.routed import RoutedJobs
from wrasse.ports.backend import JobStore
from wrasse.ports.jobs import JobQueue
from wrasse.ports.pulse import Pulse

HOMES = {
    "put": ("cli_jobs_put", "put one job, or one per line"),
    "list": ("cli_jobs_look:list_jobs", "jobs of a place, page by page"),
    "show": ("cli_jobs_look", "one job: state, history, payload"),
    "peek": ("cli_jobs_look", "the jobs that are served next, and how their payloads begin"),
    "stats": ("cli_jobs_look", "how many jobs are where, and who works"),
    "dead": ("cli_jobs_look", "dead jobs and why they died"),
    "requeue": ("cli_jobs_change", "make dead jobs ready again"),
    "replay": ("cli_jobs_replay", "make many dead jobs ready again, a few first"),
    "cancel": ("cli_jobs_change", "stop jobs that wait or run"),
    "purge": ("cli_jobs_change", "delete finished or waiting jobs for good"),
    "fsck": ("cli_jobs_fsck", "look for damage in what is kept of jobs, and repair it"),
}

jobs = LazyGroup(
    "jobs",
    HOMES,
    about="Put, list, show, requeue, cancel and purge jobs.",
    examples="""\b
Examples:
  wrasse jobs put --kind=resize '{"path": "a.png"}'
  wrasse jobs stats
  wrasse jobs dead --reason=timeout
""",
)


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """Jobs and tasks as one queue, and the pulse of where jobs live."""

    jobs: JobQueue
    store: JobStore

    async def pulse(self) -> Pulse:
        """What time it is there."""
        return await self.store.pulse()


@asynccontextmanager
async def opened_queue(config: Config, *, create: bool = False) -> AsyncIterator[OpenQueue]:
    """Jobs, and the tasks of the types that the settings name, for the length of a command; one that only reads creates
    nothing."""
    stores = Stores(SystemClock(), done_max=config.settings.worker.done_max, create=create)
    try:
        yield await open_queue(config, stores)
    finally:
        await stores.close()


async def open_queue(config: Config, stores: Stores) -> OpenQueue:
    """Jobs and tasks, where they live."""
    store, home = with_jobs(await stores.open(homes(config).jobs)), task_home(config)
    if home is None:
        return OpenQueue(store.jobs, store)
    tasks = partial(open_tasks, home, stores)
    return OpenQueue(RoutedJobs(store.jobs, tasks, list(config.settings.task_types)), store)


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[JobStore]:
    """The backend that holds the jobs, for the length of a command."""
    store = await open_store(homes(config).jobs, done_max=config.settings.worker.done_max, create=False)
    try:
        yield with_jobs(store)
    finally:
        await store.close()
