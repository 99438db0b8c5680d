"""What the engine keeps in each backend: its leases, the state of sweeps, the journal; and small records of others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wire.conftest import Difference, OpenPlace
from wire.job_scenes import WORKER, Story
from wire.places import Place, dumped
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.loop import ENGINE_LEASES, Engine
from wrasse.engine.run import RunContext
from wrasse.engine.turn import ENGINE_STATE, Scheduled, SweepBackend
from wrasse.ids import Ids
from wrasse.jobs.rate_limiter import BUDGETS, RecordLimiter
from wrasse.leases.manager import LeaseManager
from wrasse.ports.jobs import Job
from wrasse.ports.journal import Intent
from wrasse.runtime.backends import journal_of
from wrasse.sweeps.finished_jobs import FinishedJobs
from wrasse.sweeps.stuck_jobs import StuckJobs

HOUR = timedelta(hours=1)


async def _runs(place: Place) -> None:
    """A sweep that made one job ready again and set one aside, one that did nothing, a lease of another engine, an
    open line, and a budget."""
    assert isinstance(place.clock, ManualClock)
    memory, records = Memory(place.clock), place.backend.records
    story = Story(memory.jobs)
    await memory.jobs.heartbeat(WORKER, (), heartbeat_timeout=HOUR)
    await story.enqueue(Job("stuck-1"), Job("stuck-2"))
    for _ in range(2):
        await story.next("low")
    place.clock.advance(2 * HOUR)
    lease_manager, journal = LeaseManager(records(ENGINE_LEASES), place.clock), journal_of(place.backend, place.clock)
    engine = Engine(
        [Scheduled(StuckJobs(memory.jobs, rescues_max=1), HOUR), Scheduled(FinishedJobs(memory.jobs), HOUR)],
        home=SweepBackend(lease_manager, records(ENGINE_STATE)),
        context=RunContext(journal, place.clock, Ids(place.clock)),
        owner="engine-1",
    )  # fmt: skip
    await engine.sweep_now("stuck_jobs")
    await story.next("low")
    place.clock.advance(2 * HOUR)
    await engine.sweep_now("stuck_jobs")
    await engine.sweep_now("finished_jobs")
    assert await lease_manager.acquire("sweep/aged_entries", "engine-2", HOUR)
    open_line = Intent("01ZZZZZZZZZZZZZZZZZZZZZZZZ", "run-1", "stuck_jobs", "dead_letter", "job-9", "why", 2)
    await journal.intend([open_line])
    await RecordLimiter(records(BUDGETS)).allow("rate_limit:producer", 3, rate=10, burst=10)


@pytest.mark.parametrize("where", ["redis", "nats", "directory", "strict s3"])
async def test_what_the_engine_keeps_is_stored_as_recorded(
    open_place: OpenPlace, difference: Difference, where: str
) -> None:
    assert not difference(f"engine_{where}", await dumped(open_place, where, _runs))
