"""Tasks whose records lie behind a network that loses replies, and takers that give up in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from conformance.desk import Desk, fresh
from faults import LOST_REPLY, LOST_REQUEST, Network, Script
from unit.jobs.tasking import MAIL, STEP, TaskWorld
from wrasse.errors import StoreUnavailable
from wrasse.ports.groups import Answer, Groups
from wrasse.ports.jobs import Finish, Hold, Job, Place, Taken
from wrasse.ports.outcome import Outcome

both = pytest.mark.parametrize("apart", [False, True], ids=["one database", "apart"])
faults = pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST], ids=["reply", "request"])


async def take(desk: Desk, request: str) -> Taken:
    return await desk.jobs.take([MAIL], 10, worker="w1", silence=STEP, request=request)


@both
@faults
async def test_a_put_cut_short_is_completed_by_asking_again(apart: bool, fault: object) -> None:
    world = TaskWorld(apart=apart)
    jobs = world.another(network=Network(Script({1: fault}, only="create")))
    batch = [Job("a"), Job("b"), Job("c")]
    with pytest.raises(StoreUnavailable):
        await jobs.put(batch, request="r")

    again = await jobs.put(batch, request="r")

    assert [put.new for put in again] == [True, True, True]
    assert sorted(taken.job.id for taken in await world.desk.take()) == ["a", "b", "c"]


@both
@faults
async def test_a_take_cut_short_is_completed_by_asking_again(apart: bool, fault: object) -> None:
    world = TaskWorld(apart=apart)
    await world.desk.put("a")
    desk = Desk(world.another(network=Network(Script({0: fault}, only="put"))))
    request = fresh()
    with pytest.raises(StoreUnavailable):
        await take(desk, request)

    again = await take(desk, request)

    assert ([each.job.id for each in again.jobs], (await world.desk.state("a")).attempts) == (["a"], 1)
    assert await desk.finish(again.jobs[0].hold) == [Outcome.DONE]


@both
@faults
async def test_a_finish_cut_short_is_completed_by_asking_again_and_told_once(apart: bool, fault: object) -> None:
    world = TaskWorld(apart=apart)
    hold = await world.desk.held("a")
    jobs = world.another(network=Network(Script({0: fault}, only="put")))
    with pytest.raises(StoreUnavailable):
        await jobs.settle([Finish(hold, puts=(Job("next"),))], request="s")

    again = await jobs.settle([Finish(hold, puts=(Job("next"),))], request="s")
    await world.swept()

    assert (list(again), await world.desk.place("next")) == ([Outcome.DONE], Place.READY)
    assert len(await world.ended()) == 1


async def test_a_taker_that_gives_up_while_it_claims_gives_the_task_back() -> None:
    world = TaskWorld()
    await world.desk.put("a")
    claiming = asyncio.Event()

    class Slow(Network):
        async def call(self, name: str, act: object) -> object:
            if name == "put":
                claiming.set()
                await asyncio.sleep(0.05)
            return await act()  # type: ignore[operator]

    desk = Desk(world.another(network=Slow(Script({}))))
    taker = asyncio.create_task(take(desk, fresh()))
    await asyncio.wait_for(claiming.wait(), 10)
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker

    (taken,) = await world.desk.take()
    assert (taken.attempt, taken.hold != Hold("a", 0, "")) == (1, True)


class Deaf:
    """Groups whose server is gone when they want to answer."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.asked, self.gone = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._groups, name)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        self.asked.set()
        await self.gone.wait()
        raise StoreUnavailable("gone")


async def test_a_taker_that_gives_up_while_the_server_goes_away_ends_all_the_same() -> None:
    world = TaskWorld()
    await world.desk.put("a")
    groups = Deaf(world.memory.groups)
    taking = asyncio.ensure_future(take(Desk(world.another(groups=groups)), fresh()))
    await groups.asked.wait()

    taking.cancel()
    await asyncio.sleep(0)
    groups.gone.set()

    with pytest.raises(asyncio.CancelledError):
        await taking
