"""A world in virtual time: one store, its network, a fleet of workers, producers, and two engines with real sweeps.

First a storm: processes crash and stall around the thresholds, replies get lost, requests arrive late, the store goes
away and comes back, most of the fleet is cut off, clocks are set. Then calm, in which everything must come to rest.
The story is fixed by its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from faults import FaultyHeart, FaultyJobs, FaultyJournal, FaultyRecords, Network, Seeded, arrived_late
from simulation.actors import HEARTBEAT_TIMEOUT, SimulatedProducer, SimulatedWorker
from simulation.laws import LawfulJobs, LawfulJournal, Ledger, WatchedShelves
from simulation.planted import Bug
from virtual_time import VirtualClock, run_virtual
from wrasse.backends.memory.connect import Memory
from wrasse.engine.guard import BackendRestarted, MassDeath, backend_guards
from wrasse.engine.loop import ENGINE_LEASES, Engine
from wrasse.engine.run import RunContext
from wrasse.engine.turn import ENGINE_STATE, Scheduled, SweepBackend, load
from wrasse.ids import Ids
from wrasse.leases.manager import LeaseManager
from wrasse.ports.jobs import Cancel, JobFilter, JobInfo, JobState, RequeueDead
from wrasse.sweeps.finished_jobs import FinishedJobs
from wrasse.sweeps.stuck_jobs import StuckJobs

STORM = 240.0  # seconds
REST_MAX = 1_800.0  # after the last fault; poison jobs take four silences and the guards' holds each
WORKERS = 8
CUT_OFF = 7
DONE_KEPT, DEAD_KEPT = timedelta(seconds=60), timedelta(seconds=40)
# What sweeps change arrives late so often because that is where the preconditions must hold.
LATE = {"move": 0.1, "delete": 0.2}
AROUND_SILENCE = (15.0, 45.0)  # seconds
# From a guard's look at the store to the batch it let go on: four calls of at most a second each.
LOOK_AND_ACT = 4.0


@dataclass(frozen=True, slots=True)
class Story:
    """How it went."""

    seed: int
    broken: tuple[str, ...]
    trace: tuple[str, ...]
    rest_after: float | None
    rescues: int
    doubled: int  # jobs that were claimed more often than their endings explain; at least once is the promise


@dataclass(slots=True)
class Process:
    """Something that runs until it dies. `die` is what a handler that kills its worker calls."""

    name: str
    network: Network
    clock: VirtualClock
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def die(self) -> None:
        self.network.dead = True
        self.gone.set()

    async def live(self, run: Callable[[], Awaitable[None]]) -> BaseException | None:
        """Runs until it ends or dies; gives what it raised of itself."""
        body, gone = asyncio.ensure_future(run()), asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait([body, gone], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.die()  # the story is over
            raise
        finally:
            crashed = self.gone.is_set()
            gone.cancel()
            body.cancel()
            await asyncio.wait([body])
            error = None if body.cancelled() else body.exception()
        return None if crashed else error


class World:
    """Everything there is, and what happens to it."""

    def __init__(self, seed: int, bug: Bug) -> None:
        self.draw = random.Random(seed)
        self.harsh = self.draw.random()  # some networks are better than others
        self.bug = bug
        self.clock = VirtualClock()
        self.ledger = Ledger(self.clock)
        self.store = Memory(self.clock)
        self.queue = bug.jobs(self.clock)
        status_index = WatchedShelves(self.ledger, self.clock)
        status_index.kept = {JobState.DONE: DONE_KEPT, JobState.DEAD: DEAD_KEPT}.__getitem__
        self.jobs = LawfulJobs(self.queue, self.ledger, status_index)
        self.journal = LawfulJournal(self.store.journal, self.ledger)
        self.workers: dict[str, tuple[Process, SimulatedWorker]] = {}
        self.engines: list[Process] = []
        self.producers: list[SimulatedProducer] = []
        self.plans: list[Seeded] = []
        self.cut_off: frozenset[str] = frozenset()
        self.cut_at = self.clock.now()
        self.restarted_at = -1_000.0
        self.calm = False
        self._numbers = count(1)
        self.networks: list[Network] = []
        self.down = False
        self.ledger.watchers += [self._held_after_restart, self._held_while_cut_off]

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    # Processes

    def process(self, kind: str) -> Process:
        """A new process with a network and a clock of its own."""
        plan = Seeded(
            random.Random(self.draw.random()),
            lost_request=0.03 * self.harsh,
            lost_reply=0.03 * self.harsh,
            late=0.01 * self.harsh,
            late_of=LATE,
            late_max=60,
            delay_max=0.5,
            calm=self.calm,
        )
        self.plans.append(plan)
        drift, off = self.draw.uniform(-1e-4, 1e-4), timedelta(seconds=self.draw.uniform(-1, 1))
        process = Process(f"{kind}-{next(self._numbers)}", Network(plan), VirtualClock(off=off, drift=drift))
        process.network.down = self.down
        self.networks.append(process.network)
        return process

    async def employ(self) -> None:
        """One place in the fleet: whoever dies or stops is replaced by another."""
        while True:
            process = self.process("worker")
            worker = self.worker(process)
            self.workers[process.name] = process, worker
            error = await process.live(worker.run)
            del self.workers[process.name]
            self.ledger.require(error is None, f"a worker failed: {error!r}", process.name)
            await asyncio.sleep(self.draw.uniform(0.5, 15))

    def worker(self, process: Process) -> SimulatedWorker:
        """Who works in this process."""
        jobs = FaultyJobs(self.jobs, process.network)
        return SimulatedWorker(process.name, jobs, random.Random(self.draw.random()), process.die)

    async def maintain(self) -> None:
        """One of the engines: restarted whenever it dies."""
        while True:
            process = self.process("engine")
            self.engines.append(process)
            error = await process.live(self.engine(process).run)
            self.engines.remove(process)
            self.ledger.require(error is None, f"an engine failed: {error!r}", process.name)
            await asyncio.sleep(self.draw.uniform(0.5, 15))

    def engine(self, process: Process) -> Engine:
        """The real one, with the real sweeps, behind this process's network."""
        network, clock = process.network, process.clock
        jobs = FaultyJobs(self.jobs, network)
        guards = (
            *backend_guards(FaultyHeart(self.store, network), clock, HEARTBEAT_TIMEOUT),
            MassDeath(jobs, HEARTBEAT_TIMEOUT),
        )
        stuck = StuckJobs(jobs, heartbeat_timeout=HEARTBEAT_TIMEOUT)
        finished = FinishedJobs(jobs, done_kept=DONE_KEPT, dead_kept=DEAD_KEPT)
        return Engine(
            [
                Scheduled(stuck, timedelta(seconds=5), guards=self.bug.guards(guards)),
                Scheduled(finished, timedelta(seconds=15)),
            ],
            home=SweepBackend(
                LeaseManager(FaultyRecords(self.store.records(ENGINE_LEASES), network), clock),
                FaultyRecords(self.store.records(ENGINE_STATE), network),
            ),
            context=RunContext(FaultyJournal(self.journal, network), clock, Ids(clock)),
            owner=process.name,
        )

    # What the guards promise, seen from outside

    def _held_after_restart(self, job: JobInfo) -> str | None:
        since = self.now - self.restarted_at
        held = LOOK_AND_ACT < since < HEARTBEAT_TIMEOUT.total_seconds()
        return f"rescued {since:.0f} s after the store restarted" if held else None

    def _held_while_cut_off(self, job: JobInfo) -> str | None:
        process = self.workers.get(job.worker)
        # A job whose claim was answered into the void is nobody's, though its worker lives.
        if job.worker not in self.cut_off or process is None or not process[1].has(job.claim) or arrived_late.get():
            return None
        looked_at = self.clock.now() - timedelta(seconds=LOOK_AND_ACT)
        fleet = [row.deadline for row in self.queue._workers.values() if row.deadline > self.cut_at]
        silent = sum(until <= looked_at for until in fleet)
        held = silent >= 5 and silent > len(fleet) / 2
        return f"a living worker was robbed while {silent} of {len(fleet)} were cut off" if held else None

    # The storm

    async def storm(self) -> None:
        """One misfortune after another; those that concern everybody come one at a time."""
        everybody = [self.restart_store, self.cut_fleet, self.set_store_clock]
        everybody = self.draw.sample(everybody, self.draw.randint(0, 2))  # more, and guards would hold all the time
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._one_by_one(everybody))
            tasks.create_task(self._operate())
            while self.now < STORM:
                await asyncio.sleep(self.draw.uniform(2, 10))
                await self.draw.choices([self.stall, self.crash, self.stop, self.shake_engine], weights=[5, 2, 1, 1])[
                    0
                ]()

    async def _one_by_one(self, events: list[Callable[[], Awaitable[None]]]) -> None:
        for event in events:
            await asyncio.sleep(self.draw.uniform(20, 40))
            await event()

    async def stall(self) -> None:
        if self.workers and not self.cut_off:
            process, _ = self.draw.choice(list(self.workers.values()))
            process.network.stall(self.draw.uniform(*AROUND_SILENCE))

    async def crash(self) -> None:
        if self.workers and not self.cut_off:
            self.draw.choice(list(self.workers.values()))[0].die()

    async def stop(self) -> None:
        if self.workers and not self.cut_off:
            self.draw.choice(list(self.workers.values()))[1].stopping = True

    async def shake_engine(self) -> None:
        if not self.engines:
            return
        process = self.draw.choice(self.engines)
        match self.draw.randrange(3):
            case 0:
                process.die()
            case 1:
                process.network.stall(self.draw.uniform(*AROUND_SILENCE))
            case _:
                step = timedelta(seconds=self.draw.uniform(-60, 60))
                process.clock.step(step)
                asyncio.get_running_loop().call_later(self.draw.uniform(1, 15), process.clock.step, -step)

    async def _operate(self) -> None:
        """Somebody at a console: cancels jobs, and requeues those that have been dead for longest."""
        while self.now < STORM:
            await asyncio.sleep(self.draw.uniform(3, 10))
            dead = await self.jobs.page(JobState.DEAD, JobFilter(), None, 3)
            if dead.items and self.draw.random() < 0.7:
                await self.jobs.move([RequeueDead(self.draw.choice(dead.items).claim)])
            elif self.ledger.created:
                await self.jobs.move([Cancel(self.draw.choice(list(self.ledger.created)))])

    async def restart_store(self) -> None:
        self._set_down(True)
        await asyncio.sleep(self.draw.uniform(1, 45))
        self.store.restart()
        # Who never got to know the store before cannot know that it is another one now.
        if BackendRestarted.name in await self._memory() or BackendRestarted in self.bug.without:
            self.restarted_at = self.now
        self._set_down(False)

    async def _memory(self) -> Mapping[str, str]:
        """What the guards of stuck_jobs have told each other."""
        return (await load(self.store.records(ENGINE_STATE), StuckJobs.name)).state.memory

    def _set_down(self, down: bool) -> None:
        self.down = down
        for network in self.networks:
            network.down = down
            network.drop()

    async def cut_fleet(self) -> None:
        names = self.draw.sample(sorted(self.workers), min(CUT_OFF, len(self.workers)))
        self.cut_off, self.cut_at = frozenset(names), self.clock.now()
        networks = [self.workers[name][0].network for name in names]
        for network in networks:
            network.down = True
        await asyncio.sleep(self.draw.uniform(30, 60))
        for network in networks:
            network.down = False
        await asyncio.sleep(HEARTBEAT_TIMEOUT.total_seconds() / 2)  # in which every one of them is heard again
        self.cut_off = frozenset()

    async def set_store_clock(self) -> None:
        step = timedelta(seconds=self.draw.uniform(-60, 60))
        self.clock.step(step)
        await asyncio.sleep(self.draw.uniform(5, 30))
        self.clock.step(-step)

    # Calm

    async def come_to_rest(self) -> float | None:
        """How long until every job is done or dead; None if that does not happen in time."""
        self.calm = True
        for plan in self.plans:
            plan.calm = True
        for network in self.networks:
            network.wake()
        for process in list(self.engines):
            process.die()  # their clocks were set; those that follow have good ones
        begun = self.now
        while self.now - begun < REST_MAX and not self.ledger.broken:
            await asyncio.sleep(5)
            low = (await self.jobs.counts()).queues
            if not any(each.ready or each.scheduled or each.running for each in low):
                return self.now - begun
        return None

    async def everything(self) -> list[str]:
        """Every stored job, once for each state it is in."""
        found: list[str] = []
        for state in JobState:
            after: str | None = None
            while True:
                page = await self.jobs.page(state, JobFilter(), after, 500)
                found += [info.id for info in page]
                after = page.cursor
                if after is None:
                    break
        return found

    async def close(self) -> None:
        """Lets what is under way arrive."""
        for network in self.networks:
            await network.close()


