"""An producer on the memory backend, for tests."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock, SystemClock
from wrasse.jobs.file_producer.files import FileRules
from wrasse.jobs.file_producer.producer import FileProducer, FileProducerSettings
from wrasse.jobs.producer import Producer, ProducerOptions
from wrasse.jobs.rate_limiter import SharedRate
from wrasse.ports.jobs import Job, JobFilter, JobQueue, JobState

QUEUES = {"high": "high", "low": "low"}
SOON = timedelta(milliseconds=50)
SETTLE = timedelta(milliseconds=300)  # longer than a busy machine takes between opening a file and closing it


def producer_of(
    root: Path,
    memory: Memory,
    *,
    clock: Clock | None = None,
    rate: int = 0,
    jobs: JobQueue | None = None,
    patience: timedelta | None = timedelta(0),
) -> FileProducer:
    """An producer of every file but *.tmp."""
    clock = clock or SystemClock()
    rules = FileRules.of((), ("**/*.tmp",), (".pdf",))
    settings = FileProducerSettings(str(root), rules, QUEUES, settle=SETTLE, poll=SOON, patience=patience)
    producer = Producer(jobs or memory.jobs, clock, ProducerOptions(patience=timedelta(0)))
    return FileProducer(settings, producer, SharedRate(memory.limiter, "files", rate), clock)


async def jobs_of(memory: Memory) -> list[Job]:
    """Every job that waits."""
    page = await memory.jobs.page(JobState.READY, JobFilter(), None, 1_000)
    records = [await memory.jobs.get(info.id) for info in page]
    return [record.job for record in records if record is not None]


async def names_of(memory: Memory) -> list[str]:
    """The name of the file of every job that waits."""
    return sorted(Path(json.loads(job.payload)["filepath"]).name for job in await jobs_of(memory))
