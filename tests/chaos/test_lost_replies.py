"""A change whose answer was lost has been made once, and asking again tells so; nothing is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize

from chaos.lossy import AskedAgain, LossyStore
from conformance.desk import LONGER, Desk, fresh
from conformance.test_jobs_model import JobQueueMachine
from wrasse.backends.redis.scripts import load
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Budget, Cancel, DeadLetterJob, Delete, Job, JobState, Move, Reason, Requeue, RequeueDead
from wrasse.ports.outcome import Outcome


@pytest.fixture
def desk(store: LossyStore) -> Desk:
    return Desk(store.jobs)


async def everywhere(desk: Desk) -> list[tuple[str, JobState]]:
    """Every job there is, once for each place it is in."""
    return [(id, state) for state in JobState for id in await desk.ids(state)]


async def overdue(desk: Desk, store: LossyStore) -> Requeue:
    claim = await desk.held("a")
    await store.pass_time(LONGER)
    return Requeue(claim, Budget.RESCUES, Reason.WORKER_DIED)


async def overdue_too_often(desk: Desk, store: LossyStore) -> DeadLetterJob:
    return DeadLetterJob((await overdue(desk, store)).claim, Reason.WORKER_DIED, spends=Budget.RESCUES)


async def held(desk: Desk, store: LossyStore) -> Cancel:
    await desk.held("a")
    return Cancel("a")


async def waiting(desk: Desk, store: LossyStore) -> Cancel:
    await desk.enqueue("a")
    return Cancel("a")


async def dead(desk: Desk, store: LossyStore) -> RequeueDead:
    await desk.bury(await desk.held("a"))
    return RequeueDead((await desk.state("a")).claim)


@pytest.mark.parametrize(
    ("facts", "state", "rescues"),
    [
        (overdue, JobState.READY, 1),
        (overdue_too_often, JobState.DEAD, 1),
        (held, JobState.DEAD, 0),
        (waiting, JobState.DEAD, 0),
        (dead, JobState.READY, 0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_move_whose_answer_was_lost_is_made_once(
    desk: Desk, store: LossyStore, facts: object, state: JobState, rescues: int
) -> None:
    assert callable(facts)
    move: Move = await facts(desk, store)
    (line,) = store.lines
    line.words.add(load("move").sha.encode())
    with pytest.raises(StoreUnavailable):
        await desk.move(move)
    again = await desk.move(move)
    assert (again, await everywhere(desk)) == ([Outcome.CONFLICT], [("a", state)])
    assert ((await desk.state("a")).rescues, (await desk.count()).running) == (rescues, 0)


async def test_a_delete_whose_answer_was_lost_is_made_once(desk: Desk, store: LossyStore) -> None:
    await desk.finish(await desk.held("a"))
    delete = Delete((await desk.state("a")).claim, JobState.DONE)
    (line,) = store.lines
    line.words.add(load("delete").sha.encode())
    with pytest.raises(StoreUnavailable):
        await desk.jobs.delete([delete])
    assert (await desk.jobs.delete([delete]), await everywhere(desk)) == ((Outcome.CONFLICT,), [])
    assert (await desk.count()).done == 0


async def test_a_beat_whose_answer_was_lost_keeps_the_job(desk: Desk, store: LossyStore) -> None:
    claim = await desk.held("a")
    await store.pass_time(LONGER / 2)
    (line,) = store.lines
    line.words.add(load("heartbeat").sha.encode())
    with pytest.raises(StoreUnavailable):
        await desk.heartbeat(claim)
    await store.pass_time(LONGER / 2)
    assert list(await desk.jobs.overdue(None, 10)) == []


async def test_jobs_without_a_look_are_put_once(desk: Desk, store: LossyStore) -> None:
    """Their ids were made for the put, so that nothing but the request id tells that it was carried out."""
    jobs = [Job(f"{number}", minted=True) for number in range(3)]
    puts = await desk.jobs.enqueue(jobs, request=fresh())
    (line,) = store.lines
    assert (line.replies_dropped, [put.new for put in puts]) == (1, [True] * 3)
    assert [id for id, _ in await everywhere(desk)] == ["0", "1", "2"]


async def test_every_answer_is_lost_at_first(desk: Desk, store: LossyStore) -> None:
    assert isinstance(store.jobs, AskedAgain)
    await desk.enqueue("a")
    (outcome,) = await desk.finish(await desk.take_one())
    (line,) = store.lines
    assert (line.replies_dropped, outcome) == (3, Outcome.DONE)


class LossyMachine(JobQueueMachine):
    """The model of the conformance suite, with every first answer lost."""

    @initialize()
    def open(self) -> None:
        self.store = LossyStore(Path(self._place.name))
        self.run(self.store.open())


class TestTheModelHoldsWhereAnswersAreLost(LossyMachine.TestCase):
    settings = settings(max_examples=6, stateful_step_count=30)
