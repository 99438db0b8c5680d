"""`store` and its kin as the conformance suites want them, behind lines that lose answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from chaos.lossy import LossyStore
from wrasse.clock import SystemClock
from wrasse.jobs.stream_tasks import queue as task_queue

OpenStore = Callable[..., Awaitable[LossyStore]]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `open_task_store` sets for its own process ends with the test."""
    monkeypatch.setattr(task_queue, "ACK_TIMEOUT", task_queue.ACK_TIMEOUT)


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[OpenStore]:
    stores: list[LossyStore] = []

    async def open_one(*, live: bool = False, done_max: int = 10_000) -> LossyStore:
        store = LossyStore(tmp_path, clock=SystemClock() if live else None, done_max=done_max)
        stores.append(store)
        await store.open()
        return store

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> LossyStore:
    return await open_store()


@pytest.fixture
async def live_store(open_store: OpenStore) -> LossyStore:
    return await open_store(live=True)
