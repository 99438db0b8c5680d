"""A run of stuck_jobs with 100 jobs due among 1,000,000 running and ready: against the same 100 among 10,000.

A run is what the engine does with a sweep's three methods: find a page, decide about each, apply the batch. Half of the
rest is running with a fresh heartbeat, half is ready.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from datetime import timedelta
from pathlib import Path

import apsw

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.raw_sqlite import open_raw
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock, SystemClock, to_micros
from wrasse.engine.sweep import Action
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.stuck_jobs import StuckJobs

DUE = 100
ABOUT = __doc__.splitlines()[0]
_HEARTBEAT_TIMEOUT = timedelta(seconds=30)
_FILL = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :jobs)
    INSERT INTO jobs (seq, id, state, queue, rank, ready_at, token, nonce, attempts, deadline, claimed_at, heartbeat_at,
      created_at, worker, kind, priority, size, lasting, payload)
    SELECT i, printf('job-%08d', i), iif(i % 2, 0, 2), 'low', i, :now, 1, 'nonce', iif(i % 2, 0, 1),
      iif(i % 2, NULL, :now + 30000000 + i), iif(i % 2, NULL, :now), iif(i % 2, NULL, :now),
      :now, iif(i % 2, '', 'worker'), '', 'low', 32, 0, zeroblob(32) FROM n
"""


def run(quick: bool) -> Result:
    """Compares the two stores; their runs take turns."""
    small, large = (5_000, 50_000) if quick else (10_000, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place:
        few, many = asyncio.run(_compare(Path(place), small, large, rounds=10 if quick else 30))
    return Result(
        "stuck_jobs_flat",
        ABOUT,
        (Rate(f"among {small:,}", 1 / few, "runs/s"), Rate(f"among {large:,}", 1 / many, "runs/s")),
        (Ratio("time among many to time among few", many / few, 1.5, least=False),),
    )


async def _compare(place: Path, small: int, large: int, rounds: int) -> tuple[float, float]:
    clock = ManualClock()
    stores = []
    for name, size in (("small", small), ("large", large)):
        (place / name).mkdir()
        _fill(place / name, size, to_micros(clock.now()))
        stores.append(await Sqlite.open(place / name / "raw.db", clock))
    times: list[list[float]] = [[], []]
    for number in range(rounds + 2):
        for store, taken in zip(stores, times, strict=True):
            await _make_due(store, number)
            taken.append(await _sweep(store))
    for store in stores:
        await store.close()
    few, many = (statistics.median(taken[2:]) for taken in times)
    return few, many


def _fill(place: Path, jobs: int, now: int) -> None:
    db = open_raw(place)
    db.execute("BEGIN IMMEDIATE")
    db.execute(_FILL, {"jobs": jobs, "now": now})
    db.execute("INSERT INTO counts SELECT queue, state, count(*) FROM jobs GROUP BY queue, state")
    db.execute("UPDATE numbers SET back = ?", (jobs + 1,))
    db.execute("COMMIT")
    db.close()


async def _make_due(store: Sqlite, number: int) -> None:
    """A hundred running jobs, spread over the whole file and each time others, stopped its heartbeat a minute ago."""

    def fall_silent(db: apsw.Connection) -> None:
        jobs = db.execute("SELECT max(seq) FROM jobs").get
        stride = jobs // DUE // 2 * 2
        assert 2 * number + 2 <= stride, "as many rounds as the smaller store has fresh jobs for"
        seqs = [2 * number + 2 + stride * n for n in range(DUE)]
        ago = to_micros(ManualClock().now() - 2 * _HEARTBEAT_TIMEOUT)
        db.executemany(
            "UPDATE jobs SET deadline = ?, heartbeat_at = ? WHERE seq = ?", [(ago, ago, seq) for seq in seqs]
        )

    await store._writer.do(lambda step: fall_silent(step.db))


async def _sweep(store: Sqlite) -> float:
    sweep = StuckJobs(store.jobs, heartbeat_timeout=_HEARTBEAT_TIMEOUT)
    clock = SystemClock()
    start = clock.monotonic()
    page = await sweep.find(None, DUE)
    verdicts = [sweep.decide(suspect, page.at) for suspect in page]
    actions = [verdict for verdict in verdicts if isinstance(verdict, Action)]
    outcomes = await sweep.apply(actions)
    taken = clock.monotonic() - start
    assert [outcome for outcome in outcomes if outcome is Outcome.DONE] == [Outcome.DONE] * DUE, "all were due"
    return taken


BENCHMARK = Benchmark("stuck_jobs_flat", ABOUT, run)
