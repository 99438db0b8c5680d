"""Answers on their way to the backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from faults import LOST_REPLY, LOST_REQUEST, Fault, Network, Script
from stream_faults import FaultyGroups
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.groups import Ack, Answer, DeadLetter, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import Draft, EntryId
from wrasse.streams.consumer import Outbox

PATIENCE = 20


class Scene:
    """A group with ten entries handed out, and an outbox to it."""

    def __init__(self) -> None:
        self.memory = Memory(ManualClock())
        self.script = Script({}, only="answer")
        self.groups = FaultyGroups(self.memory.groups, Network(self.script))
        self.outbox = Outbox(self.groups)
        self.ids: Sequence[EntryId] = ()

    async def open(self) -> None:
        self.ids = await self.memory.streams.append([Draft("s", b"%d" % n) for n in range(10)])
        await self.memory.groups.join("s", "g", StartAt(first=True))
        await self.memory.groups.deliver(["s"], "g", "c", 10, ack_timeout=PATIENCE * _SECOND)

    def ack(self, place: int) -> Answer:
        return Ack("s", "g", self.ids[place])

    async def pending(self) -> int:
        state = await self.memory.streams.info("s")
        assert state is not None
        return state.groups[0].pending


_SECOND = timedelta(seconds=1)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.open()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.outbox.run())
        yield scene
        running.cancel()


async def test_answers_that_are_ready_together_go_in_one_call(scene: Scene) -> None:
    answers = [scene.outbox.put(scene.ack(n)) for n in range(10)]
    assert await asyncio.gather(*answers) == [Outcome.DONE] * 10
    assert scene.script.calls == ["answer"]


async def test_whoever_hands_in_an_answer_is_told_its_own_outcome(scene: Scene) -> None:
    answers = [scene.outbox.put(answer) for answer in (scene.ack(0), Ack("s", "g", EntryId(9, 9)), scene.ack(1))]
    assert await asyncio.gather(*answers) == [Outcome.DONE, Outcome.CONFLICT, Outcome.DONE]


@pytest.mark.parametrize("fault", [LOST_REQUEST, LOST_REPLY], ids=["request", "reply"])
async def test_whoever_could_not_be_heard_is_told_and_may_try_again(scene: Scene, fault) -> None:
    scene.script.faults = {0: fault}
    first = [scene.outbox.put(scene.ack(n)) for n in range(2)]
    told = await asyncio.gather(*first, return_exceptions=True)
    assert [type(each) for each in told] == [StoreUnavailable] * 2
    await asyncio.gather(*(scene.outbox.put(scene.ack(n)) for n in range(2)))
    assert await scene.pending() == 8


async def test_one_answer_that_is_refused_does_not_spoil_the_others(scene: Scene) -> None:
    letter = DeadLetter("s", "g", scene.ids[1], Draft("no subject", b""))
    answers = [scene.outbox.put(answer) for answer in (scene.ack(0), letter, scene.ack(2))]
    told = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(each) for each in told] == [Outcome, UsageError, Outcome]
    assert await scene.pending() == 8


async def test_an_outbox_says_when_it_is_empty(scene: Scene) -> None:
    assert await scene.outbox.empty(0)
    scene.script.faults = {0: Fault(slow_reply=0.5)}
    scene.outbox.put(scene.ack(0))
    assert not await scene.outbox.empty(0.01)
    assert await scene.outbox.empty(PATIENCE)
    assert await scene.pending() == 9


async def test_what_was_cut_off_is_sent_by_a_flush() -> None:
    scene = Scene()
    await scene.open()
    async with asyncio.TaskGroup() as tasks:
        scene.script.faults = {0: Fault(slow_reply=3_600)}
        running = tasks.create_task(scene.outbox.run())
        futures = [scene.outbox.put(scene.ack(n)) for n in range(3)]
        while not scene.script.calls:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting = scene.outbox.put(scene.ack(3))
        running.cancel()
    await scene.outbox.flush()
    # The first call was made, and its reply is lost with whoever waited for it.
    assert await asyncio.gather(*futures, waiting) == [*[Outcome.CONFLICT] * 3, Outcome.DONE]
    assert await scene.pending() == 6


async def test_whoever_went_away_is_not_told(scene: Scene) -> None:
    gone, here = scene.outbox.put(scene.ack(0)), scene.outbox.put(scene.ack(1))
    gone.cancel()
    assert await here is Outcome.DONE
