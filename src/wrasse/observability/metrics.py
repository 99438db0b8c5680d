"""Prometheus metrics, built on request from counters, totals and one sample of the queue.

METRICS is the whole list: nothing else is exported, and the reference page is generated from it. Names without
`wrasse_` are those of the job queue's design document. Labels are bounded: at most QUEUES_MAX queues and then `other`,
reasons and guards from closed sets, one value per sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from wrasse import __version__
from wrasse.archives.announce import ArchiverTally as ArchiveTally
from wrasse.engine.report import Totals
from wrasse.engine.turn import PausedBy
from wrasse.jobs.tally import BOUNDS, OTHER, QUEUES_MAX, Count, Durations, Tally
from wrasse.jobs.worker.breakers import BreakerFacts
from wrasse.leases.store import LeaseTally
from wrasse.observability.logs import LogTally
from wrasse.observability.tracing import SpanTally
from wrasse.orphans import verdict
from wrasse.ports.jobs import Counts, QueueCount
from wrasse.ports.sightings import CompleteScan
from wrasse.streams.consumer import StreamTally
from wrasse.streams.retention import RetentionTally

_ORPHANS: Mapping[str, tuple[tuple[str, ...], str]] = {  # to names of a scan's counts
    "objects": (("listed",), "objects below the root in the last complete scan"),
    "bytes": (("bytes",), "bytes of those that match its template"),
    "protected": (("protected",), "units that a reference protects"),
    "unreferenced": (("found", "restarted", "waiting", "due"), "units that are orphans, due or not"),
    "foreign": (("foreign",), "objects that do not match the template, which are never touched"),
    "due": (("due",), "units that were due for removal after that scan"),
    "due_bytes": (("due_bytes",), "bytes of these"),
    "quarantined": (("in_quarantine", "purged", "healed", "written_again"), "units in quarantine"),
}
_SCANNED_AT = "last_scan_timestamp_seconds"
_ORPHAN_LAG = "commit_lag"
_ABOUT_ORPHANS = {
    _SCANNED_AT: "when a scan was last complete, unix time",
    _ORPHAN_LAG: "units whose first reference was found by the last complete scan, by its delay after their last write",
}
STUCK_JOBS = "stuck_jobs"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MESSAGES = {  # the fields of StreamTally
    "delivered": "messages handed to handlers of this process",
    "again": "of these, messages that had been delivered before",
    "acked": "messages acked at the backend",
    "nacked": "messages nacked, to be redelivered",
    "dead": "messages set aside as dead letters",
    "failed": "handlers of messages that raised or took too long",
    "invalid": "entries that are not messages",
    "dropped": "dead letters that would have been set aside once more",
    "unavailable": "failed calls of consumers because a backend was unavailable",
}
_ARCHIVES = {  # to the fields of the archiver's tally
    "written": ("archives", "archives written by this process"),
    "messages": ("messages", "messages in them"),
    "bytes": ("bytes", "bytes of them, as stored"),
    "outages": ("outages", "failed calls of the archiver because a backend was unavailable"),
    "alarms": ("alarms", "alarms about streams that were set back or lost entries, which stops their archiving"),
    "lost_messages": ("lost", "entries trimmed before they were archived"),
    "lost_events": ("events_lost", "events about archives that could not be published"),
}
_LAG = {  # the fields of the archiver's lag
    "messages": "messages not archived yet, of the streams that this process archives",
    "bytes": "approximate bytes of these",
    "seconds": "age of the oldest of them",
}
_RETENTION = {  # to the fields of RetentionTally
    "entries_trimmed": ("trimmed", "entries of streams that were older than their retention"),
    "entries_lost": ("lost", "of these, entries that a protecting group had not acked, where a rule allows that"),
    "alerts": ("alerts", "alerts about streams and groups, sent on gbe.events.system.error"),
    "pending_trimmed": (
        "trimmed_pending",
        "entries that other programs trimmed while pending in a group, as far as known",
    ),
}
_LEASES = {  # to the fields of LeaseTally
    "acquired": ("acquired", "leases granted by this process"),
    "waited": ("waited", "acquires that found the key leased by another holder"),
    "renewed": ("renewed", "leases renewed"),
    "released": ("released", "leases released"),
    "committed": ("committed", "of these, released with a commit"),
    "cleared": ("cleared", "expired leases, cleared by an operation or by a sweep"),
    "index_entries_deleted": ("entries_deleted", "entries deleted from the indexes of leases and of decisions"),
    "transactions_committed": ("transactions_committed", "transactions carried out by this process as a commit"),
    "transactions_rolled_back": ("transactions_rolled_back", "transactions carried out by this process as a rollback"),
    "transaction_replays": ("replays", "replay runs over open transactions during traffic"),
    "transactions_replayed": ("replayed", "transactions finished by these"),
    "decisions_deleted": ("decisions_deleted", "expired decision records that were deleted"),
}


@dataclass(frozen=True, slots=True)
class OrphanFacts:
    """One root and its last complete scan."""

    root: str
    last: CompleteScan


def _orphan_gauges(facts: Sequence[OrphanFacts]) -> Iterator[tuple[str, list[tuple[tuple[str, ...], float]]]]:
    """Each gauge by its name, with a sample per root."""
    for name, (parts, _) in _ORPHANS.items():
        yield name, [((each.root,), sum(each.last.counts.get(part, 0) for part in parts)) for each in facts]
    yield _SCANNED_AT, [((each.root,), each.last.at.timestamp()) for each in facts]


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """One metric: its name, kind, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    doc: str


