"""Listings and numbers of tasks where records stand on no shelves: read, and never more than so many at a time."""

from __future__ import annotations

from unit.jobs.stream_tasks.scene import MAIL, STEP, TaskWorld
from wrasse.jobs.stream_tasks.views import ScannedTasks
from wrasse.ports.jobs import Job, JobFilter, JobState

OTHER = "low-2"  # after MAIL as a name, and before it as the beginning of a key
EVERYTHING = JobFilter()


def scanned(world: TaskWorld, scan_max: int) -> ScannedTasks:
    jobs = world.jobs
    return ScannedTasks(jobs._store, jobs.search, [MAIL, OTHER], world.clock, scan_max)


async def filled(count: int) -> TaskWorld:
    world = TaskWorld(types=(MAIL, OTHER))
    for n in range(count):  # newest id first, so that the order of ids is not that of turns
        await world.client.enqueue(Job(f"task_{99 - n}", queue=(MAIL, OTHER)[n % 2]))
    return world


async def listed(views: ScannedTasks, limit: int) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while True:
        page = await views.page(JobState.READY, EVERYTHING, after, limit, newest=False)
        found += [info.id for info in page]
        after = page.cursor
        if after is None:
            return found


async def test_few_tasks_are_listed_by_turn_and_counted_at_once() -> None:
    views = scanned(await filled(10), scan_max=10)
    (mail, other), _ = await views.counts()
    assert (await listed(views, 3), mail.ready, other.ready) == ([f"task_{99 - n}" for n in range(10)], 5, 5)


async def test_many_tasks_are_listed_each_once_by_id() -> None:
    views = scanned(await filled(20), scan_max=10)
    ids = await listed(views, 3)
    assert ids == [*(f"task_{n}" for n in range(80, 100, 2)), *(f"task_{n}" for n in range(81, 100, 2))]


async def test_of_many_tasks_each_counting_reads_a_part_and_tells_the_last_whole_round() -> None:
    world = await filled(10)
    views = scanned(world, scan_max=2)

    told = []
    for n in range(7):
        if n == 3:
            await world.client.claim(limit=1)
        world.jobs._store.changes += 1  # else numbers that were just counted are told again
        told.append((await views.counts())[0][0])

    ready = [count.ready for count in told]
    assert ready[:4] == [2, 4, 5, 5]
    assert (ready[-1], told[-1].running) == (4, 1)


async def test_a_listing_that_began_by_id_goes_on_by_id_when_few_are_left() -> None:
    world = await filled(20)
    begun = await scanned(world, scan_max=10).page(JobState.READY, EVERYTHING, None, 3, newest=False)
    gone_on = await scanned(world, scan_max=100).page(JobState.READY, EVERYTHING, begun.cursor, 3, newest=False)
    assert [info.id for info in gone_on] == ["task_86", "task_88", "task_90"]


async def test_a_record_that_was_written_before_there_were_shelves_stands_on_one_after_a_round() -> None:
    world = TaskWorld()
    await world.write("task_1", {"state": "completed", "updated_at": "1750000000000"})
    before = await world.client.count()

    await world.jobs.strays.scan(None, 100, heartbeat_timeout=STEP, dry=False)

    assert (before.done, (await world.client.count()).done, await world.client.ids(JobState.DONE)) == (0, 1, ["task_1"])
