"""`store`: one per backend; `live_store`: its clock moves by itself; `open_store`: with settings of your choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from conformance.stores import BACKENDS, Store
from wrasse.clock import SystemClock

OpenStore = Callable[..., Awaitable[Store]]


@pytest.fixture(params=BACKENDS)
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    stores: list[Store] = []

    async def open_one(*, live: bool = False, done_max: int = 10_000) -> Store:
        place = tmp_path / str(len(stores))
        place.mkdir()
        store = Store(request.param, place, clock=SystemClock() if live else None, done_max=done_max)
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
