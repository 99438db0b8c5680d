"""Tasks whose records lie behind a network that loses replies, and workers that give up in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from conformance.queue_client import QueueClient, fresh
from faults import LOST_REPLY, LOST_REQUEST, Network, Script
from unit.jobs.stream_tasks.scene import MAIL, STEP, Apart, TaskWorld
from wrasse.errors import StoreUnavailable
from wrasse.ports.groups import Answer, Groups
from wrasse.ports.jobs import Claim, Claimed, Complete, Delete, Job, JobState
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Records, Written

both = pytest.mark.parametrize("apart", [False, True], ids=["one database", "apart"])
faults = pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST], ids=["reply", "request"])


async def claim_jobs(client: QueueClient, request: str) -> Claimed:
    return await client.jobs.claim([MAIL], 10, worker="w1", heartbeat_timeout=STEP, request=request)


@both
@faults
async def test_a_put_cut_short_is_completed_by_asking_again(apart: bool, fault: object) -> None:
    world = TaskWorld(apart=apart)
    jobs = world.another(network=Network(Script({1: fault}, only="create")))
    batch = [Job("a"), Job("b"), Job("c")]
    with pytest.raises(StoreUnavailable):
        await jobs.enqueue(batch, request="r")

    again = await jobs.enqueue(batch, request="r")

    assert [put.new for put in again] == [True, True, True]
    assert sorted(claimed.job.id for claimed in await world.client.claim()) == ["a", "b", "c"]


@both
@faults
async def test_a_take_cut_short_is_completed_by_asking_again(apart: bool, fault: object) -> None:
    world = TaskWorld(apart=apart)
    await world.client.enqueue("a")
    client = QueueClient(world.another(network=Network(Script({0: fault}, only="put"))))
    request = fresh()
    with pytest.raises(StoreUnavailable):
        await claim_jobs(client, request)

    again = await claim_jobs(client, request)

    assert ([each.job.id for each in again.jobs], (await world.client.info("a")).attempts) == (["a"], 1)
    assert await client.complete(again.jobs[0].claim) == [Outcome.DONE]


@both
@faults
async def test_a_finish_cut_short_is_completed_by_asking_again_and_told_once(apart: bool, fault: object) -> None:
    world = TaskWorld(apart=apart)
    claim = await world.client.claimed("a")
    jobs = world.another(network=Network(Script({0: fault}, only="put")))
    with pytest.raises(StoreUnavailable):
        await jobs.settle([Complete(claim, enqueues=(Job("next"),))], request="s")

    again = await jobs.settle([Complete(claim, enqueues=(Job("next"),))], request="s")
    await world.swept()

    assert (list(again), await world.client.state("next")) == ([Outcome.DONE], JobState.READY)
    assert len(await world.ended()) == 1


async def test_a_taker_that_gives_up_while_it_claims_gives_the_task_back() -> None:
    world = TaskWorld()
    await world.client.enqueue("a")
    claiming = asyncio.Event()

    class Slow(Network):
        async def call(self, name: str, act: object) -> object:
            if name == "put":
                claiming.set()
                await asyncio.sleep(0.05)
            return await act()  # type: ignore[operator]

    client = QueueClient(world.another(network=Slow(Script({}))))
    taker = asyncio.create_task(claim_jobs(client, fresh()))
    await asyncio.wait_for(claiming.wait(), 10)
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker

    (claimed,) = await world.client.claim()
    assert (claimed.attempt, claimed.claim != Claim("a", 0, "")) == (1, True)


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
    await world.client.enqueue("a")
    groups = Deaf(world.memory.groups)
    taking = asyncio.ensure_future(claim_jobs(QueueClient(world.another(groups=groups)), fresh()))
    await groups.asked.wait()

    taking.cancel()
    await asyncio.sleep(0)
    groups.gone.set()

    with pytest.raises(asyncio.CancelledError):
        await taking


class DoubtfulWorld(TaskWorld):
    """Tasks whose records cannot tell what became of one write: it was made, or not, or made and
    followed by another program's."""

    doubts = ""

    def _records(self, collection: Collection) -> Records:
        world, found = self, super()._records(collection)

        class Doubtful(Apart):
            emits = found.emits

            async def put(self, key: str, value: bytes, **rest: object) -> Written:
                doubts, world.doubts = world.doubts, ""
                if doubts == "not made":
                    return Written(Outcome.UNKNOWN, None, world.clock.now())
                written = await found.put(key, value, **rest)  # type: ignore[arg-type]
                if doubts == "followed":
                    await found.put(key, value.replace(b'"pending"', b'"blocked"'), at=str(written.version))
                return Written(Outcome.UNKNOWN, None, written.at) if doubts else written

        return Doubtful(found)  # type: ignore[return-value]


@both
@pytest.mark.parametrize(
    ("doubts", "outcome"), [("made", Outcome.DONE), ("not made", Outcome.DONE), ("followed", Outcome.UNKNOWN)]
)
async def test_a_move_of_which_the_backend_cannot_tell_is_never_called_lost(
    apart: bool, doubts: str, outcome: Outcome
) -> None:
    world = DoubtfulWorld(apart=apart)
    claim = await world.client.claimed("a")
    world.clock.advance(timedelta(hours=1))
    world.doubts = doubts

    moved = await world.client.rescue(claim)

    assert moved == [outcome]
    assert (await world.client.info("a")).rescues == 1


async def test_a_delete_of_which_the_backend_cannot_tell_is_never_called_lost() -> None:
    world = TaskWorld()
    await world.client.complete(await world.client.claimed("a"))
    claim = (await world.client.info("a")).claim

    class Doubtful(Apart):
        emits = True

        async def delete(self, key: str, **rest: object) -> Written:
            written: Written = await self._records.delete(key, **rest)  # type: ignore[arg-type]
            return Written(Outcome.UNKNOWN, None, written.at)

    world.jobs._store._records = Doubtful(world.jobs._store._records)  # type: ignore[assignment,arg-type]
    assert await world.jobs.delete([Delete(claim, JobState.DONE)]) == [Outcome.UNKNOWN]
