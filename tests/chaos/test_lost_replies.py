"""A change whose answer was lost has been made once, and asking again tells so; nothing is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize

from chaos.lossy import AskedAgain, LossyStore
from conformance.queue_client import LONGER, QueueClient, fresh
from conformance.test_jobs_model import JobQueueMachine
from wrasse.backends.redis.scripts import load
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Budget, Cancel, DeadLetterJob, Delete, Job, JobState, Move, Reason, Requeue, RequeueDead
from wrasse.ports.outcome import Outcome


@pytest.fixture
def client(store: LossyStore) -> QueueClient:
    return QueueClient(store.jobs)


async def everywhere(client: QueueClient) -> list[tuple[str, JobState]]:
    """Every job there is, once for each place it is in."""
    return [(id, state) for state in JobState for id in await client.ids(state)]


async def overdue(client: QueueClient, store: LossyStore) -> Requeue:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    return Requeue(claim, Budget.RESCUES, Reason.WORKER_DIED)


async def overdue_too_often(client: QueueClient, store: LossyStore) -> DeadLetterJob:
    return DeadLetterJob((await overdue(client, store)).claim, Reason.WORKER_DIED, spends=Budget.RESCUES)


async def held(client: QueueClient, store: LossyStore) -> Cancel:
    await client.claimed("a")
    return Cancel("a")


async def waiting(client: QueueClient, store: LossyStore) -> Cancel:
    await client.enqueue("a")
    return Cancel("a")


async def dead(client: QueueClient, store: LossyStore) -> RequeueDead:
    await client.dead_letter(await client.claimed("a"))
    return RequeueDead((await client.info("a")).claim)


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
    client: QueueClient, store: LossyStore, facts: object, state: JobState, rescues: int
) -> None:
    assert callable(facts)
    move: Move = await facts(client, store)
    (line,) = store.lines
    line.words.add(load("move").sha.encode())
    with pytest.raises(StoreUnavailable):
        await client.move(move)
    again = await client.move(move)
    assert (again, await everywhere(client)) == ([Outcome.CONFLICT], [("a", state)])
    assert ((await client.info("a")).rescues, (await client.count()).running) == (rescues, 0)


async def test_a_delete_whose_answer_was_lost_is_made_once(client: QueueClient, store: LossyStore) -> None:
    await client.complete(await client.claimed("a"))
    delete = Delete((await client.info("a")).claim, JobState.DONE)
    (line,) = store.lines
    line.words.add(load("delete").sha.encode())
    with pytest.raises(StoreUnavailable):
        await client.jobs.delete([delete])
    assert (await client.jobs.delete([delete]), await everywhere(client)) == ((Outcome.CONFLICT,), [])
    assert (await client.count()).done == 0


async def test_a_beat_whose_answer_was_lost_keeps_the_job(client: QueueClient, store: LossyStore) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER / 2)
    (line,) = store.lines
    line.words.add(load("heartbeat").sha.encode())
    with pytest.raises(StoreUnavailable):
        await client.heartbeat(claim)
    await store.pass_time(LONGER / 2)
    assert list(await client.jobs.overdue(None, 10)) == []


async def test_jobs_without_a_look_are_put_once(client: QueueClient, store: LossyStore) -> None:
    """Their ids were made for the put, so that nothing but the request id tells that it was carried out."""
    jobs = [Job(f"{number}", minted=True) for number in range(3)]
    puts = await client.jobs.enqueue(jobs, request=fresh())
    (line,) = store.lines
    assert (line.replies_dropped, [put.new for put in puts]) == (1, [True] * 3)
    assert [id for id, _ in await everywhere(client)] == ["0", "1", "2"]


async def test_every_answer_is_lost_at_first(client: QueueClient, store: LossyStore) -> None:
    assert isinstance(store.jobs, AskedAgain)
    await client.enqueue("a")
    (outcome,) = await client.complete(await client.claim_one())
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
