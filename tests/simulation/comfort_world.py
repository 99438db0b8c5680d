"""The world of `world.py`, with everything people expect of a job queue in use, and processes that put periodic jobs.

Those die like all others; once they are all gone for a while, so that slots are missed.
"""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta

from faults import FaultyJobs, FaultyRecords
from simulation.actors import QUEUES, Nature, SimulatedWorker
from simulation.comfort_actors import ComfortProducer
from simulation.comfort_bugs import ComfortBug
from simulation.comfort_laws import PLANS, SLOW, ComfortJobs, Comforts, ComfortShelves, MarkRecords
from simulation.world import DEAD_KEPT, DONE_KEPT, WORKERS, Process, Story, World, story_of
from virtual_time import START, run_virtual
from wrasse.jobs.periodic import Periodic
from wrasse.jobs.producer import Producer
from wrasse.jobs.scheduler import PERIODIC
from wrasse.ports.jobs import Delete, JobFilter, JobState

REPEATERS = 2
ACTS = 10
DONE_MAX = 6  # so few that finished jobs are trimmed all the time
SETTLED = timedelta(seconds=60)  # from a slot to its job, when nothing is wrong
LAST_LOOK = 220.0  # seconds of calm in which a slot of every periodic job comes


class ComfortWorld(World):
    """Everything there is."""

    def __init__(self, seed: int, bug: ComfortBug) -> None:
        super().__init__(seed, bug)
        self.comfort_bug = bug
        self.queue = bug.jobs(self.clock, done_max=DONE_MAX)
        self.comforts = Comforts(self.ledger, self.clock)
        status_index = ComfortShelves(self.ledger, self.clock, self.comforts)
        status_index.kept = {JobState.DONE: DONE_KEPT, JobState.DEAD: DEAD_KEPT}.__getitem__
        self.jobs = ComfortJobs(self.queue, self.ledger, status_index)
        self.marks = MarkRecords(self.store.records(PERIODIC), self.comforts)
        self.repeaters: list[Process] = []
        self.may_repeat = asyncio.Event()
        self.may_repeat.set()
        self.back_at: datetime | None = None  # when repeaters came back after all were gone
        self.troubled_at: list[datetime] = []

    @property
    def true(self) -> datetime:
        """What a clock would show that is always right."""
        return START + timedelta(seconds=self.now)

    def worker(self, process: Process) -> SimulatedWorker:
        jobs, draw = FaultyJobs(self.jobs, process.network), random.Random(self.draw.random())
        queues = (*QUEUES, SLOW.queue)
        return SimulatedWorker(process.name, jobs, draw, process.die, queues=queues, rates=(SLOW,))

    async def repeat(self) -> None:
        """One of those who put periodic jobs: restarted whenever it dies, while any may."""
        while True:
            await self.may_repeat.wait()
            process = self.process("repeater")
            self.repeaters.append(process)
            periodic = [
                Periodic(name, plan.schedule, payload=Nature(takes=1).encode(), missed=plan.missed)
                for name, plan in PLANS.items()
            ]
            repeater = self.comfort_bug.repeater(
                [self.comfort_bug.meant(each) for each in periodic],
                Producer(FaultyJobs(self.jobs, process.network), process.clock),
                FaultyRecords(self.marks, process.network),
                process.clock,
            )
            error = await process.live(repeater.run)
            self.repeaters.remove(process)
            self.ledger.require(error is None, f"a repeater failed: {error!r}", process.name)
            await asyncio.sleep(self.draw.uniform(0.2, 5))

    async def shake_repeaters(self) -> None:
        """Kills them now and then, and once all of them for a while."""
        await asyncio.sleep(self.draw.uniform(5, 60))
        for _ in range(self.draw.randint(1, 6)):
            if self.repeaters:
                self.draw.choice(self.repeaters).die()
            await asyncio.sleep(self.draw.uniform(0.5, 12))
        await asyncio.sleep(self.draw.uniform(0, 90))
        self.may_repeat.clear()
        for process in list(self.repeaters):
            process.die()
        await asyncio.sleep(self.draw.uniform(40, 200))
        self.may_repeat.set()
        self.back_at = self.true

    async def read_results(self) -> None:
        """Somebody who asks for results, sometimes just before they may go, and somebody who purges done jobs."""
        while True:
            await asyncio.sleep(self.draw.uniform(1, 6))
            if self.comforts.kept:
                await self.jobs.get(self.draw.choice(list(self.comforts.kept)))
            done = await self.jobs.page(JobState.DONE, JobFilter(), None, 20, newest=True)
            old = [each for each in done if each.finished_at and done.at - each.finished_at >= DONE_KEPT]
            if old:
                await self.jobs.delete([Delete(self.draw.choice(old).claim, JobState.DONE)])

    def _set_down(self, down: bool) -> None:
        super()._set_down(down)
        self.troubled_at.append(self.true)

    # Promises about the whole

    def check_slots(self, calm_at: datetime) -> None:
        """No slot of the calm is missing, and the newest one that was missed ran if it is to run once."""
        for name, plan in PLANS.items():
            slot = plan.schedule.next_after(max(calm_at, self.comforts.begun.get(name, calm_at)))
            while slot <= self.true - SETTLED:
                self.ledger.require(self.comforts.was_put(name, slot), f"no job came for {slot}", name)
                slot = plan.schedule.next_after(slot)
        missed = self._missed("once")
        if missed is not None:
            self.ledger.require(self.comforts.was_put("once", missed), f"missed, and {missed} never ran", "once")

    def _missed(self, name: str) -> datetime | None:
        """The newest slot when repeaters came back, if they had time enough for it before the next."""
        if self.back_at is None or name not in self.comforts.begun:
            return None
        slot = schedule_before(name, self.back_at - timedelta(seconds=2))
        following = PLANS[name].schedule.next_after(slot)
        quiet = not any(self.back_at - timedelta(seconds=1) <= at <= following for at in self.troubled_at)
        calm = quiet and not self.down and following - self.back_at >= SETTLED
        return slot if calm and slot > self.comforts.begun[name] else None