METRICS: Mapping[str, MetricDescription] = {
    each.name: each
    for each in (
        MetricDescription(
            "jobs_produced_total", "counter", ("queue",), "jobs enqueued by this process, without existing ids"
        ),
        MetricDescription("jobs_consumed_total", "counter", ("queue",), "jobs claimed by this process"),
        MetricDescription("jobs_completed_total", "counter", ("queue",), "jobs completed by this process"),
        MetricDescription("jobs_failed_total", "counter", ("queue", "reason"), "unsuccessful attempts, by reason"),
        MetricDescription("jobs_retried_total", "counter", ("queue",), "failed jobs that will be retried"),
        MetricDescription("jobs_dead_letter_total", "counter", ("queue",), "jobs dead-lettered by this process"),
        MetricDescription(
            "jobs_interrupted_total", "counter", ("queue",), "jobs released unfinished, without spending a retry"
        ),
        MetricDescription(
            "jobs_lost_total", "counter", ("queue",), "completions refused because the claim was no longer valid"
        ),
        MetricDescription("job_processing_duration_seconds", "histogram", ("queue",), "time inside handlers"),
        MetricDescription("worker_active", "gauge", (), "handlers running now"),
        MetricDescription("queue_length", "gauge", ("queue",), "ready jobs of a queue"),
        MetricDescription(
            "circuit_breaker_state", "gauge", ("queue",), "its breaker here: 0 closed, 1 half-open, 2 open"
        ),
        MetricDescription("circuit_breaker_trips_total", "counter", ("queue",), "times it opened"),
        MetricDescription(
            "reaper_jobs_moved_total", "counter", (), "jobs that stuck_jobs made ready again or dead-lettered"
        ),
        MetricDescription("reaper_recovered_total", "counter", (), "the same, under the origin program's name"),
        MetricDescription("wrasse_jobs", "gauge", ("queue", "state"), "jobs by queue and state"),
        MetricDescription(
            "wrasse_oldest_ready_seconds", "gauge", ("queue",), "how long the oldest ready job has waited"
        ),
        MetricDescription(
            "wrasse_workers", "gauge", ("state",), "workers alive, and dead: without a heartbeat, for an hour at most"
        ),
        MetricDescription("wrasse_sweep_runs_total", "counter", ("sweep",), "runs by this process"),
        MetricDescription("wrasse_sweep_seen_total", "counter", ("sweep",), "suspects read"),
        MetricDescription("wrasse_sweep_kept_total", "counter", ("sweep",), "suspects kept"),
        MetricDescription("wrasse_sweep_done_total", "counter", ("sweep",), "actions that took effect"),
        MetricDescription(
            "wrasse_sweep_conflict_total", "counter", ("sweep",), "actions whose precondition no longer held"
        ),
        MetricDescription("wrasse_sweep_failed_total", "counter", ("sweep",), "suspects or actions that failed"),
        MetricDescription("wrasse_sweep_unknown_total", "counter", ("sweep",), "actions with unknown outcome"),
        MetricDescription("wrasse_sweep_seconds_total", "counter", ("sweep",), "time spent in runs"),
        MetricDescription(
            "wrasse_sweep_last_success_timestamp_seconds", "gauge", ("sweep",), "when a run last succeeded, unix time"
        ),
        MetricDescription("wrasse_sweep_paused", "gauge", ("sweep", "guard"), "1 while a guard pauses the sweep"),
        MetricDescription(
            "wrasse_sweep_paused_since_timestamp_seconds", "gauge", ("sweep", "guard"), "since when, unix time"
        ),
        *(
            MetricDescription(f"wrasse_messages_{name}_total", "counter", ("group",), doc)
            for name, doc in _MESSAGES.items()
        ),
        *(
            MetricDescription(f"wrasse_archives_{name}_total", "counter", (), doc)
            for name, (_, doc) in _ARCHIVES.items()
        ),
        *(MetricDescription(f"wrasse_archives_lag_{name}", "gauge", (), doc) for name, doc in _LAG.items()),
        *(
            MetricDescription(f"wrasse_streams_{name}_total", "counter", (), doc)
            for name, (_, doc) in _RETENTION.items()
        ),
        MetricDescription(
            "wrasse_sweep_stopped_total", "counter", ("sweep", "by"), "runs ended early by a guard or a limit"
        ),
        *(MetricDescription(f"wrasse_leases_{name}_total", "counter", (), doc) for name, (_, doc) in _LEASES.items()),
        MetricDescription("wrasse_leases_waiting", "gauge", (), "callers that wait for a key in this process"),
        MetricDescription(
            "wrasse_leases_backend_requests_total", "counter", ("operation",), "requests to the bucket of the leases"
        ),
        MetricDescription(
            "wrasse_leases_http_requests_total",
            "counter",
            ("caller", "status"),
            "calls of the lease API by the name of the caller's token, empty without one, and status; 499: the caller "
            "disconnected before the answer",
        ),
        *(MetricDescription(f"wrasse_orphans_{name}", "gauge", ("root",), doc) for name, (_, doc) in _ORPHANS.items()),
        MetricDescription(f"wrasse_orphans_{_SCANNED_AT}", "gauge", ("root",), _ABOUT_ORPHANS[_SCANNED_AT]),
        MetricDescription(f"wrasse_orphans_{_ORPHAN_LAG}", "gauge", ("root", "within"), _ABOUT_ORPHANS[_ORPHAN_LAG]),
        MetricDescription("wrasse_clock_skew_seconds", "gauge", (), "this machine's clock minus the backend's"),
        MetricDescription("wrasse_backend_up", "gauge", (), "1 while the backend of the jobs answers"),
        MetricDescription(
            "wrasse_backend_unavailable_total",
            "counter",
            (),
            "failed calls of workers because a backend was unavailable",
        ),
        MetricDescription(
            "wrasse_heartbeats_restarted_total", "counter", (), "heartbeat processes that were restarted"
        ),
        MetricDescription("wrasse_spans_sent_total", "counter", (), "spans accepted by a receiver"),
        MetricDescription(
            "wrasse_spans_lost_total", "counter", (), "spans dropped because too many waited, or not accepted"
        ),
        MetricDescription("wrasse_log_suppressed_lines_total", "counter", (), "log lines suppressed by the rate limit"),
        MetricDescription("wrasse_log_dropped_keys_total", "counter", (), "log keys that are not allowed"),
        MetricDescription("wrasse_build_info", "gauge", ("version",), "always 1; the version is the label"),
    )
}


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """The state of one sweep in this process."""

    totals: Totals
    paused: PausedBy | None


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """The counters of leases, the number of waiters, the requests to the bucket of the leases by operation, and the
    calls of the lease API by the name of the caller's token and the status."""

    tally: LeaseTally
    waiting: int = 0
    requests: Mapping[str, int] | None = None
    calls: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricInputs:
    """All inputs of the metrics, at one time."""

    tally: Tally
    sweeps: Mapping[str, SweepFacts]
    logs: LogTally
    counts: Counts | None = None
    skew: timedelta | None = None
    queues: Sequence[str] = ()  # the configured ones, which get their own labels first
    breakers: Sequence[BreakerFacts] = ()
    messages: Mapping[str, StreamTally] = field(default_factory=dict)  # by group
    archives: ArchiveTally | None = None
    spans: SpanTally | None = None
    leases: LeaseFacts | None = None
    retention: RetentionTally | None = None
    orphans: Sequence[OrphanFacts] = ()


