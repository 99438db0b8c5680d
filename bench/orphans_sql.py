"""References in PostgreSQL: keys a second of the last check before a delete, and how fast a snapshot streams.

The table is the design document's, with the two indexes that the how-to names. Half of the keys that are asked about
are referenced. The server is one of the tests', on this machine. What counts is the processor time of both, client and
session, so that others who use the machine do not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Benchmark, Rate, Ratio, Result
from servers.postgres import postgres
from wrasse.clock import SystemClock
from wrasse.orphans.root import Workspaces, workspaces_queries

TARGET = 20_000
BATCH = 500
CLOCK = SystemClock()
TABLE = "CREATE TABLE workspaces (id text PRIMARY KEY, archive_key text, op_id text, deleted_at timestamptz)"
FILL = """INSERT INTO workspaces SELECT 'ws' || lpad(n::text, 8, '0'),
    'archives/ws' || lpad(n::text, 8, '0') || '/' || md5(n::text) || '/home.tar.gz', md5(n::text), NULL
    FROM generate_series(1, %s) n"""
INDEXES = (
    'CREATE INDEX ON workspaces (archive_key COLLATE "C")',
    "CREATE INDEX ON workspaces ((('archives/' || id || '/' || op_id || '/')) COLLATE \"C\")",
    "VACUUM ANALYZE workspaces",
)


def run(quick: bool) -> Result:
    """Fills a table and asks."""
    rows = 50_000 if quick else 300_000
    with postgres() as url:
        _fill(url, rows)
        asked = asyncio.run(_ask(url, rows, rounds=3 if quick else 10))
    rates = (
        Rate(f"last check, {BATCH} keys at a time", asked.by_clock, "keys/s"),
        Rate("the same, by processor time of both", asked.by_processor, "keys/s"),
        Rate("snapshot, in the order of keys", asked.streamed, "references/s"),
    )
    ratio = Ratio(f"keys per processor second to {TARGET:,}", asked.by_processor / TARGET, 1.0)
    return Result(BENCHMARK.name, BENCHMARK.about, rates, (ratio,))


@dataclass(frozen=True, slots=True)
class Asked:
    """Keys a second, and references a second."""

    by_clock: float
    by_processor: float
    streamed: float


BENCHMARK = Benchmark("orphans_sql", "asking PostgreSQL once more about keys that are due", run)


def _fill(url: str, rows: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLE)
        db.execute(FILL, (rows,))
        for statement in INDEXES:
            db.execute(statement)


async def _ask(url: str, rows: int, rounds: int) -> Asked:
    from wrasse.backends.sql.catalog import SqlCatalog

    catalog = SqlCatalog.open(url, workspaces_queries(Workspaces()))
    streamed = await _stream(catalog)
    rng = random.Random(1)
    batches = [[_unit(rng.randrange(1, 2 * rows)) for _ in range(BATCH)] for _ in range(10 * rounds)]
    await catalog.referenced(batches[0], below=True)
    began, spent = CLOCK.monotonic(), time.process_time() + _session_time(url)
    found = [await catalog.referenced(units, below=True) for units in batches]
    took, spent = CLOCK.monotonic() - began, time.process_time() + _session_time(url) - spent
    for units, answers in zip(batches, found, strict=True):
        assert [each is not None for each in answers] == [int(unit[11:19]) <= rows for unit in units]
    await catalog.close()
    return Asked(len(batches) * BATCH / took, len(batches) * BATCH / spent, streamed)


def _session_time(url: str) -> float:
    """Processor seconds of our sessions on the server."""
    import psycopg

    with psycopg.connect(url) as db:
        pids = [pid for (pid,) in db.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'wrasse'")]
    fields = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


async def _stream(catalog: object) -> float:
    from wrasse.backends.sql.catalog import SqlCatalog

    assert isinstance(catalog, SqlCatalog), "the one that is measured"
    began, seen, after = CLOCK.monotonic(), 0, None
    async with catalog.snapshot() as snapshot:
        while True:
            page = await snapshot.page(after, 5_000)
            seen, after = seen + len(page), page.cursor
            if after is None:
                return seen / (CLOCK.monotonic() - began)


def _unit(number: int) -> str:
    """The directory of one archive: of a row that is there, or of one that is not."""
    return f"archives/ws{number:08}/{hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()}/"
