"""Metrics: the design document's names and labels, bounded, and exactly what was counted."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exposition import complaints
from wrasse.archives.announce import ArchiverTally as ArchiveTally
from wrasse.breaker import BreakerState
from wrasse.engine.report import Totals
from wrasse.engine.turn import PausedBy
from wrasse.jobs.tally import QUEUES_MAX, Labels, Tally
from wrasse.jobs.worker.breakers import BreakerFacts
from wrasse.leases.store import LeaseTally
from wrasse.observability.logs import LogTally
from wrasse.observability.metrics import METRICS, LeaseFacts, MetricInputs, OrphanFacts, SweepFacts, exposition
from wrasse.observability.tracing import SpanTally
from wrasse.ports.jobs import Counts, QueueCount, Reason, WorkerInfo, WorkerState
from wrasse.ports.sightings import CompleteScan
from wrasse.streams.consumer import StreamTally
from wrasse.streams.retention import RetentionTally

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEED = {
    "jobs_produced_total": {"queue"},
    "jobs_consumed_total": {"queue"},
    "jobs_completed_total": {"queue"},
    "jobs_failed_total": {"queue", "reason"},
    "jobs_retried_total": {"queue"},
    "jobs_dead_letter_total": {"queue"},
    "job_processing_duration_seconds": {"queue"},
    "queue_length": {"queue"},
    "circuit_breaker_state": {"queue"},
    "reaper_jobs_moved_total": set(),
}


def facts(queues: int = 2) -> MetricInputs:
    tally = Tally()
    counted = []
    for n in range(queues):
        queue = f"q{n}"
        for count in (tally.produced, tally.consumed, tally.completed, tally.requeued, tally.dead, tally.interrupted):
            count.add(queue)
        tally.lost.add(queue)
        tally.fail(queue, Reason.TIMEOUT)
        tally.durations.of(queue).observe(0.02)
        counted.append(QueueCount(queue, ready=n, running=1, oldest_ready_at=NOW - timedelta(seconds=n)))
    totals = Totals(3, seen=9, kept=4, done=5, conflict=1, failed=2, unknown=1, seconds=1.5, last_good_at=NOW)
    totals.stopped["traffic"] = 1
    messages = StreamTally()
    messages.acked = 7
    held = PausedBy("mass_death", "5 of 6 workers lost their heartbeat", NOW)
    workers = (WorkerState(WorkerInfo("w"), NOW, NOW + timedelta(seconds=1)), WorkerState(WorkerInfo("v"), NOW, NOW))
    return MetricInputs(
        tally,
        {"stuck_jobs": SweepFacts(totals, held), "finished_jobs": SweepFacts(Totals(), None)},
        LogTally(),
        Counts(tuple(counted), workers, NOW),
        timedelta(seconds=-2),
        ("q0",),
        tuple(BreakerFacts(f"q{n}", BreakerState.CLOSED, 0) for n in range(queues)),
        {"mail": messages},
        ArchiveTally(archives=2, messages=50, bytes=900),
        SpanTally(),
        LeaseFacts(LeaseTally(), 1, {"acquire": 9, "other": 3}, {("shop", 200): 1}),
        RetentionTally(),
        [OrphanFacts("archives", LOOKED)],
    )


LOOKED = CompleteScan(
    "archives", "01", 3, NOW, NOW, 0,
    {"listed": 100, "found": 2, "waiting": 3, "due": 4, "in_quarantine": 5, "lag_4h": 6},
)  # fmt: skip


def samples(of: MetricInputs) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition(of).decode())
        for sample in family.samples
    }


def test_everything_that_is_exported_is_described_and_the_other_way_round() -> None:
    exported = {re.sub(r"_(bucket|count|sum)$", "", name) for name, _ in samples(facts())}
    assert {name for name in exported if not name.startswith("process_")} == set(METRICS)


def test_names_and_labels_are_those_of_the_design_document() -> None:
    assert {name: set(METRICS[name].labels) for name in SEED} == SEED
    labels = {name: {key for key, _ in pairs} for name, pairs in samples(facts()) if name in SEED}
    assert labels == {name: keys for name, keys in SEED.items() if name != "job_processing_duration_seconds"}


def test_no_creation_times_are_exported() -> None:
    assert b"_created" not in exposition(facts())


def test_with_200_queues_a_label_has_50_values_and_other() -> None:
    values: dict[str, set[str]] = {}
    for name, pairs in samples(facts(200)):
        for key, value in pairs:
            if key == "queue":
                values.setdefault(name, set()).add(value)
    assert values
    assert {len(found) for found in values.values()} == {QUEUES_MAX + 1}
    assert all("other" in found for found in values.values())


def test_what_shares_a_label_is_summed_and_nothing_is_dropped() -> None:
    found = samples(facts(200))
    ready = sum(value for (name, _), value in found.items() if name == "queue_length")
    produced = sum(value for (name, _), value in found.items() if name == "jobs_produced_total")
    assert (ready, produced) == (sum(range(200)), 200)


def test_a_sweep_exports_runs_outcomes_time_and_last_success() -> None:
    found = samples(facts())
    sweep = (("sweep", "stuck_jobs"),)
    expected = {"runs": 3, "seen": 9, "kept": 4, "done": 5, "conflict": 1, "failed": 2, "unknown": 1, "seconds": 1.5}
    assert {name: found[f"wrasse_sweep_{name}_total", sweep] for name in expected} == expected
    assert found["wrasse_sweep_last_success_timestamp_seconds", sweep] == NOW.timestamp()
    assert found["wrasse_sweep_paused", (("guard", "mass_death"), *sweep)] == 1
    assert found["reaper_jobs_moved_total", ()] == found["reaper_recovered_total", ()] == 5


def test_the_histogram_counts_up_to_its_last_bucket() -> None:
    found = samples(facts(1))
    buckets = [value for (name, _), value in found.items() if name == "job_processing_duration_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["job_processing_duration_seconds_count", (("queue", "q0"),)] == 1


def test_workers_skew_and_ages_are_told() -> None:
    found = samples(facts())
    assert found["wrasse_workers", (("state", "alive"),)] == 1
    assert found["wrasse_workers", (("state", "dead"),)] == 1
    assert found["wrasse_clock_skew_seconds", ()] == -2
    assert found["wrasse_oldest_ready_seconds", (("queue", "q1"),)] == 1


def test_a_backend_that_does_not_answer_leaves_its_numbers_out_and_says_so() -> None:
    known = facts()
    found = samples(MetricInputs(known.tally, known.sweeps, known.logs))
    assert found["wrasse_backend_up", ()] == 0
    assert not [name for name, _ in found if name == "queue_length"]
    assert found["jobs_produced_total", (("queue", "q0"),)] == 1


def test_a_look_at_orphans_is_told_by_root() -> None:
    found = {name: value for (name, labels), value in samples(facts(1)).items() if ("root", "archives") in labels}
    assert found["wrasse_orphans_unreferenced"] == 2 + 3 + 4
    assert (found["wrasse_orphans_quarantined"], found["wrasse_orphans_objects"]) == (5, 100)
    assert found["wrasse_orphans_last_scan_timestamp_seconds"] == NOW.timestamp()
    late = samples(facts(1))["wrasse_orphans_commit_lag", (("root", "archives"), ("within", "4h"))]
    assert late == 6


def test_an_odd_queue_name_cannot_break_the_text() -> None:
    tally = Tally()
    tally.produced.add('a"b\\c\nd')
    found = samples(MetricInputs(tally, {}, LogTally()))
    assert found["jobs_produced_total", (("queue", 'a"b\\c\nd'),)] == 1


PROMTOOL = shutil.which("promtool")


@pytest.mark.parametrize("queues", [0, 2, 200])
def test_there_is_nothing_to_complain_about(queues: int) -> None:
    assert complaints(exposition(facts(queues)).decode()) == []


def test_nothing_to_complain_about_where_nothing_is_known_yet() -> None:
    assert complaints(exposition(MetricInputs(Tally(), {}, LogTally())).decode()) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a_total 1", "the last line does not end"),
        ("a_total 1\n", "line 1: a_total has no HELP and TYPE before it"),
        ("# HELP a x\n# TYPE a counter\na 1\n", "a: ends in _total, or is a counter, but not both"),
        ("# HELP a_total x\n# TYPE a_total gauge\n", "a_total: ends in _total, or is a counter, but not both"),
        ("# HELP a \n# TYPE a gauge\na 1\n", "a: has no help"),
        ("# HELP a x\n# TYPE a gauge\na 1\na 1\n", "line 4: a with the same labels a second time"),
        ("# HELP a x\n# TYPE a gauge\n# HELP a x\n# TYPE a gauge\n", "line 3: a comes a second time"),
        ("# HELP a_ms x\n# TYPE a_ms gauge\n", "a_ms: has an abbreviated unit"),
        ("# HELP a_minutes x\n# TYPE a_minutes gauge\n", "a_minutes: has a unit that is not a base unit"),
        ("# HELP aB x\n# TYPE aB gauge\n", "aB: is not in snake case"),
        ("# HELP a_gauge x\n# TYPE a_gauge gauge\n", "a_gauge: has its type in its name"),
        ("# HELP a_count x\n# TYPE a_count gauge\n", "a_count: ends like a part of a histogram"),
        ('# HELP a x\n# TYPE a gauge\na{b="1"} 1\na 2\n', "a: has series with different labels: [(), ('b',)]"),
        ('# HELP a x\n# TYPE a gauge\na{b="1} 1\n', "line 3: labels that cannot be read"),
        ("# HELP a x\n# TYPE a gauge\na one\n", "line 3: 'one' is no number"),
        (
            '# HELP a x\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_count 1\na_sum 1\n',
            "a: has buckets that do not grow at ()",
        ),
    ],
)
def test_what_the_linter_minds_is_complained_about(text: str, complaint: str) -> None:
    assert complaint in complaints(text)


if PROMTOOL is not None:

    def test_promtool_finds_nothing_to_complain_about() -> None:
        assert PROMTOOL is not None
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=exposition(facts(200)), capture_output=True, timeout=60
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_breakers_are_told_by_queue_and_the_worst_of_those_that_share_a_label() -> None:
    shut = BreakerFacts("q1", BreakerState.OPEN, 3, 10.0)
    many = [BreakerFacts(f"m{n}", BreakerState.HALF_OPEN if n == 150 else BreakerState.CLOSED, 1) for n in range(200)]
    known = facts()
    few = samples(replace(known, breakers=(BreakerFacts("q0", BreakerState.CLOSED, 0), shut)))
    assert few["circuit_breaker_state", (("queue", "q0"),)] == 0
    assert few["circuit_breaker_state", (("queue", "q1"),)] == 2
    assert few["circuit_breaker_trips_total", (("queue", "q1"),)] == 3
    found = samples(replace(known, breakers=many))
    assert found["circuit_breaker_state", (("queue", "other"),)] == 1
    assert found["circuit_breaker_trips_total", (("queue", "other"),)] == 150


def test_what_consumers_and_the_archiver_counted_is_told() -> None:
    found = samples(facts())
    assert found["wrasse_messages_acked_total", (("group", "mail"),)] == 7
    assert found["wrasse_archives_written_total", ()] == 2
    assert found["wrasse_archives_bytes_total", ()] == 900


def test_a_configured_queue_has_a_label_of_its_own_however_many_others_came_first() -> None:
    tally = Tally(Labels(["configured"]))
    for n in range(100):
        tally.produced.add(f"q{n}")
    tally.produced.add("configured")
    found = samples(MetricInputs(tally, {}, LogTally()))
    assert found["jobs_produced_total", (("queue", "configured"),)] == 1
    assert found["jobs_produced_total", (("queue", "other"),)] == 51
