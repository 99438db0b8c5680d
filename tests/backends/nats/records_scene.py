"""A NATS under records, for the tests of what only that backend does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import Clock
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Written

THINGS = Collection.named("things", width=timedelta(seconds=1))


def at(port: int, root: str = "", **others: object) -> NatsOptions:
    quick = timedelta(seconds=2)
    return NatsOptions(nodes=(("127.0.0.1", port),), root=root or f"t{uuid4().hex}", read_timeout=quick, **others)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def opened(options: NatsOptions, clock: Clock | None = None) -> AsyncIterator[Nats]:
    store = await Nats.open(options, time=clock)
    try:
        yield store
    finally:
        await store.close()


def version(written: Written) -> str:
    assert written.outcome is Outcome.DONE, written
    assert written.version is not None
    return written.version
