"""JobQueue: rescues, cancels, requeues and deletes. What all but the worker may do, and under which condition."""

from __future__ import annotations

import pytest

from conformance.desk import HEARTBEAT_TIMEOUT, LONGER, Desk
from conformance.stores import Store
from wrasse.ports.jobs import Budget, Cancel, Claim, DeadLetterJob, Delete, Job, JobState, Reason, Requeue, RequeueDead
from wrasse.ports.outcome import Outcome

DONE, CONFLICT = [Outcome.DONE], [Outcome.CONFLICT]


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store.jobs)


# Rescues


async def test_a_dead_workers_job_is_ready_again(desk: Desk, store: Store) -> None:
    claim = await desk.held("a")
    await store.pass_time(LONGER)
    outcomes = await desk.rescue(claim)
    record = await desk.record("a")
    assert (outcomes, record.info.state, record.info.rescues, record.info.worker) == (DONE, JobState.READY, 1, "")
    assert [(each.reason, each.worker) for each in record.history] == [(Reason.WORKER_DIED, "w1")]


async def test_a_job_is_not_rescued_before_its_deadline(desk: Desk) -> None:
    claim = await desk.held("a")
    bury = DeadLetterJob(claim, Reason.WORKER_DIED, spends=Budget.RESCUES)
    assert (await desk.rescue(claim), await desk.move(bury), await desk.place("a")) == (
        CONFLICT,
        CONFLICT,
        JobState.RUNNING,
    )


async def test_a_rescue_loses_to_a_heartbeat_that_came_first(desk: Desk, store: Store) -> None:
    await desk.held("a")
    await store.pass_time(LONGER)
    (suspect,) = await desk.jobs.overdue(None, 10)
    await desk.heartbeat(suspect.claim)
    assert (await desk.rescue(suspect.claim), (await desk.state("a")).rescues) == (CONFLICT, 0)


async def test_a_rescue_loses_to_a_finish_that_came_first(desk: Desk, store: Store) -> None:
    await desk.held("a")
    await store.pass_time(LONGER)
    (suspect,) = await desk.jobs.overdue(None, 10)
    await desk.finish(suspect.claim)
    assert (await desk.rescue(suspect.claim), await desk.place("a")) == (CONFLICT, JobState.DONE)


async def test_two_rescuers_rescue_a_job_once(desk: Desk, store: Store) -> None:
    claim = await desk.held("a")
    await store.pass_time(LONGER)
    outcomes = await desk.rescue(claim) + await desk.rescue(claim)
    assert (outcomes, (await desk.state("a")).rescues, (await desk.count()).ready) == (DONE + CONFLICT, 1, 1)


async def test_a_rescue_of_an_earlier_claim_is_a_conflict(desk: Desk, store: Store) -> None:
    earlier = await desk.held("a")
    await store.pass_time(LONGER)
    await desk.rescue(earlier)
    await desk.take_one()
    await store.pass_time(LONGER)
    assert (await desk.rescue(earlier), await desk.place("a")) == (CONFLICT, JobState.RUNNING)


async def test_a_job_that_killed_too_many_workers_is_dead_lettered(desk: Desk, store: Store) -> None:
    claim = await desk.held("a")
    await store.pass_time(LONGER)
    outcomes = await desk.move(DeadLetterJob(claim, Reason.WORKER_DIED, error="silent", spends=Budget.RESCUES))
    info = await desk.state("a")
    assert (outcomes, info.state, info.reason, info.rescues) == (DONE, JobState.DEAD, Reason.WORKER_DIED, 1)
    assert await desk.finish(claim) == CONFLICT


async def test_what_the_producer_wrote_survives_failure_rescue_burial_and_revival(desk: Desk, store: Store) -> None:
    job = Job(
        "a", "mail", payload=b"\x00\xff", headers={"x": "1", "später": "ü"}, timeout=HEARTBEAT_TIMEOUT, lasting=True
    )
    await desk.enqueue(job)
    await desk.fail(await desk.take_one())
    claim = await desk.take_one()
    await store.pass_time(LONGER)
    await desk.rescue(claim)
    await desk.bury(await desk.take_one())
    await desk.move(RequeueDead((await desk.state("a")).claim))
    (claimed,) = await desk.claim()
    assert claimed.job == job