def exposition(facts: MetricInputs) -> bytes:
    """The text format for Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collected(facts))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, facts: MetricInputs) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        yield from _jobs(self._facts.tally)
        if self._facts.counts is not None:
            yield from _queues(self._facts.counts, self._facts.queues)
        yield from _breakers(self._facts.breakers)
        yield from _sweeps(self._facts.sweeps)
        yield from _messages(self._facts.messages)
        yield from _archives(self._facts.archives)
        yield from _leases(self._facts.leases)
        yield from _retention(self._facts.retention)
        yield from _orphans(self._facts.orphans)
        yield from _process(self._facts)


_Sample = tuple[tuple[str, ...], float]


def _family(name: str, samples: Iterable[_Sample]) -> Metric:
    about = METRICS[name]
    if about.kind == "counter":
        counter = CounterMetricFamily(name, about.doc, labels=about.labels)
        for labels, value in samples:
            counter.add_metric(labels, value)
        return counter
    gauge = GaugeMetricFamily(name, about.doc, labels=about.labels)
    for labels, value in samples:
        gauge.add_metric(labels, value)
    return gauge


def _by_queue(count: Count) -> Iterator[_Sample]:
    return (((queue,), number) for queue, number in count.items())


def _jobs(tally: Tally) -> Iterator[Metric]:
    yield _family("jobs_produced_total", _by_queue(tally.produced))
    yield _family("jobs_consumed_total", _by_queue(tally.consumed))
    yield _family("jobs_completed_total", _by_queue(tally.completed))
    reasons = sorted(tally.failed.items())
    failed = [((queue, reason.value), number) for reason, count in reasons for queue, number in count.items()]
    yield _family("jobs_failed_total", failed)
    yield _family("jobs_retried_total", _by_queue(tally.requeued))
    yield _family("jobs_dead_letter_total", _by_queue(tally.dead))
    yield _family("jobs_interrupted_total", _by_queue(tally.interrupted))
    yield _family("jobs_lost_total", _by_queue(tally.lost))
    yield _durations(tally.durations)
    yield _family("worker_active", [((), tally.active)])
    yield _family("wrasse_backend_unavailable_total", [((), tally.unavailable)])
    yield _family("wrasse_heartbeats_restarted_total", [((), tally.heartbeats_restarted)])


def _durations(durations: Durations) -> Metric:
    about = METRICS["job_processing_duration_seconds"]
    family = HistogramMetricFamily(about.name, about.doc, labels=about.labels)
    for queue, histogram in durations.items():
        below, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric((queue,), buckets, histogram.seconds)
    return family


def _queues(counts: Counts, configured: Sequence[str]) -> Iterator[Metric]:
    labels = list(dict.fromkeys((*configured, *(count.queue for count in counts.queues))))[:QUEUES_MAX]
    merged = {name: QueueCount(name) for name in labels}
    for count in counts.queues:
        name = count.queue if count.queue in merged else OTHER
        merged[name] = _sum(merged.get(name, QueueCount(OTHER)), count)
    yield _family("queue_length", [((name,), count.ready) for name, count in merged.items()])
    states = ("ready", "scheduled", "running", "done", "dead")
    yield _family(
        "wrasse_jobs", [((name, each), getattr(count, each)) for name, count in merged.items() for each in states]
    )
    oldest = [((name,), _age(count.oldest_ready_at, counts.at)) for name, count in merged.items()]
    yield _family("wrasse_oldest_ready_seconds", oldest)
    alive = sum(1 for worker in counts.workers if worker.deadline > counts.at)
    workers = [(("alive",), alive), (("dead",), len(counts.workers) - alive)]
    yield _family("wrasse_workers", workers)


def _breakers(breakers: Sequence[BreakerFacts]) -> Iterator[Metric]:
    """Queues that share a label have the worst state of them."""
    states: dict[str, int] = {}
    trips: dict[str, int] = {}
    for n, each in enumerate(breakers):
        label = each.queue if n < QUEUES_MAX else OTHER
        states[label] = max(states.get(label, 0), int(each.state))
        trips[label] = trips.get(label, 0) + each.trips
    yield _family("circuit_breaker_state", [((name,), value) for name, value in states.items()])
    yield _family("circuit_breaker_trips_total", [((name,), value) for name, value in trips.items()])


def _messages(tallies: Mapping[str, StreamTally]) -> Iterator[Metric]:
    for name in _MESSAGES:
        numbers: dict[str, int] = {}
        for n, (group, tally) in enumerate(tallies.items()):
            label = group if n < QUEUES_MAX else OTHER
            numbers[label] = numbers.get(label, 0) + getattr(tally, name)
        yield _family(f"wrasse_messages_{name}_total", [((group,), number) for group, number in numbers.items()])


def _archives(tally: ArchiveTally | None) -> Iterator[Metric]:
    for name, (own, _) in _ARCHIVES.items():
        yield _family(f"wrasse_archives_{name}_total", [((), getattr(tally, own))] if tally else [])
    for name in _LAG:
        yield _family(f"wrasse_archives_lag_{name}", [((), getattr(tally.lag, name))] if tally else [])


def _leases(facts: LeaseFacts | None) -> Iterator[Metric]:
    for name, (own, _) in _LEASES.items():
        yield _family(f"wrasse_leases_{name}_total", [((), getattr(facts.tally, own))] if facts else [])
    yield _family("wrasse_leases_waiting", [((), facts.waiting)] if facts else [])
    requests = {} if facts is None else facts.requests or {}
    yield _family("wrasse_leases_backend_requests_total", [((name,), n) for name, n in sorted(requests.items())])
    calls = {} if facts is None else facts.calls
    samples = [((caller, str(status)), n) for (caller, status), n in sorted(calls.items())]
    yield _family("wrasse_leases_http_requests_total", samples)


def _orphans(facts: Sequence[OrphanFacts]) -> Iterator[Metric]:
    for name, samples in _orphan_gauges(facts):
        yield _family(f"wrasse_orphans_{name}", samples)
    lags = [((each.root, bound), count) for each in facts for bound, count in verdict.histogram(each.last.counts)]
    yield _family(f"wrasse_orphans_{_ORPHAN_LAG}", lags)


def _retention(tally: RetentionTally | None) -> Iterator[Metric]:
    for name, (own, _) in _RETENTION.items():
        yield _family(f"wrasse_streams_{name}_total", [((), getattr(tally, own))] if tally else [])


def _sum(one: QueueCount, other: QueueCount) -> QueueCount:
    oldest = [at for at in (one.oldest_ready_at, other.oldest_ready_at) if at is not None]
    return QueueCount(
        one.queue,
        one.ready + other.ready,
        one.scheduled + other.scheduled,
        one.running + other.running,
        one.done + other.done,
        one.dead + other.dead,
        min(oldest, default=None),
    )


def _age(at: datetime | None, now: datetime) -> float:
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


def _sweeps(sweeps: Mapping[str, SweepFacts]) -> Iterator[Metric]:
    for each in ("runs", "seen", "kept", "done", "conflict", "failed", "unknown", "seconds"):
        samples = [((name,), getattr(facts.totals, each)) for name, facts in sweeps.items()]
        yield _family(f"wrasse_sweep_{each}_total", samples)
    good = [((name,), facts.totals.last_good_at) for name, facts in sweeps.items()]
    yield _family(
        "wrasse_sweep_last_success_timestamp_seconds", [(name, at.timestamp()) for name, at in good if at is not None]
    )
    paused = [(name, facts.paused) for name, facts in sweeps.items() if facts.paused is not None]
    yield _family("wrasse_sweep_paused", [((name, each.guard), 1) for name, each in paused])
    yield _family(
        "wrasse_sweep_paused_since_timestamp_seconds",
        [((name, each.guard), each.since.timestamp()) for name, each in paused],
    )
    stopped = [((name, by), n) for name, facts in sweeps.items() for by, n in sorted(facts.totals.stopped.items())]
    yield _family("wrasse_sweep_stopped_total", stopped)
    moved = sum(facts.totals.done for name, facts in sweeps.items() if name.split("@")[0] == STUCK_JOBS)
    yield _family("reaper_jobs_moved_total", [((), moved)])
    yield _family("reaper_recovered_total", [((), moved)])


def _process(facts: MetricInputs) -> Iterator[Metric]:
    yield _family("wrasse_backend_up", [((), float(facts.counts is not None))])
    if facts.skew is not None:
        yield _family("wrasse_clock_skew_seconds", [((), facts.skew.total_seconds())])
    spans = facts.spans
    yield _family("wrasse_spans_sent_total", [] if spans is None else [((), spans.sent)])
    yield _family("wrasse_spans_lost_total", [] if spans is None else [((), spans.lost)])
    yield _family("wrasse_log_suppressed_lines_total", [((), facts.logs.suppressed_lines)])
    yield _family("wrasse_log_dropped_keys_total", [((), facts.logs.dropped_keys)])
    yield _family("wrasse_build_info", [((__version__,), 1)])
