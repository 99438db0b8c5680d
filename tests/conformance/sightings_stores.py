"""The sightings under test, each behind the same small face. All knowledge of a backend is in this file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from wrasse.backends.memory.connect import Memory
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.ports.sightings import Sightings

SIGHTINGS_BACKENDS = ("memory", "sqlite")


@asynccontextmanager
async def open_sightings(name: str, place: Path) -> AsyncIterator[Sightings]:
    """The sightings of one backend, empty."""
    if name == "memory":
        yield Memory(ManualClock()).sightings
        return
    store = await Sqlite.open(place / "wrasse.db", ManualClock())
    try:
        yield store.sightings
    finally:
        await store.close()