def schedule_before(name: str, at: datetime) -> datetime:
    """The newest slot that is not later than `at`."""
    interval = PLANS[name].schedule.interval
    return PLANS[name].schedule.next_after(at) - interval


async def _tell(seed: int, bug: ComfortBug) -> Story:
    world = ComfortWorld(seed, bug)
    producers = [
        ComfortProducer(
            f"p{n}", FaultyJobs(world.jobs, world.process("producer").network), world.draw, world.comforts, ACTS
        )
        for n in range(2)
    ]
    actors = [asyncio.ensure_future(world.employ()) for _ in range(WORKERS)]
    actors += [asyncio.ensure_future(world.maintain()) for _ in range(2)]
    actors += [asyncio.ensure_future(world.repeat()) for _ in range(REPEATERS)]
    actors.append(asyncio.ensure_future(world.read_results()))
    ending = [asyncio.ensure_future(producer.run()) for producer in producers]
    ending.append(asyncio.ensure_future(world.shake_repeaters()))
    await world.storm()
    await asyncio.gather(*ending)
    calm_at = world.true
    rest_after = await world.come_to_rest()
    world.ledger.require(rest_after is not None, "it never came to rest", "the world")
    if not world.ledger.broken:
        await asyncio.sleep(LAST_LOOK)
    world.check_slots(calm_at)
    await _take_stock(world, producers)
    for actor in actors:
        actor.cancel()
    await asyncio.wait(actors)
    await world.close()
    return story_of(seed, world, rest_after)


async def _take_stock(world: ComfortWorld, producers: list[ComfortProducer]) -> None:
    """At the end: what was acknowledged is there or was, and every group whose members are finished has called back."""
    ledger = world.ledger
    there = set(await world.everything()) | ledger.deleted
    for producer in producers:
        for id in producer.acknowledged:
            ledger.require(id in there, "lost", id)
        for id in producer.opened:
            ledger.require(id in ledger.created, "all members are finished, and nobody was called back", id)


def tell(seed: int, bug: ComfortBug | None = None) -> Story:
    """The story of this seed. Engines and producers draw from the global random, so that is seeded too."""
    state = random.getstate()
    random.seed(seed)
    try:
        return run_virtual(_tell(seed, bug or ComfortBug()))
    finally:
        random.setstate(state)
