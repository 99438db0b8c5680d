"""What the database of before holds: played once, by the code of before, into `schema_before_words.sql`.

`python -m tests.wire --record` writes it only where the file is missing. Once the schema has changed, the code of
before is gone, and so this file of SQL is the only database of before there is.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from lease_server.scene import served
from wire import job_scenes, lease_calls
from wire.lease_calls import Caller
from wire.places import START, Place, pass_time
from wire.test_engine import _runs
from wire.test_streams import SCENES
from wrasse.backends.directory.connect import Directory
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.leases.leases import Leases
from wrasse.ports.sightings import (
    CompleteScan,
    Evidence,
    NewSighting,
    Sighting,
    SightingChange,
    Sightings,
    SightingState,
)
from wrasse.runtime.stream_tasks import EnvelopeCodec

_PRAGMAS = ("application_id", "user_version")


async def play(at: Place, objects: Path) -> None:
    """A scenario of every domain."""
    store = at.backend
    assert isinstance(store, Sqlite)
    await job_scenes.every_state(at, store.jobs)
    await pass_time(at, timedelta(minutes=5))  # until names of requests may be used again
    await job_scenes.groups_and_names(at, store.jobs, "some", "others")
    directory = await Directory.open(objects, at.clock)
    codec = EnvelopeCodec(at.clock)
    ports = TaskPorts(store.records, store.streams, store.groups, codec, at.clock, directory.objects)
    await job_scenes.every_state(at, TaskQueue(ports, [TaskType("low", 3), TaskType("high")]))
    leases = Leases(store.records, directory.objects, at.clock, namespaces=store.namespaces)
    async with served(leases, at.clock) as server:
        for scene in (lease_calls.keys_and_state, lease_calls.transactions, lease_calls.messages):
            await scene(Caller(server))
        await server.api.finished()
        await leases.close()
    await directory.close()
    await SCENES["messages"](at)
    await SCENES["upkeep"](at)
    await store.limiter.allow("producer", 3, rate=10, burst=10)
    await orphans(store.sightings)
    await job_scenes.periodic(at, store.jobs)
    await _runs(at)


async def orphans(sightings: Sightings) -> None:
    """A root with a round, a value, an orphan that was seen and one in quarantine."""
    found = [
        Sighting(f"archives/ws{n}/", Evidence.SUPERSEDED, f"f{n}", 7 + n, b"\0files", 1, START, 123) for n in (1, 2)
    ]
    await sightings.commit(
        CompleteScan("archives", "round-1", 1, START, START, 1_000, {"listed": 5}),
        [[NewSighting(each) for each in found]],
    )
    await sightings.write("archives", b"armed", at=0)
    await sightings.mark(
        "archives", [SightingChange("archives/ws2/", SightingState.SEEN, "f2", SightingState.MOVED, "round-1", 2_000)]
    )


def as_sql(database: Path) -> str:
    """The whole database as SQL that makes it again."""
    with closing(sqlite3.connect(database)) as db:
        pragmas = [f"PRAGMA {name}={db.execute(f'PRAGMA {name}').fetchone()[0]};" for name in _PRAGMAS]
        return "\n".join([*pragmas, *db.iterdump()]) + "\n"


def from_sql(text: str, database: Path) -> None:
    """The database that this SQL makes."""
    with closing(sqlite3.connect(database)) as db:
        db.executescript(text)