async def _tell(seed: int, bug: Bug, jobs_each: int) -> Story:
    world = World(seed, bug)
    producers = [
        SimulatedProducer(f"p{n}", FaultyJobs(world.jobs, world.process("producer").network), world.draw, jobs_each)
        for n in range(2)
    ]
    actors = [asyncio.ensure_future(world.employ()) for _ in range(WORKERS)]
    actors += [asyncio.ensure_future(world.maintain()) for _ in range(2)]
    producing = [asyncio.ensure_future(producer.run()) for producer in producers]
    await world.storm()
    await asyncio.gather(*producing)
    rest_after = await world.come_to_rest()
    world.ledger.require(rest_after is not None, "it never came to rest", "the world")
    await _take_stock(world, producers)
    for actor in actors:
        actor.cancel()
    await asyncio.wait(actors)
    await world.close()
    return story_of(seed, world, rest_after)


async def _take_stock(world: World, producers: list[SimulatedProducer]) -> None:
    """At the end: every job is somewhere, once, and what was acknowledged was not lost."""
    ledger, found = world.ledger, await world.everything()
    ledger.require(len(found) == len(set(found)), "a job is in two places", "the world")
    there = set(found) | ledger.deleted
    for id in [*ledger.created, *(id for producer in producers for id in producer.acknowledged)]:
        ledger.require(id in there, "lost", id)


def story_of(seed: int, world: World, rest_after: float | None) -> Story:
    """What there is to tell."""
    ledger = world.ledger
    takes = sum(" take " in line for line in ledger.trace)
    ends = len(ledger.created) + sum(ledger.failures.values()) + sum(ledger.rescues.values())
    return Story(
        seed,
        tuple(ledger.broken),
        tuple(ledger.trace),
        rest_after,
        rescues=sum(ledger.rescues.values()),
        doubled=max(0, takes - ends),
    )


def tell(seed: int, bug: Bug | None = None, *, jobs_each: int = 20) -> Story:
    """The story of this seed. The engine draws its jitter from the global random, so that is seeded too."""
    state = random.getstate()
    random.seed(seed)
    try:
        return run_virtual(_tell(seed, bug or Bug(), jobs_each))
    finally:
        random.setstate(state)
