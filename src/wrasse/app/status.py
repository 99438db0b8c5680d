"""What this process knows, at one moment: queues, workers, sweeps, the journal's end, and whether all is well.

The status page, /status.json, /readyz and /metrics are four views of it. Looking costs a few small reads and is shared:
however many ask, the backends are asked at most once in `kept`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wrasse import __version__
from wrasse.app.logs import LogTally, describe
from wrasse.app.metrics import Facts, SweepFacts
from wrasse.app.plain import line_json, queue_json, worker_json
from wrasse.app.wiring import Store
from wrasse.clock import Clock
from wrasse.engine.loop import Engine, SweepStatus
from wrasse.engine.report import Report
from wrasse.errors import WrasseError
from wrasse.jobs.tally import Tally
from wrasse.ports.jobs import Counts
from wrasse.ports.journal import Line, LineFilter

LINES = 20
ASK_MAX = 2.0  # seconds until a backend counts as not answering


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so for this process to be of use."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a view needs."""

    at: datetime
    started_at: datetime
    roles: tuple[str, ...]
    backend: str
    checks: tuple[Check, ...]
    counts: Counts | None
    skew: timedelta | None
    sweeps: tuple[SweepStatus, ...]
    lines: tuple[Line, ...]

    @property
    def ready(self) -> bool:
        """Whether every check is well."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Subject:
    """The process that is looked at. `worker` says what is wrong with the worker, if this process has one."""

    clock: Clock
    roles: tuple[str, ...]
    backend: str
    jobs: Store
    journal: Store
    engine: Engine | None
    worker: Callable[[], str | None] | None = None
    tally: Tally = field(default_factory=Tally)
    logs: LogTally = field(default_factory=LogTally)
    queues: Sequence[str] = ()


class Watch:
    """Looks at a subject, at most once in `kept`."""

    def __init__(self, subject: Subject, kept: timedelta) -> None:
        self._subject = subject
        self._kept = kept.total_seconds()
        self._started_at = subject.clock.now()
        self._lock = asyncio.Lock()
        self._looked: tuple[float, Snapshot] | None = None

    async def look(self) -> Snapshot:
        """The present state; old by no more than `kept`."""
        async with self._lock:
            now = self._subject.clock.monotonic()
            if self._looked is None or now - self._looked[0] >= self._kept:
                self._looked = (now, await self._ask())
            return self._looked[1]

    async def facts(self) -> Facts:
        """What the metrics are made of: counters as they are, queues as of the last look."""
        snapshot, subject = await self.look(), self._subject
        sweeps = {each.name: SweepFacts(each.totals, each.held) for each in snapshot.sweeps}
        return Facts(subject.tally, sweeps, subject.logs, snapshot.counts, snapshot.skew, subject.queues)

    async def _ask(self) -> Snapshot:
        subject = self._subject
        counts: Counts | None = None
        skew: timedelta | None = None
        lines: tuple[Line, ...] = ()
        try:
            async with asyncio.timeout(ASK_MAX):
                skew = subject.clock.now() - (await subject.jobs.pulse()).at
                counts = await subject.jobs.jobs.counts()
                lines = (await subject.journal.journal.page(LineFilter(), None, LINES, newest=True)).items
                if subject.engine is not None:
                    await subject.engine.refresh()
            backend = Check("backend", True, "answers")
        except (WrasseError, TimeoutError) as why:
            backend = Check("backend", False, describe(why) if isinstance(why, WrasseError) else "does not answer")
        sweeps = subject.engine.status() if subject.engine is not None else ()
        checks = (backend, *self._checks(sweeps))
        return Snapshot(
            subject.clock.now(), self._started_at, subject.roles, subject.backend, checks, counts, skew, sweeps, lines
        )

    def _checks(self, sweeps: Sequence[SweepStatus]) -> tuple[Check, ...]:
        checks = []
        if self._subject.worker is not None:
            wrong = self._subject.worker()
            checks.append(Check("worker", wrong is None, wrong or "takes jobs"))
        if sweeps:
            bad = [each.name for each in sweeps if each.last is not None and not each.last.good]
            checks.append(Check("sweeps", not bad, f"last run failed: {', '.join(bad)}" if bad else "run"))
        return tuple(checks)


def snapshot_json(snapshot: Snapshot) -> Mapping[str, object]:
    """The snapshot for a program."""
    counts = snapshot.counts
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
        "journal": [line_json(line) for line in snapshot.lines],
    }


def checks_json(snapshot: Snapshot) -> Sequence[Mapping[str, object]]:
    """The list of checks that /readyz answers with."""
    return [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in snapshot.checks]


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