async def test_each_move_of_a_batch_has_its_own_outcome(desk: Desk, store: Store) -> None:
    await desk.enqueue("a", "b")
    a, b = [claimed.claim for claimed in await desk.claim()]
    await store.pass_time(LONGER)
    await desk.heartbeat(b)
    requeues = [Requeue(claim, Budget.RESCUES, Reason.WORKER_DIED) for claim in (b, a, a, Claim("no", 1, ""))]
    outcomes = await desk.move(*requeues, Cancel("b"))
    assert outcomes == [Outcome.CONFLICT, Outcome.DONE, Outcome.CONFLICT, Outcome.CONFLICT, Outcome.DONE]


async def test_tokens_only_grow(desk: Desk, store: Store) -> None:
    tokens = []

    async def note() -> Claim:
        info = await desk.state("a")
        tokens.append(info.token)
        return info.claim

    await desk.enqueue("a")
    await note()
    await desk.take_one()
    await store.pass_time(LONGER)
    await desk.rescue(await note())
    await note()
    await desk.take_one()
    await note()
    await desk.move(Cancel("a"))
    await desk.move(RequeueDead(await note()))
    await note()
    await desk.take_one()
    await note()
    assert tokens == sorted(set(tokens))


# Cancels


async def test_a_waiting_job_can_be_cancelled(desk: Desk) -> None:
    await desk.enqueue("a", Job("b", delay=HEARTBEAT_TIMEOUT))
    outcomes = await desk.move(Cancel("a", error="not needed"), Cancel("b"))
    record = await desk.record("a")
    assert (outcomes, record.info.reason, record.info.error) == (DONE * 2, Reason.CANCELLED, "not needed")
    assert (record.history, await desk.claim(), (await desk.state("b")).not_before) == ((), [], None)


async def test_a_running_job_can_be_cancelled_and_its_worker_is_refused(desk: Desk) -> None:
    claim = await desk.held("a")
    outcomes = await desk.move(Cancel("a"))
    refused = (await desk.heartbeat(claim), await desk.finish(claim), await desk.fail(claim))
    record = await desk.record("a")
    assert (outcomes, refused, record.info.state) == (DONE, ([False], CONFLICT, CONFLICT), JobState.DEAD)
    assert [each.reason for each in record.history] == [Reason.CANCELLED]


async def test_a_finished_or_unknown_job_cannot_be_cancelled(desk: Desk) -> None:
    await desk.finish(await desk.held("a"))
    await desk.bury(await desk.held("b"))
    outcomes = await desk.move(Cancel("a"), Cancel("b"), Cancel("c"))
    assert (outcomes, (await desk.state("b")).reason) == (CONFLICT * 3, Reason.FAILED)


# Revivals


async def test_a_dead_job_starts_again_with_fresh_budgets(desk: Desk) -> None:
    await desk.enqueue(Job("a", payload=b"p"))
    await desk.fail(await desk.take_one())
    await desk.settle(DeadLetterJob(await desk.take_one(), Reason.FAILED, error="broke", spends=Budget.FAILURES))
    outcomes = await desk.move(RequeueDead((await desk.state("a")).claim))
    info, (claimed,) = await desk.state("a"), await desk.claim()
    assert (outcomes, info.state, info.reason, info.error) == (DONE, JobState.READY, None, "")
    assert (claimed.failures, claimed.rescues, claimed.job.payload) == (0, 0, b"p")


async def test_a_revival_may_be_delayed(desk: Desk, store: Store) -> None:
    await desk.bury(await desk.held("a"))
    await desk.move(RequeueDead((await desk.state("a")).claim, delay=HEARTBEAT_TIMEOUT))
    early = await desk.claim()
    await store.pass_time(LONGER)
    assert (early, len(await desk.claim())) == ([], 1)


async def test_a_job_is_requeued_once(desk: Desk) -> None:
    await desk.bury(await desk.held("a"))
    revive = RequeueDead((await desk.state("a")).claim)
    assert await desk.move(revive, revive) == [Outcome.DONE, Outcome.CONFLICT]


