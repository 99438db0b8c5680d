"""A nursery of collectors that die, on PostgreSQL and S3: each kills itself with SIGKILL at a call of its own.

    python postgres_actor.py PLACE DATABASE ENDPOINT KEY SECRET FIRST STEP [again]

As `collector_actor.py`, with references and sightings in PostgreSQL and archives in a bucket. Their clocks cannot be
set, so the graces are nothing and the quarantine a microsecond: what is due is decided by complete scans alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import apsw
import psycopg

from orphan_field import SEED
from orphans.collector_actor import Fate, MortalJournal, MortalObjects, MortalSightings, child
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.backends.sql.catalog import SqlCatalog
from wrasse.backends.sql.sightings import PostgresSightings
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.engine.run import RunContext, run_once
from wrasse.ids import Ids
from wrasse.orphans.root import Graces, Workspaces, WriterTime, workspaces_queries
from wrasse.orphans.scan import Approval, Ports, write_approval
from wrasse.orphans.scanner import Scanner
from wrasse.ports.objects import Objects
from wrasse.sweeps.orphan_objects import OrphanObjects

NONE = timedelta(0)
ROOT = replace(SEED, graces=Graces(NONE, NONE, NONE), writer=WriterTime(NONE, 0), quarantine=timedelta(microseconds=1))
LOOKS_MAX = 50  # a store whose times are whole seconds may call an archive young for a moment


@dataclass(frozen=True)
class ServedWorld:
    """A schema, a part of a bucket, and a directory for the journal."""

    place: Path
    database: str
    bucket: S3Address

    @property
    def schema(self) -> str:
        return f"w{self.bucket.prefix}"

    @property
    def url(self) -> str:
        return f"{self.database}?options=-csearch_path%3D{self.schema}"

    async def plant(self) -> None:
        """Archives of a workspace, the last of which is referenced."""
        self.place.mkdir(parents=True)
        self.tell(f"CREATE SCHEMA {self.schema}")
        self.tell("CREATE TABLE workspaces (id text, archive_key text, op_id text, deleted_at timestamptz)")
        self.refer("new")
        async with self.opened() as objects:
            for op in ("new", "old1", "old2"):
                for name in ("home.tar.gz", "home.tar.gz.meta"):
                    assert await objects.create(f"archives/ws1/{op}/{name}", f"{op} {name}".encode() * 100)

    def tell(self, sql: str) -> None:
        """The user's own connection."""
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(sql)  # type: ignore[arg-type]

    def refer(self, *ops: str) -> None:
        """Rows that name these archives."""
        for op in ops:
            self.tell(f"INSERT INTO workspaces VALUES ('{op}', 'archives/ws1/{op}/home.tar.gz', NULL, NULL)")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Objects]:
        store = await S3.open(self.bucket, SystemClock())
        try:
            yield store.objects
        finally:
            await store.close()

    async def run(self, die_at: int = 0, *, until_noted: bool = False) -> None:
        """One run; with `until_noted`, as many as it takes until both old archives are noted."""
        clock, fate = SystemClock(), Fate(die_at)
        store, sightings = await Sqlite.open(self.place / "wrasse.db", clock), await PostgresSightings.open(self.url)
        catalog = SqlCatalog.open(self.url, workspaces_queries(Workspaces()))
        try:
            async with self.opened() as objects:
                ports = Ports(
                    MortalObjects(objects, fate), catalog, MortalSightings(sightings, fate), self.place / "spool", clock
                )
                scanner = Scanner(ROOT, ports, catalog.leader(self.schema))
                if not (await sightings.standing("archives")).version:
                    await sightings.write("archives", write_approval(Approval(ROOT.digest)), at=0)
                frame = RunContext(MortalJournal(store.journal, fate), clock, Ids(clock), open_after=NONE)
                if until_noted:
                    for _ in range(LOOKS_MAX):
                        await scanner.scan(note=True)
                        if len(await sightings.page("archives", None, 10)) == 2:
                            return
                        await asyncio.sleep(0.2)
                report = await run_once(OrphanObjects(scanner), frame, guards=scanner.guards)
                assert not report.errors, report.errors
                assert report.stopped_by is None, report.why
                scanner.close()
        finally:
            await catalog.close()
            await sightings.close()
            await store.close()

    async def files(self) -> dict[str, str]:
        """Every object of the root and of the trash, with what it holds."""
        async with self.opened() as objects:
            keys = [info.key for info in await objects.page("", None, 1000)]
            mine = [key for key in keys if key.startswith(("archives/", ".trash/"))]
            return {key: b"".join([part async for part in objects.read(key)]).decode() for key in mine}

    def lines(self) -> list[tuple[str, str, str | None]]:
        """Verb, suspect and outcome of every line of the journal."""
        db = apsw.Connection(str(self.place / "wrasse.db"), apsw.SQLITE_OPEN_READONLY)
        try:
            return list(db.execute("SELECT verb, suspect, outcome FROM lines ORDER BY id"))
        finally:
            db.close()


def story(world: ServedWorld, at: int, *, again: bool) -> bool:
    """One world; False if the collector ended before it could die."""
    assert child(world.plant) == 0
    assert child(lambda: world.run(until_noted=True)) == 0
    ended = child(lambda: world.run(at))
    left, told = asyncio.run(world.files()), world.lines()
    if again:
        world.refer("old1", "old2")
    for _ in range(3):
        assert child(world.run) == 0
    end = {"end": asyncio.run(world.files()), "lines": world.lines()}
    print(json.dumps({"at": at, "ended": ended, "left": left, "told": told, **end}))
    return ended != 0


def main() -> None:
    place, database, endpoint, key, secret, first, step = sys.argv[1:8]
    again = sys.argv[8:] == ["again"]
    for at in range(int(first), 200, int(step)):
        name = f"k{at}{'again' if again else ''}{Path(place).name.replace('-', '')}".lower().replace("_", "")
        bucket = S3Address("orphans-kills", name, endpoint, access_key=key, secret_key=secret)
        if not story(ServedWorld(Path(place) / name, database, bucket), at, again=again):
            return


if __name__ == "__main__":
    main()
