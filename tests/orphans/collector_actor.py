"""A nursery of collectors that die: on a directory and SQLite, each kills itself with SIGKILL at a call of its own.

    python collector_actor.py PLACE move|mark|delete [again]

Forked from a process that has everything imported. For every call of a run there is a world of its own: two archives
that are due and one that is referenced. The answer is one JSON line per world: how the collector ended, what was there
then, what is there after others have finished, and what the journal says.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import apsw

from orphan_field import DAY, HOUR, SEED
from wrasse.backends.directory.connect import Directory
from wrasse.backends.sqlite.catalog import SqliteCatalog
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.engine.run import RunContext, run_once
from wrasse.ids import Ids
from wrasse.orphans.root import Workspaces, workspaces_queries
from wrasse.orphans.scan import Approval, Ports, write_approval
from wrasse.orphans.scanner import Scanner
from wrasse.ports.journal import Intent, Journal, Line, LineFilter, SettledIntent
from wrasse.ports.objects import NO_METADATA, Data, ObjectDelete, ObjectHead, ObjectInfo, Objects, WriteResult
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.sightings import Change, CompleteScan, Sighting, SightingChange, Sightings, SightingState, Standing
from wrasse.sweeps.orphan_objects import OrphanObjects

T = TypeVar("T")
BEGAN = datetime.now(UTC) + timedelta(days=1)
ROOTS = {
    "move": SEED,
    "mark": replace(SEED, quarantine_by="mark"),
    "delete": replace(SEED, quarantine=timedelta(0)),
}


class Fate:
    """Kills the process at its nth call, before it or after it in turns."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._before = at % 2 == 0

    async def call(self, do: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left == 0 and self._before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await do()
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


class MortalObjects:
    """Objects in use by one who may die."""

    def __init__(self, objects: Objects, fate: Fate) -> None:
        self._objects = objects
        self._call = fate.call
        self.read = objects.read
        self.replace = objects.replace
        self.copies, self.multipart, self.versions = self, None, None

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await self._call(lambda: self._objects.create(key, data, metadata=metadata))

    async def head(self, key: str) -> ObjectHead | None:
        return await self._call(lambda: self._objects.head(key))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        return await self._call(lambda: self._objects.page(prefix, after, limit))

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        copies = self._objects.copies
        assert copies is not None
        return await self._call(lambda: copies.copy(key, to, at=at))

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        return await self._call(lambda: self._objects.delete(deletes))


class MortalSightings:
    """Sightings in use by one who may die."""

    def __init__(self, sightings: Sightings, fate: Fate) -> None:
        self._sightings = sightings
        self._call = fate.call

    async def standing(self, root: str) -> Standing:
        return await self._call(lambda: self._sightings.standing(root))

    async def write(self, root: str, value: bytes, *, at: int) -> bool:
        return await self._call(lambda: self._sightings.write(root, value, at=at))

    async def page(
        self, root: str, after: str | None, limit: int, state: SightingState | None = None
    ) -> Page[Sighting]:
        return await self._call(lambda: self._sightings.page(root, after, limit, state))

    async def get(self, root: str, units: Sequence[str]) -> Sequence[Sighting | None]:
        return await self._call(lambda: self._sightings.get(root, units))

    async def commit(self, made: CompleteScan, changes: Iterable[Sequence[Change]]) -> bool:
        return await self._call(lambda: self._sightings.commit(made, changes))

    async def mark(self, root: str, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        return await self._call(lambda: self._sightings.mark(root, marks))


class MortalJournal:
    """A journal in use by one who may die."""

    def __init__(self, journal: Journal, fate: Fate) -> None:
        self._journal = journal
        self._call = fate.call
        self.delete = journal.delete

    async def intend(self, intents: Sequence[Intent]) -> datetime:
        return await self._call(lambda: self._journal.intend(intents))

    async def settle(self, outcomes: Sequence[SettledIntent]) -> None:
        await self._call(lambda: self._journal.settle(outcomes))

    async def page(self, where: LineFilter, after: str | None, limit: int, *, newest: bool = False) -> Page[Line]:
        return await self._call(lambda: self._journal.page(where, after, limit, newest=newest))


class World:
    """One directory, one database of ours and one of the user's, and a clock that stands."""

    def __init__(self, place: Path, how: str) -> None:
        self.place = place
        self.root = ROOTS[how]

    def plant(self) -> None:
        """Archives of a workspace, the last of which is referenced."""
        self.place.mkdir(parents=True)
        db = apsw.Connection(str(self.place / "app.db"))
        db.execute("CREATE TABLE workspaces (id TEXT, archive_key TEXT, op_id TEXT, deleted_at TEXT)")
        db.execute("INSERT INTO workspaces VALUES ('ws1', 'archives/ws1/new/home.tar.gz', 'new', NULL)")
        db.close()
        for op in ("new", "old1", "old2"):
            folder = self.place / "data" / "archives" / "ws1" / op
            folder.mkdir(parents=True)
            for name in ("home.tar.gz", "home.tar.gz.meta"):
                (folder / name).write_bytes(f"{op} {name}".encode() * 100)

    async def run(self, after: timedelta, die_at: int = 0) -> None:
        """One run, so long after the beginning."""
        clock, fate = ManualClock(BEGAN + after), Fate(die_at)
        store, directory = (
            await Sqlite.open(self.place / "wrasse.db", clock),
            await Directory.open(self.place / "data", clock),
        )
        try:
            queries = workspaces_queries(Workspaces())
            catalog = SqliteCatalog(self.place / "app.db", queries, clock)
            objects, sightings = MortalObjects(directory.objects, fate), MortalSightings(store.sightings, fate)
            scanner = Scanner(self.root, Ports(objects, catalog, sightings, self.place / "spool", clock))
            standing = await store.sightings.standing("archives")
            if not standing.version:
                await store.sightings.write("archives", write_approval(Approval(self.root.digest)), at=0)
            frame = RunContext(MortalJournal(store.journal, fate), clock, Ids(clock))
            report = await run_once(OrphanObjects(scanner), frame, guards=[scanner.watch])
            assert not report.errors, report.errors
            scanner.close()
        finally:
            await store.close()
            await directory.close()

    def refer(self) -> None:
        """The user refers to everything again."""
        db = apsw.Connection(str(self.place / "app.db"))
        for op in ("old1", "old2"):
            db.execute("INSERT INTO workspaces VALUES (?, ?, NULL, NULL)", (op, f"archives/ws1/{op}/home.tar.gz"))
        db.close()

    def files(self) -> dict[str, str]:
        """Every file of the root and of the trash, with what it holds."""
        root = self.place / "data"
        found = [path for top in ("archives", ".trash") for path in (root / top).rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_text() for path in found}

    def lines(self) -> list[tuple[str, str, str | None]]:
        """Verb, suspect and outcome of every line of the journal."""
        db = apsw.Connection(str(self.place / "wrasse.db"), apsw.SQLITE_OPEN_READONLY)
        try:
            return list(db.execute("SELECT verb, suspect, outcome FROM lines ORDER BY id"))
        finally:
            db.close()


def child(work: Callable[[], Awaitable[None]]) -> int:
    """Does it in a process of its own; gives how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())  # type: ignore[arg-type]
        except BaseException as error:
            print(f"{error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def story(place: Path, how: str, at: int, *, again: bool) -> bool:
    """One world; False if the collector ended before it could die."""
    world = World(place / f"{how}-{at}-{again}", how)
    world.plant()
    assert child(lambda: world.run(timedelta(0))) == 0
    ended = child(lambda: world.run(2 * HOUR, at))
    left, told = world.files(), world.lines()
    if again:
        world.refer()
    for after in (3 * HOUR, 4 * HOUR, *((12 * DAY, 13 * DAY) if not again else ())):
        assert child(lambda after=after: world.run(after)) == 0
    end = {"end": world.files(), "lines": world.lines()}
    print(json.dumps({"at": at, "ended": ended, "left": left, "told": told, **end}))
    return ended != 0


def main() -> None:
    place, how, again = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["again"]
    for at in range(1, 200):
        if not story(place, how, at, again=again):
            return


if __name__ == "__main__":
    main()
