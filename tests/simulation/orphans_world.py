"""A store full of archives, an application that has its faults, a database that has its own, and collectors.

The collector is the real one: sweep, desk, look, merge, removal, trash, run by the engine's own loop. Everything around
it is in memory and in virtual time; one seed is one story.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from orphan_field import DAY, HOUR as HOURS, SEED
from simulation.orphans_app import FILES, HOUR, MINUTE, Application, Database, Habits
from simulation.orphans_laws import MARKER, ROOT, TRASH, Truth, Witness, unit_of
from simulation.orphans_ports import Died, Faults, Line, SlowObjects, SlowSightings, WorldCatalog, content
from virtual_time import VirtualClock, run_virtual
from wrasse.backends.memory.journal import MemoryJournal
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.backends.memory.sightings import MemorySightings
from wrasse.engine.report import Report
from wrasse.engine.run import RunBudget, RunContext, run_once
from wrasse.ids import Ids
from wrasse.orphans.root import Graces, Root
from wrasse.orphans.scan import Ports, read_approval, write_approval
from wrasse.orphans.scanner import Scanner
from wrasse.sweeps.orphan_objects import OrphanObjects

STORM = 30 * HOUR
CALM_LOOKS = 5
CALM_BREAK = 3 * 24 * HOUR
# The grace of what belongs to nobody is short, too: else it would hide what the other guards let through.
ROOT_OF_ALL = replace(SEED, quarantine=3 * DAY, graces=Graces(2 * HOURS, 2 * HOURS, 2 * HOURS))
FOREIGN = (f"{ROOT}README.txt", f"{ROOT}ws0/loose", "others/ws0/op001/home.tar.gz")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in a story."""

    name: str
    habits: Habits = field(default_factory=Habits)
    workspaces: int = 4
    missing: float | None = None  # the share of rows that the database does not tell of, for some hours
    lag: float = 0.0  # seconds by which a snapshot is late
    slow: float = 0.0  # how often a call takes minutes
    steps: bool = False  # somebody sets a clock
    pauses: bool = False  # collectors die and stand still
    lost: bool = False  # the sightings are lost once
    collectors: int = 1


MIXED = Habits(rollback=0.15, again=0.15, remove=0.1, lag_max=2 * HOUR, intent=0.7)
SCENARIOS = (
    Scenario("normal"),
    Scenario("slow uploads", Habits(upload_max=110 * MINUTE), slow=0.1),
    Scenario("late commit", Habits(lag_max=6 * HOUR, intent=0.4)),
    Scenario("rollback", Habits(rollback=0.4)),
    Scenario("written again", Habits(again=0.5, lag_max=HOUR, upload_max=2 * HOUR), slow=0.2),
    Scenario("undelete", Habits(remove=0.5)),
    Scenario("database empty", workspaces=12, missing=1.0),
    Scenario("database half", workspaces=12, missing=0.5),
    Scenario("database minus a tenth", workspaces=20, missing=0.1),
    Scenario("replica lag", MIXED, lag=30 * MINUTE),
    Scenario("clocks are set", MIXED, steps=True),
    Scenario("pauses and deaths", MIXED, pauses=True, slow=0.1),
    Scenario("sightings lost", MIXED, lost=True),
    Scenario("two collectors", MIXED, collectors=2, slow=0.1),
)


@dataclass(frozen=True, slots=True)
class OrphanBug:
    """A guard that is taken away; none, by default. `plant` takes it away and gives what puts it back. `law` is what is
    broken without it: a collector that only fails at every step breaks another one."""

    name: str = "none"
    law: str = ""
    plant: Callable[[], Callable[[], None]] | None = None
    root: Root = ROOT_OF_ALL
    scenario: str = ""  # where it matters most; empty: everywhere


NO_BUG = OrphanBug()


@dataclass(frozen=True, slots=True)
class Story:
    """How it ended."""

    seed: int
    scenario: str
    broken: tuple[str, ...]
    looks: int
    left: int  # how often a unit left its key


class _Inline(ThreadPoolExecutor):
    """Runs at once what should run in a thread: a story has one order."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


def scenario_of(seed: int) -> Scenario:
    """What happens in the story of this seed."""
    return SCENARIOS[seed % len(SCENARIOS)]


def tell(seed: int, bug: OrphanBug = NO_BUG) -> Story:
    """One story from its beginning to its end."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="wro-", dir=memory if memory.is_dir() else None))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        if bug.plant is not None:
            stack.callback(bug.plant())
        return run_virtual(_World(seed, bug, scenario_of(seed), place).run())


