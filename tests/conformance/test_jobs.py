"""JobQueue: putting, taking, holding and settling. What every backend promises about a job's life."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.conftest import OpenStore
from conformance.desk import LONGER, SILENCE, Desk, fresh
from conformance.stores import Store
from wrasse.bounded import json_size
from wrasse.errors import TooLarge, UsageError
from wrasse.jobs.retry import RetryPolicy
from wrasse.jobs.stream_tasks.store import INLINE_MAX
from wrasse.jobs.worker.running_job import NOTE_CHARS_MAX
from wrasse.ports.jobs import (
    BATCH_MAX,
    ERROR_CHARS_MAX,
    HEADERS_BYTES_MAX,
    HISTORY_MAX,
    PAYLOAD_BYTES_MAX,
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    Place,
    Progress,
    Reason,
    Requeue,
)
from wrasse.ports.outcome import Outcome

DONE, LOST = [Outcome.DONE], [Outcome.CONFLICT]
PRINTABLE = "".join(chr(n) for n in range(32, 127))
MINUTE = timedelta(minutes=1)


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store.jobs)


# Putting


async def test_a_job_comes_back_as_its_producer_described_it(desk: Desk) -> None:
    job = Job("a", "resize", "low", "urgent", b"\x00\xff", {"trace": "1-2"}, timeout=MINUTE, lasting=True)
    await desk.put(job)
    (taken,) = await desk.take()
    assert taken.job == job


@pytest.mark.parametrize(
    "payload",
    [b"", bytes(range(256)), bytes(range(256)) * (PAYLOAD_BYTES_MAX // 256)],
    ids=["no bytes", "every byte", "16 MiB"],
)
async def test_payload_bytes_are_never_changed(desk: Desk, payload: bytes) -> None:
    await desk.put(Job("a", payload=payload))
    (taken,) = await desk.take()
    await desk.bury(taken.hold)
    record = await desk.record("a")
    assert (taken.job.payload, record.job.payload, record.state.size) == (payload, payload, len(payload))


@pytest.mark.parametrize("id", [PRINTABLE, "é✓𝄞 日本", "'; --", "a/b", "%2F", "a:b:c", "*", "0"])
async def test_an_id_may_have_any_printable_character(desk: Desk, id: str) -> None:
    await desk.put(Job(id, kind=id, queue=id, priority=id))
    (taken,) = await desk.take(queues=[id])
    await desk.finish(taken.hold)
    assert ((await desk.record(id)).job.kind, await desk.ids(Place.DONE)) == (id, [id])


async def test_headers_and_results_are_kept_up_to_their_limits(desk: Desk) -> None:
    headers = {"é": "✓" * 20_000, "n": ""}
    headers["n"] = "x" * (HEADERS_BYTES_MAX - sum(len(each.encode()) for pair in headers.items() for each in pair))
    await desk.put(Job("a", headers=headers))
    (taken,) = await desk.take()
    assert taken.job.headers == headers
    await desk.settle(Complete(taken.hold, bytes(PAYLOAD_BYTES_MAX)))
    assert (await desk.record("a")).result == bytes(PAYLOAD_BYTES_MAX)


@pytest.mark.parametrize("letter", ["\x01", '"', "𝄞"])
async def test_a_job_at_all_limits_lives_its_whole_life(desk: Desk, letter: str) -> None:
    long = letter * (HEADERS_BYTES_MAX // max(len(letter.encode()), json_size(letter)) - 8)
    for headers in ({letter: long}, {"job_id": long}):
        job = Job("a", headers=headers, payload=bytes(INLINE_MAX), timeout=MINUTE)
        await desk.put(job)
        for _ in range(HISTORY_MAX + 1):
            (taken,) = await desk.take()
            assert taken.job == job
            far = {"a": Progress(0.5, letter * NOTE_CHARS_MAX)}
            told = await desk.jobs.beat(desk.worker, [taken.hold], silence=MINUTE, progress=far)
            assert told.mine == (True,)
            again = Requeue(taken.hold, Budget.FAILURES, Reason.FAILED, error=letter * ERROR_CHARS_MAX)
            assert await desk.settle(again) == DONE
        (taken,) = await desk.take()
        assert await desk.settle(Complete(taken.hold, bytes(INLINE_MAX))) == DONE
        record = await desk.record("a")
        assert (record.job.headers, record.result, len(record.history)) == (headers, bytes(INLINE_MAX), HISTORY_MAX)
        assert [*await desk.jobs.delete([Delete(taken.hold, Place.DONE)])] == DONE


async def test_an_error_that_is_no_text_is_kept_as_near_as_can_be(desk: Desk) -> None:
    first, second = await desk.held("a"), await desk.held("b")
    assert await desk.settle(DeadLetterJob(first, Reason.FAILED, error="caf\udce9 \0")) == DONE
    assert await desk.settle(Requeue(second, Budget.FAILURES, Reason.FAILED, error="caf\udce9 \0")) == DONE
    assert await desk.move(Cancel("b", error="caf\udce9 \0")) == DONE
    for id in "ab":
        assert (await desk.state(id)).error == "caf\\udce9 \0"
    assert [attempt.error for attempt in (await desk.record("b")).history] == ["caf\\udce9 \0"]


async def test_headers_and_results_beyond_their_limits_are_refused(desk: Desk) -> None:
    with pytest.raises(TooLarge, match=f"headers of {HEADERS_BYTES_MAX + 1} bytes"):
        await desk.put(Job("good"), Job("bad", headers={"n": "x" * HEADERS_BYTES_MAX}))
    assert await desk.place("good") is None
    hold = await desk.held("a")
    with pytest.raises(TooLarge, match=f"a result of {PAYLOAD_BYTES_MAX + 1} bytes"):
        await desk.settle(Complete(hold, bytes(PAYLOAD_BYTES_MAX + 1)))
    assert await desk.finish(hold) == [Outcome.DONE]


async def test_a_put_is_all_or_none(desk: Desk) -> None:
    with pytest.raises(TooLarge):
        await desk.put(Job("good"), Job("bad", payload=bytes(PAYLOAD_BYTES_MAX + 1)))
    assert await desk.place("good") is None


async def test_a_batch_beyond_the_limit_is_refused(desk: Desk) -> None:
    with pytest.raises(UsageError):
        await desk.put(*(Job(str(n)) for n in range(BATCH_MAX + 1)))
    assert (await desk.count()).ready == 0


async def test_putting_nothing_is_nothing(desk: Desk) -> None:
    assert (await desk.put(), await desk.settle(), await desk.move()) == ([], [], [])


async def test_a_put_says_which_ids_were_known(desk: Desk) -> None:
    await desk.put("b")
    answers = await desk.put("a", "b", "c", "a")
    assert (answers, (await desk.count()).ready) == ([True, False, True, False], 3)


@pytest.mark.parametrize("place", list(Place))
async def test_a_job_stays_as_it_is_when_its_id_is_put_again(desk: Desk, place: Place) -> None:
    await desk.put(Job("a", payload=b"first"))
    if place is not Place.READY:
        hold = await desk.take_one()
        await {Place.HELD: desk.beat, Place.DONE: desk.finish, Place.DEAD: desk.bury}[place](hold)
    before = await desk.record("a")
    answers = await desk.put(Job("a", payload=b"second"))
    assert (answers, await desk.record("a")) == ([False], before)


# The order of service


async def test_jobs_of_one_queue_are_served_in_the_order_they_were_put(desk: Desk) -> None:
    await desk.put("a", "b")
    await desk.put("c")
    served = [taken.job.id for _ in range(3) for taken in await desk.take(limit=1)]
    assert served == ["a", "b", "c"]


async def test_the_first_queue_is_served_before_the_second(desk: Desk) -> None:
    await desk.put(Job("l1"), Job("h1", queue="high"), Job("l2"), Job("h2", queue="high"), Job("x", queue="other"))
    served = [taken.job.id for taken in await desk.take(limit=3, queues=["high", "low"])]
    assert served == ["h1", "h2", "l1"]


async def test_a_take_stays_within_its_limit_and_its_queues(desk: Desk) -> None:
    await desk.put("a", "b", Job("x", queue="other"))
    served = [len(await desk.take(limit=1)), len(await desk.take()), len(await desk.take())]
    assert (served, await desk.place("x")) == ([1, 1, 0], Place.READY)


async def test_a_rescued_job_is_served_next(desk: Desk, store: Store) -> None:
    hold = await desk.held("first")
    await desk.put("second", "third")
    await store.pass_time(LONGER)
    await desk.rescue(hold)
    assert [taken.job.id for taken in await desk.take()] == ["first", "second", "third"]


async def test_a_job_given_back_is_served_next(desk: Desk) -> None:
    hold = await desk.held("first")
    await desk.put("second")
    await desk.settle(Requeue(hold, Budget.INTERRUPTIONS, Reason.INTERRUPTED))
    assert [taken.job.id for taken in await desk.take()] == ["first", "second"]


async def test_a_requeued_job_returns_to_the_queue_it_came_from(desk: Desk) -> None:
    await desk.put(Job("a", queue="other"))
    (taken,) = await desk.take(queues=["low", "other"])
    await desk.fail(taken.hold)
    assert [taken.job.queue for taken in await desk.take(queues=["other"])] == ["other"]


# Delays


async def test_a_delayed_job_is_not_served_before_its_time(desk: Desk, store: Store) -> None:
    await desk.put(Job("a", delay=SILENCE))
    early = await desk.take()
    counted = await desk.count()
    await store.pass_time(LONGER)
    assert (early, counted.delayed, counted.ready, len(await desk.take())) == ([], 1, 0, 1)


async def test_not_before_is_an_instant_of_the_backends_clock(desk: Desk, store: Store) -> None:
    now = await desk.now()
    await desk.put(Job("past", not_before=now - MINUTE), Job("future", not_before=now + SILENCE))
    early = [taken.job.id for taken in await desk.take()]
    await store.pass_time(LONGER)
    assert (early, [taken.job.id for taken in await desk.take()]) == (["past"], ["future"])


async def test_the_later_of_delay_and_not_before_counts(desk: Desk, store: Store) -> None:
    now = await desk.now()
    await desk.put(Job("a", not_before=now + SILENCE, delay=3 * SILENCE), Job("b", not_before=now + 3 * SILENCE))
    await store.pass_time(2 * SILENCE)
    assert await desk.take() == []


async def test_a_delayed_job_joins_the_end_of_its_queue(desk: Desk, store: Store) -> None:
    await desk.put(Job("late", delay=SILENCE))
    await desk.put("early")
    await store.pass_time(LONGER)
    assert [taken.job.id for taken in await desk.take()] == ["early", "late"]


async def test_a_delayed_job_says_when_it_becomes_ready_and_then_no_longer(desk: Desk, store: Store) -> None:
    await desk.put(Job("a", delay=SILENCE))
    state = await desk.state("a")
    await store.pass_time(LONGER)
    counted = await desk.count()
    assert (state.not_before, counted.ready, counted.delayed) == (state.created_at + SILENCE, 1, 0)


async def test_a_failed_job_waits_out_its_delay_without_its_worker(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await desk.fail(hold, delay=SILENCE)
    early = await desk.take()
    await store.pass_time(LONGER)
    (again,) = await desk.take()
    assert (early, again.failures, again.attempt) == ([], 1, 2)


async def test_a_waiting_job_is_never_touched_by_time(desk: Desk, store: Store) -> None:
    await desk.put("a")
    before = await desk.record("a")
    await store.pass_time(3 * SILENCE)
    assert (list(await desk.jobs.overdue(None, 10)), await desk.record("a")) == ([], before)


# Holding


async def test_a_take_grants_a_hold_until_silence_from_now(desk: Desk) -> None:
    await desk.put("a")
    taken = await desk.jobs.take(["low"], 1, worker="w1", silence=SILENCE, request=fresh())
    (job,), state, until = taken.jobs, await desk.state("a"), taken.at + SILENCE
    assert (job.until, state.until, state.hold) == (until, until, job.hold)


async def test_a_held_job_is_not_served_again(desk: Desk) -> None:
    await desk.held("a")
    assert await desk.take() == []


async def test_a_beating_worker_keeps_its_job(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(SILENCE / 2)
    mine = await desk.beat(hold)
    await store.pass_time(SILENCE / 2)
    assert (mine, list(await desk.jobs.overdue(None, 10)), await desk.rescue(hold)) == ([True], [], LOST)


async def test_a_beat_past_the_deadline_keeps_a_job_nobody_rescued(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(LONGER)
    mine = await desk.beat(hold)
    assert (mine, await desk.rescue(hold), await desk.finish(hold)) == ([True], LOST, DONE)


async def test_a_finish_past_the_deadline_counts_while_nobody_rescued(desk: Desk, store: Store) -> None:
    hold = await desk.held("a")
    await store.pass_time(LONGER)
    assert (await desk.finish(hold), await desk.place("a")) == (DONE, Place.DONE)


async def test_a_beat_says_which_holds_are_gone(desk: Desk) -> None:
    await desk.put("a", "b")
    a, b = [taken.hold for taken in await desk.take()]
    await desk.finish(a)
    assert await desk.beat(a, b, Claim("c", 1, "n")) == [False, True, False]


async def test_the_late_finish_of_a_rescued_job_is_refused(desk: Desk, store: Store) -> None:
    late = await desk.held("a")
    await store.pass_time(LONGER)
    await desk.rescue(late)
    assert (await desk.finish(late), await desk.beat(late), await desk.place("a")) == (LOST, [False], Place.READY)


async def test_only_the_newest_holder_can_finish(desk: Desk, store: Store) -> None:
    late = await desk.held("a")
    await store.pass_time(LONGER)
    await desk.rescue(late)
    newest = await desk.take_one()
    assert (await desk.finish(late), await desk.finish(newest)) == (LOST, DONE)


async def test_a_right_token_with_a_wrong_nonce_is_refused(desk: Desk) -> None:
    hold = await desk.held("a")
    forged = Claim(hold.id, hold.token, hold.nonce + "x")
    assert (await desk.beat(forged), await desk.finish(forged), await desk.place("a")) == ([False], LOST, Place.HELD)


async def test_a_finished_job_cannot_be_finished_or_failed_again(desk: Desk) -> None:
    hold = await desk.held("a")
    await desk.finish(hold)
    assert (await desk.finish(hold), await desk.fail(hold), await desk.bury(hold)) == (LOST, LOST, LOST)


# Settling


async def test_a_finish_keeps_its_result(desk: Desk) -> None:
    hold = await desk.held("a")
    await desk.settle(Complete(hold, result=b"\x00 42"))
    record = await desk.record("a")
    assert (record.result, record.state.place, record.state.until) == (b"\x00 42", Place.DONE, None)


async def test_follow_up_jobs_come_with_the_finish(desk: Desk) -> None:
    hold = await desk.held("a")
    outcomes = await desk.settle(Complete(hold, puts=(Job("next", payload=b"p"), Job("later", delay=SILENCE))))
    assert (outcomes, await desk.ids(Place.READY), (await desk.count()).delayed) == (DONE, ["next", "later"], 1)


async def test_follow_up_jobs_do_not_come_with_a_refused_finish(desk: Desk) -> None:
    hold = await desk.held("a")
    await desk.move(Cancel("a"))
    assert (await desk.settle(Complete(hold, puts=(Job("next"),))), await desk.place("next")) == (LOST, None)


async def test_a_finish_with_a_bad_follow_up_changes_nothing(desk: Desk) -> None:
    hold = await desk.held("a")
    with pytest.raises(UsageError):
        await desk.settle(Complete(hold, puts=(Job("ok"), Job("tab\there"))))
    assert (await desk.place("a"), await desk.place("ok")) == (Place.HELD, None)


async def test_a_follow_up_whose_id_is_known_stays_as_it_is(desk: Desk) -> None:
    await desk.put(Job("next", queue="other", payload=b"first"))
    hold = await desk.held("a")
    outcomes = await desk.settle(Complete(hold, puts=(Job("next", payload=b"second"),)))
    assert (outcomes, (await desk.record("next")).job.payload) == (DONE, b"first")


@pytest.mark.parametrize(
    ("spends", "reason", "counts"),
    [
        (Budget.FAILURES, Reason.FAILED, (1, 0, 0)),
        (Budget.RESCUES, Reason.WORKER_DIED, (0, 1, 0)),
        (Budget.INTERRUPTIONS, Reason.INTERRUPTED, (0, 0, 1)),
    ],
)
async def test_a_requeue_spends_one_of_its_budget(
    desk: Desk, spends: Budget, reason: Reason, counts: tuple[int, int, int]
) -> None:
    hold = await desk.held("a")
    await desk.settle(Requeue(hold, spends, reason, error="why"))
    record = await desk.record("a")
    state, (attempt,) = record.state, record.history
    assert (state.failures, state.rescues, state.interruptions) == counts
    assert (attempt.number, attempt.worker, attempt.reason, attempt.error) == (1, "w1", reason, "why")


async def test_a_dead_job_keeps_bytes_reason_error_and_history(desk: Desk) -> None:
    await desk.put(Job("a", payload=b"\xff\x00"))
    await desk.fail(await desk.take_one())
    await desk.settle(DeadLetterJob(await desk.take_one(), Reason.TIMEOUT, error="too slow", spends=Budget.FAILURES))
    record = await desk.record("a")
    state, payload = record.state, record.job.payload
    assert (payload, state.reason, state.error, state.failures) == (b"\xff\x00", Reason.TIMEOUT, "too slow", 2)
    assert [(each.number, each.reason) for each in record.history] == [(1, Reason.FAILED), (2, Reason.TIMEOUT)]


async def test_a_dead_job_is_not_served(desk: Desk) -> None:
    await desk.bury(await desk.held("a"))
    assert await desk.take() == []


async def test_a_job_that_always_fails_runs_once_more_than_it_may_fail(desk: Desk, store: Store) -> None:
    policy, runs = RetryPolicy(failures_max=3, base=SILENCE / 4, max=SILENCE), 0
    await desk.put("a")
    while await desk.place("a") is not Place.DEAD:
        for taken in await desk.take():
            runs += 1
            await desk.settle(policy.after_failure(taken.hold, taken.failures, u=0.5))
        await store.pass_time(LONGER)
    assert (runs, (await desk.state("a")).failures) == (4, 4)


async def test_the_newest_attempts_are_remembered(desk: Desk) -> None:
    await desk.put("a")
    for _ in range(HISTORY_MAX + 3):
        await desk.fail(await desk.take_one())
    history = (await desk.record("a")).history
    assert [attempt.number for attempt in history] == list(range(4, HISTORY_MAX + 4))


async def test_a_long_error_is_cut(desk: Desk) -> None:
    hold = await desk.held("a")
    await desk.settle(DeadLetterJob(hold, Reason.FAILED, error="é" * (ERROR_CHARS_MAX + 1)))
    assert (await desk.state("a")).error == "é" * ERROR_CHARS_MAX


async def test_every_settlement_of_a_batch_has_its_own_outcome(desk: Desk) -> None:
    await desk.put("a", "b", "c")
    a, b, c = [taken.hold for taken in await desk.take()]
    await desk.move(Cancel("b"))
    requeue = Requeue(c, Budget.FAILURES, Reason.FAILED)
    outcomes = await desk.settle(Complete(a), Complete(b), requeue, Complete(c))
    assert outcomes == [Outcome.DONE, Outcome.CONFLICT, Outcome.DONE, Outcome.CONFLICT]


# How many finished jobs are kept


async def test_no_more_done_jobs_are_kept_than_allowed(open_store: OpenStore) -> None:
    store = await open_store(done_max=2)
    desk = Desk(store.jobs)
    for id in "abcd":
        await desk.finish(await desk.held(id))
        await store.pass_time(timedelta(milliseconds=2))
    assert (await desk.ids(Place.DONE), (await desk.count()).done) == (["c", "d"], 2)


async def test_done_jobs_need_not_be_kept_at_all(open_store: OpenStore) -> None:
    desk = Desk((await open_store(done_max=0)).jobs)
    await desk.put(Job("a", lasting=True), Job("b"))
    outcomes = await desk.finish(*[taken.hold for taken in await desk.take()])
    assert (outcomes, await desk.ids(Place.DONE)) == (DONE * 2, [])
    assert await desk.put("a", "b") == [False, True]
