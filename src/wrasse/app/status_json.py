"""A snapshot as a program reads it: /status.json, /readyz, and the reports of `wrasse sweep --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from wrasse import __version__
from wrasse.app.plain import line_json, queue_json, shut_json, stream_json, worker_json
from wrasse.app.status import Snapshot
from wrasse.engine.loop import SweepStatus
from wrasse.engine.report import Report
from wrasse.leases.lease import Lease
from wrasse.ports.jobs import JobState


def snapshot_json(snapshot: Snapshot) -> Mapping[str, object]:
    """The snapshot for a program. Leases and streams are null where their backend does not answer."""
    counts, leases, streams = snapshot.counts, snapshot.leases, snapshot.streams
    return {
        "version": __version__,
        "at": snapshot.at,
        "started_at": snapshot.started_at,
        "roles": snapshot.roles,
        "ready": snapshot.ready,
        "checks": checks_json(snapshot),
        "skew_seconds": None if snapshot.skew is None else snapshot.skew.total_seconds(),
        "queues": [] if counts is None else [queue_json(each) for each in counts.queues],
        "workers": [] if counts is None else [worker_json(each, counts.at) for each in counts.workers],
        "sweeps": [sweep_json(each) for each in snapshot.sweeps],
        "breakers": [shut_json(each) for each in snapshot.shut],
        "stuck": [stuck_json(each) for each in snapshot.stuck],
        "leases": None if leases is None else [lease_json(each, leases.at) for each in leases.items],
        "streams": None if streams is None else [stream_json(each) for each in streams.items],
        "journal": [line_json(line) for line in snapshot.lines],
    }


def checks_json(snapshot: Snapshot) -> Sequence[Mapping[str, object]]:
    """The list of checks that /readyz answers with."""
    return [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in snapshot.checks]


def stuck_json(state: JobState) -> Mapping[str, object]:
    """A held job whose worker went silent."""
    return {
        "id": state.id,
        "kind": state.kind,
        "queue": state.queue,
        "worker": state.worker,
        "beat_at": state.beat_at,
        "until": state.until,
        "attempts": state.attempts,
        "rescues": state.rescues,
    }


def lease_json(lease: Lease, now: datetime) -> Mapping[str, object]:
    """One lease, and whether it is still held."""
    return {
        "key": lease.key,
        "owner": lease.owner,
        "token": lease.token,
        "until": lease.until,
        "held": now < lease.until,
    }


def sweep_json(status: SweepStatus) -> Mapping[str, object]:
    """One sweep for a program."""
    held = status.held
    return {
        "name": status.name,
        "enabled": status.enabled,
        "interval_seconds": status.interval.total_seconds(),
        "running": status.running,
        "elsewhere": status.elsewhere,
        "next_at": status.next_at,
        "held": None if held is None else {"guard": held.guard, "reason": held.reason, "since": held.since},
        "last": None if status.last is None else report_json(status.last),
    }


def report_json(report: Report) -> Mapping[str, object]:
    """One report for a program; a dry run's with its plan."""
    answer: dict[str, object] = {
        "run": report.run,
        "sweep": report.sweep,
        "started_at": report.started_at,
        "ended_at": report.ended_at,
        "took_seconds": report.took.total_seconds(),
        "seen": report.seen,
        "kept": dict(report.kept),
        "planned": report.planned,
        "done": report.done,
        "lost": report.lost,
        "failed": report.failed,
        "unknown": report.unknown,
        "stopped_by": report.stopped_by,
        "why": report.why,
        "errors": list(report.errors),
        "notes": list(report.notes),
        "dry_run": report.dry_run,
    }
    if report.dry_run:
        answer["plan"] = [{"verb": each.verb, "suspect": each.suspect, "reason": each.reason} for each in report.plan]
    return answer
