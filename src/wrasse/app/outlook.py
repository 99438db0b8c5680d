"""What happens to a job next, and when, in sentences: from its state, the settings and the sweeps' own decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from wrasse.app.ago import ago
from wrasse.app.settings import Settings
from wrasse.duration import format_duration
from wrasse.engine.sweep import Keep
from wrasse.ports.jobs import JobQueue, JobRecord, JobState, Place
from wrasse.sweeps.stuck_jobs import StuckJobs


async def outlook(record: JobRecord, settings: Settings, jobs: JobQueue, now: datetime) -> Sequence[str]:
    """One or two sentences about what comes next."""
    state = record.state
    if state.place is Place.READY:
        return await _ready(state, settings, jobs, now)
    if state.place is Place.HELD:
        return _held(record, settings, jobs, now)
    return _finished(state, settings, now)


async def _ready(state: JobState, settings: Settings, jobs: JobQueue, now: datetime) -> Sequence[str]:
    lines = []
    if state.not_before is not None and state.not_before > now:
        lines.append(f"it is delayed and becomes ready {ago(state.not_before, now)}; waiting costs it nothing")
    counts = await jobs.counts()
    beating = sum(1 for worker in counts.workers if worker.until > counts.at)
    if state.queue not in (*settings.worker.queues.values(), *settings.task_types):
        lines.append(f"no worker with these settings serves the queue {state.queue}: add it to worker.queues")
    elif beating:
        who = "the one worker that beats" if beating == 1 else f"one of {beating} workers that beat"
        lines.append(f"{who} takes it in its turn, if it serves {state.queue}")
    else:
        lines.append("no worker beats; it waits, for ever if need be, until one is started: `wrasse run`")
    return lines


def _held(record: JobRecord, settings: Settings, jobs: JobQueue, now: datetime) -> Sequence[str]:
    state, own = record.state, settings.sweeps["stuck_jobs"]
    sweep = StuckJobs(jobs, **own.fields)  # type: ignore[arg-type]
    interval = own.interval
    if state.queue in settings.task_types:
        retries = {name: each.max_retries for name, each in settings.task_types.items()}
        sweep, interval = replace(sweep, silence=timedelta(0), retries=retries), settings.sweeper.interval
    every = format_duration(interval) if own.enabled else "never, since it is off"
    verdict = sweep.decide(state, now)
    if not isinstance(verdict, Keep):
        return [f"stuck_jobs will {verdict.verb} it with its next run (every {every}): {verdict.reason}"]
    lines = [f"worker {state.worker} holds it and beat {ago(state.beat_at, now)}; it ends when its handler does"]
    limit = record.job.timeout or settings.worker.timeout
    if state.taken_at is not None:
        lines.append(f"its handler's time is over {ago(state.taken_at + limit, now)}; then it counts as failed")
    silent = sweep.decide(state, now + timedelta(days=365))
    if not isinstance(silent, Keep) and state.until is not None:
        lines.append(
            f"without another beat its hold ends {ago(state.until, now)}; then stuck_jobs would {silent.verb} it"
        )
    return lines


def _finished(state: JobState, settings: Settings, now: datetime) -> Sequence[str]:
    own = settings.sweeps["finished_jobs"]
    kept = own.fields["done_kept" if state.place is Place.DONE else "dead_kept"]
    assert isinstance(kept, timedelta), "a field of finished_jobs"
    lines = []
    if state.place is Place.DEAD:
        lines.append(f"it stays dead until somebody says `wrasse jobs requeue {state.id}`")
    if own.enabled and state.finished_at is not None:
        lines.append(
            f"finished_jobs deletes it {ago(state.finished_at + kept, now)}, {format_duration(kept)} after it finished"
        )
    return lines