class _World:
    def __init__(self, seed: int, bug: OrphanBug, scenario: Scenario, place: Path) -> None:
        self._seed = seed
        self._rng = random.Random(f"{seed} {scenario.name}")
        self._root = bug.root
        self._is = scenario
        self._place = place
        self._truth = Truth()
        self._faults = Faults()
        self._looks = 0
        self._every = self._rng.choice((0.5, 1.0, 1.5, 4.0)) * HOUR

    async def run(self) -> Story:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(_Inline(1))
        self._host, self._store, self._base, self._own = (VirtualClock() for _ in range(4))
        self._objects = MemoryObjects(self._store)
        self._db = Database(self._base)
        self._sightings = MemorySightings(self._own)
        self._journal = MemoryJournal(self._host)
        for key in FOREIGN:
            await self._objects.create(key, b"not ours")
        async with asyncio.TaskGroup() as group:
            for number in range(self._is.workspaces):
                rng = random.Random(self._rng.random())
                app = Application(f"ws{number}", self._db, self._objects, self._truth, rng, self._is.habits)
                group.create_task(app.live(STORM))
            group.create_task(self._trouble())
            for _ in range(self._is.collectors):
                group.create_task(self._collect())
        await self._calm()
        return Story(self._seed, self._is.name, tuple(self._truth.broken), self._looks, self._truth.left)

    async def _collect(self) -> None:
        """A process with its engine, again and again; some die."""
        every = self._every
        await asyncio.sleep(self._rng.uniform(0, every))
        scanner, line, witness = self._process()
        while self._loop.time() < STORM:
            await self._approve()
            witness.free.clear()
            if self._is.pauses and self._rng.random() < 0.3:
                line.calls_left = self._rng.randrange(1, 60)
            try:
                await self._look(scanner)
            except* Died:
                scanner, line, witness = self._process()
            pause = self._rng.uniform(2, 8) * HOUR if self._is.pauses and self._rng.random() < 0.1 else 0.0
            await asyncio.sleep(every * self._rng.uniform(0.95, 1.05) + pause)
            await self._check_losses()

    def _process(self) -> tuple[Scanner, Line, Witness]:
        line = Line(random.Random(self._rng.random()), self._is.slow)
        witness = Witness(self._truth)
        ports = Ports(
            SlowObjects(self._objects, line, witness, self._db),
            WorldCatalog(self._db, line, witness, self._faults),
            SlowSightings(self._sightings, line, self._truth),
            self._place,
            self._host,
        )
        return Scanner(self._root, ports), line, witness

    async def _look(self, scanner: Scanner) -> Report:
        self._looks += 1
        return await run_once(
            OrphanObjects(scanner, 5),
            RunContext(self._journal, self._host, Ids(self._host)),
            name=f"orphan_objects@{self._root.name}",
            budget=RunBudget(10_000, timedelta(hours=6)),
            guards=scanner.guards,
        )

    async def _approve(self, *, allow: bool = False) -> None:
        """Somebody arms the root, and in the calm, where everything is well again, overrules its doubts."""
        standing = await self._sightings.standing(self._root.name)
        approval = read_approval(standing.value)
        said = replace_approval(approval, self._root.digest, allow=allow)
        if said != approval:
            await self._sightings.write(self._root.name, write_approval(said), at=standing.version)

    async def _trouble(self) -> None:
        """What goes wrong around the application, at some moment."""
        await asyncio.sleep(self._rng.uniform(4, 20) * HOUR)
        what = self._is
        if what.steps:
            clock = self._rng.choice((self._host, self._base, self._own, self._own))
            clock.step(timedelta(hours=self._rng.choice((-24, -1, 1, 24))))
        if what.lost:
            self._sightings.__init__(self._own)  # type: ignore[misc]
            self._truth.noted.clear()
        if what.lag:
            self._faults.lag = what.lag
        if what.missing is not None:
            ids = sorted(self._db.rows)
            gone = self._rng.sample(ids, max(1, round(what.missing * len(ids))))
            self._faults.missing, self._truth.wrong = frozenset(gone), what.missing >= 0.5
            await asyncio.sleep(self._rng.uniform(1, 6) * HOUR)
            self._faults.missing, self._truth.wrong = frozenset(), False

    async def _calm(self) -> None:
        """Nobody writes any more and nothing is wrong: what is needed is back soon, and all else is gone after the
        quarantine."""
        self._faults.lag = 0.0
        self._is = replace(self._is, slow=0.0)
        scanner, _, witness = self._process()
        # Twice: what was written again while its predecessor was in quarantine has its own time after that.
        looks = [self._every] * CALM_LOOKS
        for wait in (*looks, *[CALM_BREAK, *looks] * 2):
            if wait == CALM_BREAK:
                await self._check_losses(back=not self._is.lost)
            await asyncio.sleep(wait)
            await self._approve(allow=True)
            witness.free.clear()
            await self._look(scanner)
        await self._check_rest()

    async def _check_rest(self) -> None:
        """Nothing is there but what is needed, and what is not ours."""
        keys = [info.key for info in await self._objects.page("", None, 100_000)]
        for key in FOREIGN:
            if key not in keys:
                self._truth.break_law("foreign", f"{key} is gone", self._loop.time())
        rows = [each for row in self._db.rows.values() if row.deleted_at is None for each in row.references()]
        kept = {unit_of(each.key) for each in rows}
        for key in keys:
            trash = key.startswith(TRASH) and not self._is.lost
            if trash or (key.startswith(ROOT) and key not in FOREIGN and unit_of(key) not in kept):
                self._truth.break_law("liveness", f"{key} is still there", self._loop.time())

    async def _check_losses(self, *, back: bool = False) -> None:
        """The bytes of every reference are somewhere; with `back`, they are where they belong."""
        infos = await self._objects.page("", None, 100_000)
        trashed: dict[str, list[str]] = {}
        there = {info.key for info in infos}
        for key in there:
            if key.startswith(TRASH):
                trashed.setdefault(key.split("/", 3)[3], []).append(key)  # .trash/<root>/<round>/<key>
        for unit in sorted(self._db.needed()):
            for key in (f"{unit}{file}" for file in FILES):
                if key not in self._truth.written or unit in self._truth.uploading:
                    continue
                wanted = self._truth.written[key][1]
                places = [key] if back else [key, *trashed.get(key, ())]
                if wanted not in [await content(self._objects, each) for each in places]:
                    self._truth.break_law("not back" if back else "loss", key, self._loop.time())
            if f"{unit}{FILES[1]}" in there and f"{unit}{FILES[0]}" not in there and unit not in self._truth.uploading:
                self._truth.break_law("torn", f"{unit} has a {MARKER} and no data", self._loop.time())


def replace_approval(approval: Any, digest: str, *, allow: bool) -> Any:
    """The approval of somebody who arms, and who may overrule."""
    allowed = approval.refused if allow else approval.allowed
    return type(approval)(digest, approval.refused, approval.why, approval.due, allowed)
