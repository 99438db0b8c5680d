"""The settings of a worker, and what the components of one run of it share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from wrasse.breaker import BreakerSettings
from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.ids import Ids
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.tally import Tally
from wrasse.jobs.trace import Spans
from wrasse.jobs.worker.breakers import Breakers
from wrasse.jobs.worker.running_job import InFlightJobs
from wrasse.ports.jobs import JobQueue, Rate, WorkerInfo

_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. `queues` are served in this order, all of the first before any of the second, unless there
    are `weights`. Of jobs that were rescued `isolate_after` times or more it runs one at a time. With `breaker`, a
    queue whose jobs keep failing is paused for a while."""

    queues: tuple[str, ...] = ("high", "low")
    concurrency: int = 16
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    timeout: timedelta = timedelta(hours=1)  # of a job that has none of its own
    retry: RetryPolicy = _RETRY
    wait: timedelta = timedelta(seconds=1)  # how long one claim waits for a job
    isolate_after: int = 2
    weights: Mapping[str, int] = field(default_factory=dict)
    rates: tuple[Rate, ...] = ()
    breaker: BreakerSettings | None = None
    breaker_pause: timedelta = timedelta(seconds=0.1)  # between claims while the breaker of every queue is open

    def __post_init__(self) -> None:
        if not self.queues:
            raise UsageError("a worker without queues", do="name at least one queue")
        if self.concurrency < 1:
            raise UsageError(f"a worker with {self.concurrency} slots", do="give it at least one")
        if min(self.heartbeat_timeout, self.timeout) <= timedelta(0):
            raise UsageError("a heartbeat timeout or timeout of zero", do="give a duration greater than zero")


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a worker counts, and the spans of its attempts."""

    tally: Tally = field(default_factory=Tally)
    spans: Spans | None = None


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What the components of one run share."""

    jobs: JobQueue
    info: WorkerInfo
    settings: WorkerSettings
    clock: Clock
    ids: Ids
    telemetry: Telemetry
    claims: InFlightJobs
    breakers: Breakers | None  # None: without circuit breakers
    capacity: asyncio.Event  # set when a slot, or a place in the heartbeat table, becomes free
