"""JobQueue: rescues, cancels, revivals and deletes. What anybody but the holder may do, and under which condition."""

from __future__ import annotations

import pytest

from conformance.desk import LONGER, SILENCE, Desk
from conformance.stores import Store
from wrasse.ports.jobs import Budget, Cancel, Claim, DeadLetterJob, Delete, Job, Place, Reason, Requeue, RequeueDead
from wrasse.ports.outcome import Outcome

DONE, LOST = [Outcome.DONE], [Outcome.CONFLICT]


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store.jobs)


# Rescues


async def test_a_silent_workers_job_is_ready_again(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(LONGER)
    outcomes = await desk.rescue(hold)
    record = await desk.record("a")
    assert (outcomes, record.state.place, record.state.rescues, record.state.worker) == (DONE, Place.READY, 1, "")
    assert [(each.reason, each.worker) for each in record.history] == [(Reason.WORKER_DIED, "w1")]


async def test_a_job_is_not_rescued_before_its_deadline(desk: Desk) -> None:
    hold = await desk.held("a")
    bury = DeadLetterJob(hold, Reason.WORKER_DIED, spends=Budget.RESCUES)
    assert (await desk.rescue(hold), await desk.move(bury), await desk.place("a")) == (LOST, LOST, Place.HELD)


async def test_a_rescue_loses_to_a_beat_that_came_first(desk: Desk, store: Store) -> None:
    await desk.held("a")
    await store.pass_time(LONGER)
    (suspect,) = await desk.jobs.overdue(None, 10)
    await desk.beat(suspect.hold)
    assert (await desk.rescue(suspect.hold), (await desk.state("a")).rescues) == (LOST, 0)


async def test_a_rescue_loses_to_a_finish_that_came_first(desk: Desk, store: Store) -> None:
    await desk.held("a")
    await store.pass_time(LONGER)
    (suspect,) = await desk.jobs.overdue(None, 10)
    await desk.finish(suspect.hold)
    assert (await desk.rescue(suspect.hold), await desk.place("a")) == (LOST, Place.DONE)


async def test_two_rescuers_rescue_a_job_once(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(LONGER)
    outcomes = await desk.rescue(hold) + await desk.rescue(hold)
    assert (outcomes, (await desk.state("a")).rescues, (await desk.count()).ready) == (DONE + LOST, 1, 1)


async def test_a_rescuer_who_looked_at_an_earlier_hold_loses(desk: Desk, store: Store) -> None:
    earlier = await desk.held("a")
    await store.pass_time(LONGER)
    await desk.rescue(earlier)
    await desk.take_one()
    await store.pass_time(LONGER)
    assert (await desk.rescue(earlier), await desk.place("a")) == (LOST, Place.HELD)


async def test_a_job_that_killed_too_many_workers_is_buried(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(LONGER)
    outcomes = await desk.move(DeadLetterJob(hold, Reason.WORKER_DIED, error="silent", spends=Budget.RESCUES))
    state = await desk.state("a")
    assert (outcomes, state.place, state.reason, state.rescues) == (DONE, Place.DEAD, Reason.WORKER_DIED, 1)
    assert await desk.finish(hold) == LOST


async def test_what_the_producer_wrote_survives_failure_rescue_burial_and_revival(desk: Desk, store: Store) -> None:
    job = Job("a", "mail", payload=b"\x00\xff", headers={"x": "1", "später": "ü"}, timeout=SILENCE, lasting=True)
    await desk.put(job)
    await desk.fail(await desk.take_one())
    hold = await desk.take_one()
    await store.pass_time(LONGER)
    await desk.rescue(hold)
    await desk.bury(await desk.take_one())
    await desk.move(RequeueDead((await desk.state("a")).hold))
    (taken,) = await desk.take()
    assert taken.job == job


async def test_each_move_of_a_batch_has_its_own_outcome(desk: Desk, store: Store) -> None:
    await desk.put("a", "b")
    a, b = [taken.hold for taken in await desk.take()]
    await store.pass_time(LONGER)
    await desk.beat(b)
    requeues = [Requeue(hold, Budget.RESCUES, Reason.WORKER_DIED) for hold in (b, a, a, Claim("no", 1, ""))]
    outcomes = await desk.move(*requeues, Cancel("b"))
    assert outcomes == [Outcome.CONFLICT, Outcome.DONE, Outcome.CONFLICT, Outcome.CONFLICT, Outcome.DONE]


async def test_tokens_only_grow(desk: Desk, store: Store) -> None:
    tokens = []

    async def note() -> Claim:
        state = await desk.state("a")
        tokens.append(state.token)
        return state.hold

    await desk.put("a")
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
    await desk.put("a", Job("b", delay=SILENCE))
    outcomes = await desk.move(Cancel("a", error="not needed"), Cancel("b"))
    record = await desk.record("a")
    assert (outcomes, record.state.reason, record.state.error) == (DONE * 2, Reason.CANCELLED, "not needed")
    assert (record.history, await desk.take(), (await desk.state("b")).not_before) == ((), [], None)


async def test_a_held_job_can_be_cancelled_and_its_holder_is_refused(desk: Desk) -> None:
    hold = await desk.held("a")
    outcomes = await desk.move(Cancel("a"))
    refused = (await desk.beat(hold), await desk.finish(hold), await desk.fail(hold))
    record = await desk.record("a")
    assert (outcomes, refused, record.state.place) == (DONE, ([False], LOST, LOST), Place.DEAD)
    assert [each.reason for each in record.history] == [Reason.CANCELLED]


async def test_a_finished_or_unknown_job_cannot_be_cancelled(desk: Desk) -> None:
    await desk.finish(await desk.held("a"))
    await desk.bury(await desk.held("b"))
    outcomes = await desk.move(Cancel("a"), Cancel("b"), Cancel("c"))
    assert (outcomes, (await desk.state("b")).reason) == (LOST * 3, Reason.FAILED)


# Revivals


async def test_a_dead_job_starts_again_with_fresh_budgets(desk: Desk) -> None:
    await desk.put(Job("a", payload=b"p"))
    await desk.fail(await desk.take_one())
    await desk.settle(DeadLetterJob(await desk.take_one(), Reason.FAILED, error="broke", spends=Budget.FAILURES))
    outcomes = await desk.move(RequeueDead((await desk.state("a")).hold))
    state, (taken,) = await desk.state("a"), await desk.take()
    assert (outcomes, state.place, state.reason, state.error) == (DONE, Place.READY, None, "")
    assert (taken.failures, taken.rescues, taken.job.payload) == (0, 0, b"p")


async def test_a_revival_may_be_delayed(desk: Desk, store: Store) -> None:
    await desk.bury(await desk.held("a"))
    await desk.move(RequeueDead((await desk.state("a")).hold, delay=SILENCE))
    early = await desk.take()
    await store.pass_time(LONGER)
    assert (early, len(await desk.take())) == ([], 1)


async def test_a_job_is_revived_once(desk: Desk) -> None:
    await desk.bury(await desk.held("a"))
    revive = RequeueDead((await desk.state("a")).hold)
    assert await desk.move(revive, revive) == [Outcome.DONE, Outcome.CONFLICT]


async def test_only_a_dead_job_can_be_revived(desk: Desk) -> None:
    await desk.put("a")
    ready = await desk.move(RequeueDead((await desk.state("a")).hold))
    held = await desk.move(RequeueDead(await desk.take_one()))
    await desk.finish((await desk.state("a")).hold)
    done = await desk.move(RequeueDead((await desk.state("a")).hold))
    assert (ready, held, done) == (LOST, LOST, LOST)


# Deletes


@pytest.mark.parametrize("place", [Place.READY, Place.DONE, Place.DEAD])
async def test_a_job_that_nobody_holds_can_be_deleted(desk: Desk, place: Place) -> None:
    await desk.put("a")
    if place is not Place.READY:
        await {Place.DONE: desk.finish, Place.DEAD: desk.bury}[place](await desk.take_one())
    delete = Delete((await desk.state("a")).hold, place)
    outcomes = list(await desk.jobs.delete([delete, delete]))
    assert (outcomes, await desk.place("a"), await desk.ids(place)) == (DONE + LOST, None, [])


async def test_a_held_job_is_never_deleted(desk: Desk) -> None:
    hold = await desk.held("a")
    outcomes = await desk.jobs.delete([Delete(hold, place) for place in Place])
    assert (list(outcomes), await desk.place("a")) == (LOST * 4, Place.HELD)


async def test_a_job_that_moved_on_is_not_deleted(desk: Desk) -> None:
    await desk.bury(await desk.held("a"))
    looked = (await desk.state("a")).hold
    await desk.move(RequeueDead(looked))
    await desk.bury(await desk.take_one())
    now = (await desk.state("a")).hold
    elsewhere, stale = Delete(now, Place.DONE), Delete(looked, Place.DEAD)
    assert (list(await desk.jobs.delete([elsewhere, stale])), await desk.place("a")) == (LOST * 2, Place.DEAD)


async def test_the_id_of_a_lasting_job_is_known_after_it_is_gone_for_as_long_as_said(desk: Desk, store: Store) -> None:
    await desk.put(Job("a", lasting=True))
    await desk.finish(await desk.take_one())
    await desk.jobs.delete([Delete((await desk.state("a")).hold, Place.DONE)], ids_kept=SILENCE)
    early = await desk.put("a")
    await store.pass_time(LONGER)
    assert (early, await desk.put("a")) == ([False], [True])


async def test_an_id_that_need_not_last_is_free_again(desk: Desk) -> None:
    await desk.put("a")
    await desk.jobs.delete([Delete((await desk.state("a")).hold, Place.READY)])
    assert await desk.put("a") == [True]


async def test_an_id_that_need_not_last_is_free_again_also_after_a_rescue(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(LONGER)
    await desk.rescue(hold)
    await desk.jobs.delete([Delete((await desk.state("a")).hold, Place.READY)])
    assert await desk.put("a") == [True]


async def test_the_holder_of_a_deleted_job_cannot_finish_another_of_the_same_id(desk: Desk) -> None:
    earlier = await desk.held("a")
    await desk.move(Cancel("a"))
    await desk.jobs.delete([Delete((await desk.state("a")).hold, Place.DEAD)])
    newest = await desk.held("a")
    assert (await desk.finish(earlier), await desk.beat(newest)) == (LOST, [True])


async def test_a_deleted_job_leaves_no_result_or_history_to_the_next_of_its_id(desk: Desk) -> None:
    await desk.put("a")
    await desk.fail(await desk.take_one())
    await desk.bury(await desk.take_one())
    await desk.jobs.delete([Delete((await desk.state("a")).hold, Place.DEAD)])
    await desk.put("a")
    record = await desk.record("a")
    assert (record.history, record.result, record.state.attempts, record.state.failures) == ((), None, 0, 0)
