"""The sightings under test, each behind the same small face. All knowledge of a backend is in this file."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg

from wrasse.backends.memory.connect import Memory
from wrasse.backends.sql.sightings import PostgresSightings
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.ports.sightings import Sightings

SIGHTINGS_BACKENDS = ("memory", "sqlite", "postgres")


@asynccontextmanager
async def fresh_postgres(url: str) -> AsyncIterator[str]:
    """A URL for an empty schema of this server."""
    name = f"s{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}")
    try:
        yield f"{url}?options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA {name} CASCADE")


@asynccontextmanager
async def open_sightings(name: str, place: Path, server: Callable[[], str]) -> AsyncIterator[Sightings]:
    """The sightings of one backend, empty."""
    if name == "memory":
        yield Memory(ManualClock()).sightings
        return
    if name == "postgres":
        async with fresh_postgres(server()) as url:
            kept = await PostgresSightings.open(url)
            try:
                yield kept
            finally:
                await kept.close()
        return
    store = await Sqlite.open(place / "wrasse.db", ManualClock())
    try:
        yield store.sightings
    finally:
        await store.close()
