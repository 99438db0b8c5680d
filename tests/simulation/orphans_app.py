"""An application that keeps archives of workspaces: it uploads, refers, replaces, rolls back, deletes and repents.

It is the application of the design document, with its habits and its faults: references that come late, archives that
are written again, intents that were never committed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from datetime import datetime

from simulation.orphans_laws import MARKER, ROOT, Truth
from wrasse.clock import Clock
from wrasse.ports.catalog import Reference
from wrasse.ports.objects import Objects

MINUTE, HOUR = 60.0, 3600.0
FILES = ("home.tar.gz", f"home.tar.gz{MARKER}")


@dataclass(frozen=True, slots=True)
class Habits:
    """How an application behaves: shares of what it does, and how long things take at most, in seconds."""

    rollback: float = 0.0
    again: float = 0.0
    remove: float = 0.0
    upload_max: float = 20 * MINUTE
    lag_max: float = 5 * MINUTE
    intent: float = 1.0  # how often op_id is committed before the first byte


@dataclass(frozen=True, slots=True)
class Workspace:
    """One row."""

    id: str
    archive_key: str = ""
    op_id: str = ""
    deleted_at: datetime | None = None

    def references(self) -> list[Reference]:
        """What the row refers to."""
        rows = []
        if self.archive_key:
            rows.append(Reference(self.archive_key, False, self.id, "archive_key", self.deleted_at))
        if self.op_id:
            rows.append(Reference(f"{ROOT}{self.id}/{self.op_id}/", True, self.id, "op_id", self.deleted_at))
        return rows


@dataclass(slots=True)
class Database:
    """The table, and what it was at every moment."""

    clock: Clock
    rows: dict[str, Workspace] = field(default_factory=dict)
    history: list[tuple[float, dict[str, Workspace]]] = field(default_factory=list)

    def write(self, row: Workspace) -> None:
        """Commits a row."""
        self.rows = {**self.rows, row.id: row}
        self.history.append((asyncio.get_running_loop().time(), self.rows))

    def at(self, moment: float) -> dict[str, Workspace]:
        """The table as it was then."""
        return next((rows for when, rows in reversed(self.history) if when <= moment), {})

    def needed(self) -> set[str]:
        """The directories that live rows refer to by name."""
        live = [row for row in self.rows.values() if row.deleted_at is None and row.archive_key]
        return {row.archive_key[: row.archive_key.rindex("/") + 1] for row in live}


class Application:
    """Whoever works on one workspace."""

    def __init__(
        self, id: str, db: Database, objects: Objects, truth: Truth, rng: random.Random, habits: Habits
    ) -> None:
        self._id = id
        self._db = db
        self._objects = objects
        self._truth = truth
        self._rng = rng
        self._habits = habits
        self._ops = 0
        self._past: list[tuple[float, str]] = []  # what it referred to, and until when

    async def live(self, until: float) -> None:
        """Works until the end, whatever is under way then included."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            await self._archive()
            while loop.time() < until:
                await asyncio.sleep(self._rng.expovariate(1 / (2.5 * HOUR)))
                dice = self._rng.random()
                if dice < self._habits.rollback:
                    self._roll_back()
                elif dice < self._habits.rollback + self._habits.again:
                    group.create_task(self._write_again())
                elif dice < self._habits.rollback + self._habits.again + self._habits.remove:
                    group.create_task(self._delete_and_repent(until))
                elif self._row().deleted_at is None:
                    group.create_task(self._archive())

    def _row(self) -> Workspace:
        return self._db.rows.get(self._id) or Workspace(self._id)

    async def _archive(self) -> None:
        self._ops += 1
        op = f"op{self._ops:03}"
        if self._rng.random() < self._habits.intent:
            self._db.write(replace(self._row(), op_id=op))
        await self._upload(op)
        await asyncio.sleep(self._rng.uniform(0, self._habits.lag_max))
        self._refer(f"{ROOT}{self._id}/{op}/{FILES[0]}", op)

    async def _write_again(self) -> None:
        """A retry of an operation that everybody had forgotten: the same keys, other bytes."""
        if self._ops > 1:
            op = f"op{self._rng.randrange(max(1, self._ops - 3), self._ops):03}"
            if f"{ROOT}{self._id}/{op}/" not in self._truth.uploading:
                await self._upload(op)
                await asyncio.sleep(self._rng.uniform(0, self._habits.lag_max))
                self._refer(f"{ROOT}{self._id}/{op}/{FILES[0]}", op)

    def _roll_back(self) -> None:
        """Somebody wants what was there some hours ago."""
        now = asyncio.get_running_loop().time()
        recent = [key for until, key in self._past if now - until < 12 * HOUR]
        if recent:
            self._refer(self._rng.choice(recent), "")

    async def _delete_and_repent(self, until: float) -> None:
        self._db.write(replace(self._row(), deleted_at=self._db.clock.now()))
        if self._rng.random() < 0.8:
            await asyncio.sleep(min(self._rng.uniform(0.1, 20) * HOUR, until - asyncio.get_running_loop().time()))
            self._db.write(replace(self._row(), deleted_at=None))

    def _refer(self, key: str, op: str) -> None:
        before = self._row()
        if before.archive_key and before.archive_key != key:
            self._past.append((asyncio.get_running_loop().time(), before.archive_key))
        self._db.write(replace(before, archive_key=key, op_id=before.op_id or op))

    async def _upload(self, op: str) -> None:
        """Data first, then the marker that says it is whole."""
        unit = f"{ROOT}{self._id}/{op}/"
        self._truth.uploading.add(unit)
        for file in FILES:
            await asyncio.sleep(self._rng.uniform(0, self._habits.upload_max / len(FILES)))
            await self._put(f"{unit}{file}", f"{op} {file} {self._rng.random()}".encode())
        self._truth.uploading.discard(unit)

    async def _put(self, key: str, data: bytes) -> None:
        while True:
            head = await self._objects.head(key)
            stored = await (
                self._objects.create(key, data)
                if head is None
                else self._objects.replace(key, data, at=head.info.version)
            )
            if stored:
                self._truth.written[key] = (asyncio.get_running_loop().time(), data)
                return
