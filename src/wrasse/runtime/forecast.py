"""Forecast: what happens to a job or a stream next, in sentences, from its state, the settings and the sweeps'
decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wrasse.config.load import Config
from wrasse.config.settings import Settings
from wrasse.duration import format_duration
from wrasse.engine.sweep import Keep
from wrasse.errors import UsageError
from wrasse.observability.json_format import ago
from wrasse.ports.jobs import JobInfo, JobQueue, JobRecord, JobState, Reason
from wrasse.ports.rules.subjects import check_subject
from wrasse.ports.streams import StreamState
from wrasse.runtime.backends import Stores
from wrasse.runtime.engine import retention
from wrasse.streams.retention import Bound, Stand, judge
from wrasse.sweeps.stuck_jobs import StuckJobs


async def outlook(record: JobRecord, settings: Settings, jobs: JobQueue, now: datetime) -> Sequence[str]:
    """One or two sentences about what happens next."""
    info = record.info
    if info.state is JobState.READY:
        return await _ready(info, settings, jobs, now)
    if info.state is JobState.RUNNING:
        return _running(record, settings, jobs, now)
    return _finished(info, settings, now)


async def _ready(info: JobInfo, settings: Settings, jobs: JobQueue, now: datetime) -> Sequence[str]:
    if info.reason is Reason.INVALID_PAYLOAD:
        return ["no worker claims it: its record cannot be read; repair or delete it where it is stored"]
    lines = []
    if info.not_before is not None and info.not_before > now:
        lines.append(f"it is scheduled and becomes ready {ago(info.not_before, now)}; waiting costs it nothing")
    counts = await jobs.counts()
    live = sum(1 for worker in counts.workers if worker.deadline > counts.at)
    if info.queue not in (*settings.worker.queues.values(), *settings.task_types):
        lines.append(f"no worker with these settings serves the queue {info.queue}: add it to worker.queues")
    elif live:
        who = "the one worker that sends heartbeats" if live == 1 else f"one of {live} workers that heartbeat"
        lines.append(f"{who} claims it in its turn, if it serves {info.queue}")
    else:
        lines.append("no worker is alive; it waits until one is started: `wrasse run`")
    return lines


def _running(record: JobRecord, settings: Settings, jobs: JobQueue, now: datetime) -> Sequence[str]:
    info, own = record.info, settings.sweeps["stuck_jobs"]
    sweep = StuckJobs(jobs, **own.fields)  # type: ignore[arg-type]
    interval = own.interval
    if info.queue in settings.task_types:
        retries = {name: each.max_retries for name, each in settings.task_types.items()}
        sweep, interval = replace(sweep, heartbeat_timeout=timedelta(0), retries=retries), settings.sweeper.interval
    every = format_duration(interval) if own.enabled else "never, since it is off"
    verdict = sweep.decide(info, now)
    if not isinstance(verdict, Keep):
        return [f"stuck_jobs will {verdict.verb} it with its next run (every {every}): {verdict.reason}"]
    lines = [
        f"worker {info.worker} runs it; last heartbeat {ago(info.heartbeat_at, now)}; it ends when its handler does"
    ]
    limit = record.job.timeout or settings.worker.timeout
    if info.claimed_at is not None:
        lines.append(f"its handler's time is over {ago(info.claimed_at + limit, now)}; then it counts as failed")
    overdue = sweep.decide(info, now + timedelta(days=365))
    if not isinstance(overdue, Keep) and info.deadline is not None:
        would = overdue.verb.replace("_", "-")
        lines.append(
            f"without another heartbeat its claim ends {ago(info.deadline, now)}; then stuck_jobs would {would} it"
        )
    return lines


def _finished(info: JobInfo, settings: Settings, now: datetime) -> Sequence[str]:
    own = settings.sweeps["finished_jobs"]
    kept = own.fields["done_kept" if info.state is JobState.DONE else "dead_kept"]
    assert isinstance(kept, timedelta), "a field of finished_jobs"
    lines = []
    if info.state is JobState.DEAD:
        lines.append(f"it stays dead until `wrasse jobs requeue {info.id}`")
    if own.enabled and info.finished_at is not None:
        lines.append(
            f"finished_jobs deletes it {ago(info.finished_at + kept, now)}, {format_duration(kept)} after it finished"
        )
    return lines


@dataclass(frozen=True, slots=True)
class StreamOutlook:
    """A stream, what bounds it, and what happens next."""

    state: StreamState
    bound: Bound | None
    next: tuple[str, ...]

    def plain(self) -> dict[str, object]:
        """The same for programs."""
        state, bound = self.state, self.bound
        return {
            "subject": state.subject,
            "entries": state.length,
            "first_at": _moment(state),
            "rule": None if bound is None else bound.rule.pattern,
            "kept_seconds": None if bound is None else bound.rule.age,
            "protected_by": [] if bound is None else list(bound.protect),
            "server_age_seconds": None if state.server_age is None else state.server_age.age,
        }

    def pairs(self) -> list[tuple[str, object]]:
        """The same for people."""
        state, bound, first = self.state, self.bound, _moment(self.state)
        groups = ", ".join(each.name for each in state.groups)
        rows: list[tuple[str, object]] = [
            ("stream", state.subject),
            ("entries", state.length),
            ("first", "none" if first is None else ago(first, state.at)),
            ("kept", "for ever" if bound is None else f"{format_duration(bound.rule.age)} by {bound.rule.pattern}"),
            ("groups", groups or "none"),
        ]
        if state.server_age is not None and state.server_age.age is not None:
            whose = "as retention says" if state.server_age.ours else "not set by wrasse"
            rows.append(("kept by the server", f"{format_duration(state.server_age.age)}, {whose}"))
        # Without trims there is nothing to protect.
        return rows if bound is None else [*rows, ("protected by", ", ".join(bound.protect) or "no group")]


async def stream_outlook(config: Config, stores: Stores, id: str) -> StreamOutlook | None:
    """The forecast of the stream of this name; None if there is none."""
    try:
        check_subject(id)
    except UsageError:
        return None
    store = await stores.open_streams(config.homes.streams)
    state = await store.streams.info(id)
    if state is None:
        return None
    bound = retention(config.settings).of(id)
    return StreamOutlook(state, bound, tuple(next_lines(state, bound)))


def next_lines(state: StreamState, bound: Bound | None) -> Iterator[str]:
    """What happens to a stream next. Pure."""
    if bound is None:
        yield "nothing: no rule of `retention` matches it, so it is never trimmed"
        return
    found = judge(state, bound, state.at)
    first = _moment(state)
    match found.stand:
        case Stand.YOUNG if first is None:
            yield "nothing: it is empty"
        case Stand.YOUNG:
            assert first is not None, "an empty stream is matched above"
            yield f"its first entry is old enough {ago(first + bound.rule.age, state.at)}"
        case Stand.MISSING:
            yield f"nothing is trimmed: the group {found.group!r} protects it, and does not exist"
        case Stand.UNPROVEN:
            yield (
                f"nothing is trimmed: the group {found.group!r} protects it, and gives up after some deliveries;"
                " remove that limit, as wrasse doctor says"
            )
        case Stand.HELD:
            yield f"nothing is trimmed until the group {found.group!r} has acked its first entry"
        case Stand.DUE:
            loses = bound.rule.allow_data_loss and bound.protect
            yield "the next run of aged_entries trims it" + (", acked or not: the rule allows that" if loses else "")


def _moment(state: StreamState) -> datetime | None:
    return None if state.first is None else state.first.at
