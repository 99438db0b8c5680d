"""`store`: one per backend; `live_store`: its clock moves by itself; `open_store`: with settings of your choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from conformance.recorded_stores import RECORDED_BACKENDS
from conformance.stores import (
    BACKENDS,
    CLUSTER,
    JOBS_BACKENDS,
    NATS_SERVERS,
    OLD_SERVERS,
    RECORDS_BACKENDS,
    REDIS_PY,
    STREAMS_BACKENDS,
    Store,
)
from conformance.task_stores import LONG_TASKS_BACKENDS, NOT_FOR_TASKS, TASKS_BACKENDS
from wrasse.backends.memory.connect import Memory
from wrasse.backends.nats.connect import Nats
from wrasse.clock import SystemClock

OpenStore = Callable[..., Awaitable[Store]]
JOBS_SUITES = ("test_jobs", "test_jobs_faults", "test_jobs_moves", "test_jobs_views", "test_comforts", "test_scale")
TASKS_SUITES = ("test_jobs", "test_jobs_faults", "test_jobs_moves", "test_jobs_views")
LARGE_TASKS = ("tasks memory", "tasks sqlite", "tasks redis")
STREAMS_SUITES = ("test_streams", "test_groups", "test_messages", "test_messages_unacked", "test_dead_consumers")


CAPABILITIES = dict.fromkeys(NATS_SERVERS, Nats.capabilities)  # of those that do not declare all of them
LEFT_OUT = "left out:"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tests that a backend leaves out, and by which declaration."""
    reports = terminalreporter.stats.get("skipped", [])
    left = sorted((r.longrepr[2].partition(LEFT_OUT)[2], r.nodeid) for r in reports if LEFT_OUT in str(r.longrepr))
    if left:
        terminalreporter.section(f"{len(left)} tests left out by what a backend declares")
    for why, test in left:
        terminalreporter.write_line(f"{why.strip()}: {test}")


def _where_declared(metafunc: pytest.Metafunc, stores: Sequence[object]) -> list[object]:
    """The stores, those that do not declare what the test needs marked as left out."""
    needs = [str(mark.args[0]) for mark in metafunc.definition.iter_markers("needs")]
    if needs and metafunc.definition.get_closest_marker("guarantee"):
        raise pytest.UsageError(f"{metafunc.definition.nodeid} proves a guarantee and may be left out nowhere")
    found: list[object] = []
    for each in stores:
        name = each.values[0] if isinstance(each, type(pytest.param())) else each
        lacks = [need for need in needs if not getattr(CAPABILITIES.get(str(name), Memory.capabilities), need)]
        skip = pytest.mark.skip(reason=f"left out: {name} declares no {', '.join(lacks)}")
        marks = list(each.marks) if isinstance(each, type(pytest.param())) else []
        found.append(pytest.param(name, marks=[*marks, skip]) if lacks else each)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each suite on its backends. Jobs live in more of them than streams do; the oldest Redis and a Cluster are for the
    long run."""
    named = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "open_store" in metafunc.fixturenames and "open_store" not in named:
        suite = metafunc.module.__name__.rpartition(".")[2]
        long = [pytest.param(name, marks=pytest.mark.full) for name in ("redis-7.0", "redis-6.2", CLUSTER, REDIS_PY)]
        stores: tuple[object, ...] = (*JOBS_BACKENDS, *long) if suite in JOBS_SUITES else BACKENDS
        if suite in TASKS_SUITES and metafunc.definition.name not in NOT_FOR_TASKS:
            long = [pytest.param(name, marks=pytest.mark.full) for name in LONG_TASKS_BACKENDS]
            stores = (*stores, *TASKS_BACKENDS, *long)
        if suite in TASKS_SUITES:
            stores = (*stores, *RECORDED_BACKENDS)
        if suite in STREAMS_SUITES:
            long = [pytest.param(name, marks=pytest.mark.full) for name in (*OLD_SERVERS, CLUSTER)]
            stores = (*STREAMS_BACKENDS, *long)
        if suite == "test_journal":
            long = [pytest.param(name, marks=pytest.mark.full) for name in ("redis-7.0", CLUSTER, "nats-2.9")]
            stores = (*RECORDS_BACKENDS, *long)
        if suite == "test_scale":  # half a minute there, and the server's part of it is seconds
            long = [pytest.param(name, marks=pytest.mark.full) for name in ("redis", *LARGE_TASKS)]
            stores = (*BACKENDS, *long)
        metafunc.parametrize("open_store", _where_declared(metafunc, stores), indirect=True)


@pytest.fixture
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    stores: list[Store] = []

    async def open_one(*, live: bool = False, done_max: int = 10_000) -> Store:
        place = tmp_path / str(len(stores))
        place.mkdir()
        server = request.getfixturevalue("s3") if request.param == "s3" else None
        # The deadlines of a durable consumer are the server's: no clock of ours moves them.
        served = request.param in NATS_SERVERS and request.module.__name__.rpartition(".")[2] == "test_groups"
        clock = SystemClock() if live or served else None
        store = Store(request.param, place, clock=clock, done_max=done_max, server=server)
        stores.append(store)
        await store.open()
        return store

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()


@pytest.fixture
async def live_store(open_store: OpenStore) -> Store:
    return await open_store(live=True)
