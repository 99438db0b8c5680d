"""Queues on records under test: a backend whose jobs are made of its own records and objects."""

from __future__ import annotations

from typing import Protocol

import pytest

from wrasse.clock import Clock
from wrasse.jobs.record_queue.queue import RecordedJobs, RecordedOptions
from wrasse.ports.guard import HealthSample
from wrasse.ports.objects import Objects
from wrasse.ports.records import Collection, Records

PREFIX = "recorded "
# A bucket's time cannot be moved by hand where it is a server's: SeaweedFS is for the suites of its own.
RECORDED_BACKENDS = (
    "recorded memory",
    pytest.param("recorded directory", marks=pytest.mark.full),
    pytest.param("recorded strict s3", marks=pytest.mark.full),
)


class Backend(Protocol):
    """What a queue on records is made of."""

    @property
    def objects(self) -> Objects: ...

    def records(self, collection: Collection) -> Records: ...

    async def health_sample(self) -> HealthSample: ...

    async def close(self) -> None: ...


class RecordedBackend:
    """A backend with the queue that is made of it. Overdue jobs are left to the sweep, as the suite expects."""

    def __init__(self, inner: Backend, clock: Clock, done_max: int) -> None:
        self.inner = inner
        options = RecordedOptions(done_max=done_max, rescues_max=None, poll_max=0.2)
        self.jobs = RecordedJobs(inner.records, inner.objects, clock, options)

    def records(self, collection: Collection) -> Records:
        return self.inner.records(collection)

    async def health_sample(self) -> HealthSample:
        return await self.inner.health_sample()

    async def close(self) -> None:
        await self.jobs.close()
        await self.inner.close()
