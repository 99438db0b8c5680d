"""JobQueue: rescues, cancels, requeues and deletes. What all but the worker may do, and under which condition."""

from __future__ import annotations

import pytest

from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient
from conformance.stores import Store
from wrasse.ports.jobs import Budget, Cancel, Claim, DeadLetterJob, Delete, Job, JobState, Reason, Requeue, RequeueDead
from wrasse.ports.outcome import Outcome

DONE, CONFLICT = [Outcome.DONE], [Outcome.CONFLICT]


@pytest.fixture
def client(store: Store) -> QueueClient:
    return QueueClient(store.jobs)


# Rescues


async def test_a_dead_workers_job_is_ready_again(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    outcomes = await client.rescue(claim)
    record = await client.record("a")
    assert (outcomes, record.info.state, record.info.rescues, record.info.worker) == (DONE, JobState.READY, 1, "")
    assert [(each.reason, each.worker) for each in record.history] == [(Reason.WORKER_DIED, "w1")]


async def test_a_job_is_not_rescued_before_its_deadline(client: QueueClient) -> None:
    claim = await client.claimed("a")
    bury = DeadLetterJob(claim, Reason.WORKER_DIED, spends=Budget.RESCUES)
    assert (await client.rescue(claim), await client.move(bury), await client.state("a")) == (
        CONFLICT,
        CONFLICT,
        JobState.RUNNING,
    )


async def test_a_rescue_loses_to_a_heartbeat_that_came_first(client: QueueClient, store: Store) -> None:
    await client.claimed("a")
    await store.pass_time(LONGER)
    (suspect,) = await client.jobs.overdue(None, 10)
    await client.heartbeat(suspect.claim)
    assert (await client.rescue(suspect.claim), (await client.info("a")).rescues) == (CONFLICT, 0)


async def test_a_rescue_loses_to_a_finish_that_came_first(client: QueueClient, store: Store) -> None:
    await client.claimed("a")
    await store.pass_time(LONGER)
    (suspect,) = await client.jobs.overdue(None, 10)
    await client.complete(suspect.claim)
    assert (await client.rescue(suspect.claim), await client.state("a")) == (CONFLICT, JobState.DONE)


async def test_two_rescuers_rescue_a_job_once(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    outcomes = await client.rescue(claim) + await client.rescue(claim)
    assert (outcomes, (await client.info("a")).rescues, (await client.count()).ready) == (DONE + CONFLICT, 1, 1)


async def test_a_rescue_of_an_earlier_claim_is_a_conflict(client: QueueClient, store: Store) -> None:
    earlier = await client.claimed("a")
    await store.pass_time(LONGER)
    await client.rescue(earlier)
    await client.claim_one()
    await store.pass_time(LONGER)
    assert (await client.rescue(earlier), await client.state("a")) == (CONFLICT, JobState.RUNNING)


async def test_a_job_that_killed_too_many_workers_is_dead_lettered(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    outcomes = await client.move(DeadLetterJob(claim, Reason.WORKER_DIED, error="silent", spends=Budget.RESCUES))
    info = await client.info("a")
    assert (outcomes, info.state, info.reason, info.rescues) == (DONE, JobState.DEAD, Reason.WORKER_DIED, 1)
    assert await client.complete(claim) == CONFLICT


async def test_what_the_producer_wrote_survives_failure_rescue_burial_and_revival(
    client: QueueClient, store: Store
) -> None:
    job = Job(
        "a", "mail", payload=b"\x00\xff", headers={"x": "1", "später": "ü"}, timeout=HEARTBEAT_TIMEOUT, lasting=True
    )
    await client.enqueue(job)
    await client.fail(await client.claim_one())
    claim = await client.claim_one()
    await store.pass_time(LONGER)
    await client.rescue(claim)
    await client.dead_letter(await client.claim_one())
    await client.move(RequeueDead((await client.info("a")).claim))
    (claimed,) = await client.claim()
    assert claimed.job == job


async def test_each_move_of_a_batch_has_its_own_outcome(client: QueueClient, store: Store) -> None:
    await client.enqueue("a", "b")
    a, b = [claimed.claim for claimed in await client.claim()]
    await store.pass_time(LONGER)
    await client.heartbeat(b)
    requeues = [Requeue(claim, Budget.RESCUES, Reason.WORKER_DIED) for claim in (b, a, a, Claim("no", 1, ""))]
    outcomes = await client.move(*requeues, Cancel("b"))
    assert outcomes == [Outcome.CONFLICT, Outcome.DONE, Outcome.CONFLICT, Outcome.CONFLICT, Outcome.DONE]


async def test_tokens_only_grow(client: QueueClient, store: Store) -> None:
    tokens = []

    async def note() -> Claim:
        info = await client.info("a")
        tokens.append(info.token)
        return info.claim

    await client.enqueue("a")
    await note()
    await client.claim_one()
    await store.pass_time(LONGER)
    await client.rescue(await note())
    await note()
    await client.claim_one()
    await note()
    await client.move(Cancel("a"))
    await client.move(RequeueDead(await note()))
    await note()
    await client.claim_one()
    await note()
    assert tokens == sorted(set(tokens))


# Cancels


async def test_a_waiting_job_can_be_cancelled(client: QueueClient) -> None:
    await client.enqueue("a", Job("b", delay=HEARTBEAT_TIMEOUT))
    outcomes = await client.move(Cancel("a", error="not needed"), Cancel("b"))
    record = await client.record("a")
    assert (outcomes, record.info.reason, record.info.error) == (DONE * 2, Reason.CANCELLED, "not needed")
    assert (record.history, await client.claim(), (await client.info("b")).not_before) == ((), [], None)


async def test_a_running_job_can_be_cancelled_and_its_worker_is_refused(client: QueueClient) -> None:
    claim = await client.claimed("a")
    outcomes = await client.move(Cancel("a"))
    refused = (await client.heartbeat(claim), await client.complete(claim), await client.fail(claim))
    record = await client.record("a")
    assert (outcomes, refused, record.info.state) == (DONE, ([False], CONFLICT, CONFLICT), JobState.DEAD)
    assert [each.reason for each in record.history] == [Reason.CANCELLED]


async def test_a_finished_or_unknown_job_cannot_be_cancelled(client: QueueClient) -> None:
    await client.complete(await client.claimed("a"))
    await client.dead_letter(await client.claimed("b"))
    outcomes = await client.move(Cancel("a"), Cancel("b"), Cancel("c"))
    assert (outcomes, (await client.info("b")).reason) == (CONFLICT * 3, Reason.FAILED)


# Revivals


async def test_a_dead_job_starts_again_with_fresh_budgets(client: QueueClient) -> None:
    await client.enqueue(Job("a", payload=b"p"))
    await client.fail(await client.claim_one())
    await client.settle(DeadLetterJob(await client.claim_one(), Reason.FAILED, error="broke", spends=Budget.FAILURES))
    outcomes = await client.move(RequeueDead((await client.info("a")).claim))
    info, (claimed,) = await client.info("a"), await client.claim()
    assert (outcomes, info.state, info.reason, info.error) == (DONE, JobState.READY, None, "")
    assert (claimed.failures, claimed.rescues, claimed.job.payload) == (0, 0, b"p")


async def test_a_revival_may_be_delayed(client: QueueClient, store: Store) -> None:
    await client.dead_letter(await client.claimed("a"))
    await client.move(RequeueDead((await client.info("a")).claim, delay=HEARTBEAT_TIMEOUT))
    early = await client.claim()
    await store.pass_time(LONGER)
    assert (early, len(await client.claim())) == ([], 1)


async def test_a_job_is_requeued_once(client: QueueClient) -> None:
    await client.dead_letter(await client.claimed("a"))
    revive = RequeueDead((await client.info("a")).claim)
    assert await client.move(revive, revive) == [Outcome.DONE, Outcome.CONFLICT]


async def test_only_a_dead_job_can_be_requeued(client: QueueClient) -> None:
    await client.enqueue("a")
    ready = await client.move(RequeueDead((await client.info("a")).claim))
    held = await client.move(RequeueDead(await client.claim_one()))
    await client.complete((await client.info("a")).claim)
    done = await client.move(RequeueDead((await client.info("a")).claim))
    assert (ready, held, done) == (CONFLICT, CONFLICT, CONFLICT)


# Deletes


@pytest.mark.parametrize("state", [JobState.READY, JobState.DONE, JobState.DEAD])
async def test_a_job_that_is_not_running_can_be_deleted(client: QueueClient, state: JobState) -> None:
    await client.enqueue("a")
    if state is not JobState.READY:
        await {JobState.DONE: client.complete, JobState.DEAD: client.dead_letter}[state](await client.claim_one())
    delete = Delete((await client.info("a")).claim, state)
    outcomes = list(await client.jobs.delete([delete, delete]))
    assert (outcomes, await client.state("a"), await client.ids(state)) == (DONE + CONFLICT, None, [])


async def test_a_running_job_is_never_deleted(client: QueueClient) -> None:
    claim = await client.claimed("a")
    outcomes = await client.jobs.delete([Delete(claim, state) for state in JobState])
    assert (list(outcomes), await client.state("a")) == (CONFLICT * 4, JobState.RUNNING)


async def test_a_job_that_moved_on_is_not_deleted(client: QueueClient) -> None:
    await client.dead_letter(await client.claimed("a"))
    looked = (await client.info("a")).claim
    await client.move(RequeueDead(looked))
    await client.dead_letter(await client.claim_one())
    now = (await client.info("a")).claim
    elsewhere, stale = Delete(now, JobState.DONE), Delete(looked, JobState.DEAD)
    assert (list(await client.jobs.delete([elsewhere, stale])), await client.state("a")) == (
        CONFLICT * 2,
        JobState.DEAD,
    )


async def test_the_id_of_a_lasting_job_is_known_after_it_is_gone_for_as_long_as_said(
    client: QueueClient, store: Store
) -> None:
    await client.enqueue(Job("a", lasting=True))
    await client.complete(await client.claim_one())
    await client.jobs.delete([Delete((await client.info("a")).claim, JobState.DONE)], ids_kept=HEARTBEAT_TIMEOUT)
    early = await client.enqueue("a")
    await store.pass_time(LONGER)
    assert (early, await client.enqueue("a")) == ([False], [True])


async def test_an_id_that_need_not_last_is_free_again(client: QueueClient) -> None:
    await client.enqueue("a")
    await client.jobs.delete([Delete((await client.info("a")).claim, JobState.READY)])
    assert await client.enqueue("a") == [True]


async def test_an_id_that_need_not_last_is_free_again_also_after_a_rescue(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    await client.rescue(claim)
    await client.jobs.delete([Delete((await client.info("a")).claim, JobState.READY)])
    assert await client.enqueue("a") == [True]


async def test_the_holder_of_a_deleted_job_cannot_finish_another_of_the_same_id(client: QueueClient) -> None:
    earlier = await client.claimed("a")
    await client.move(Cancel("a"))
    await client.jobs.delete([Delete((await client.info("a")).claim, JobState.DEAD)])
    newest = await client.claimed("a")
    assert (await client.complete(earlier), await client.heartbeat(newest)) == (CONFLICT, [True])


async def test_a_deleted_job_leaves_no_result_or_history_to_the_next_of_its_id(client: QueueClient) -> None:
    await client.enqueue("a")
    await client.fail(await client.claim_one())
    await client.dead_letter(await client.claim_one())
    await client.jobs.delete([Delete((await client.info("a")).claim, JobState.DEAD)])
    await client.enqueue("a")
    record = await client.record("a")
    assert (record.history, record.result, record.info.attempts, record.info.failures) == ((), None, 0, 0)