async def test_only_a_dead_job_can_be_requeued(desk: Desk) -> None:
    await desk.enqueue("a")
    ready = await desk.move(RequeueDead((await desk.state("a")).claim))
    held = await desk.move(RequeueDead(await desk.take_one()))
    await desk.finish((await desk.state("a")).claim)
    done = await desk.move(RequeueDead((await desk.state("a")).claim))
    assert (ready, held, done) == (CONFLICT, CONFLICT, CONFLICT)


# Deletes


@pytest.mark.parametrize("state", [JobState.READY, JobState.DONE, JobState.DEAD])
async def test_a_job_that_is_not_running_can_be_deleted(desk: Desk, state: JobState) -> None:
    await desk.enqueue("a")
    if state is not JobState.READY:
        await {JobState.DONE: desk.finish, JobState.DEAD: desk.bury}[state](await desk.take_one())
    delete = Delete((await desk.state("a")).claim, state)
    outcomes = list(await desk.jobs.delete([delete, delete]))
    assert (outcomes, await desk.place("a"), await desk.ids(state)) == (DONE + CONFLICT, None, [])


async def test_a_running_job_is_never_deleted(desk: Desk) -> None:
    claim = await desk.held("a")
    outcomes = await desk.jobs.delete([Delete(claim, state) for state in JobState])
    assert (list(outcomes), await desk.place("a")) == (CONFLICT * 4, JobState.RUNNING)


async def test_a_job_that_moved_on_is_not_deleted(desk: Desk) -> None:
    await desk.bury(await desk.held("a"))
    looked = (await desk.state("a")).claim
    await desk.move(RequeueDead(looked))
    await desk.bury(await desk.take_one())
    now = (await desk.state("a")).claim
    elsewhere, stale = Delete(now, JobState.DONE), Delete(looked, JobState.DEAD)
    assert (list(await desk.jobs.delete([elsewhere, stale])), await desk.place("a")) == (CONFLICT * 2, JobState.DEAD)


async def test_the_id_of_a_lasting_job_is_known_after_it_is_gone_for_as_long_as_said(desk: Desk, store: Store) -> None:
    await desk.enqueue(Job("a", lasting=True))
    await desk.finish(await desk.take_one())
    await desk.jobs.delete([Delete((await desk.state("a")).claim, JobState.DONE)], ids_kept=HEARTBEAT_TIMEOUT)
    early = await desk.enqueue("a")
    await store.pass_time(LONGER)
    assert (early, await desk.enqueue("a")) == ([False], [True])


async def test_an_id_that_need_not_last_is_free_again(desk: Desk) -> None:
    await desk.enqueue("a")
    await desk.jobs.delete([Delete((await desk.state("a")).claim, JobState.READY)])
    assert await desk.enqueue("a") == [True]


async def test_an_id_that_need_not_last_is_free_again_also_after_a_rescue(desk: Desk, store: Store) -> None:
    claim = await desk.held("a")
    await store.pass_time(LONGER)
    await desk.rescue(claim)
    await desk.jobs.delete([Delete((await desk.state("a")).claim, JobState.READY)])
    assert await desk.enqueue("a") == [True]


async def test_the_holder_of_a_deleted_job_cannot_finish_another_of_the_same_id(desk: Desk) -> None:
    earlier = await desk.held("a")
    await desk.move(Cancel("a"))
    await desk.jobs.delete([Delete((await desk.state("a")).claim, JobState.DEAD)])
    newest = await desk.held("a")
    assert (await desk.finish(earlier), await desk.heartbeat(newest)) == (CONFLICT, [True])


async def test_a_deleted_job_leaves_no_result_or_history_to_the_next_of_its_id(desk: Desk) -> None:
    await desk.enqueue("a")
    await desk.fail(await desk.take_one())
    await desk.bury(await desk.take_one())
    await desk.jobs.delete([Delete((await desk.state("a")).claim, JobState.DEAD)])
    await desk.enqueue("a")
    record = await desk.record("a")
    assert (record.history, record.result, record.info.attempts, record.info.failures) == ((), None, 0, 0)
