"""JobQueue: putting, taking, holding and settling. What every backend promises about a job's life."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.conftest import OpenStore
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient, fresh
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
    JobState,
    Progress,
    Reason,
    Requeue,
)
from wrasse.ports.outcome import Outcome

DONE, CONFLICT = [Outcome.DONE], [Outcome.CONFLICT]
PRINTABLE = "".join(chr(n) for n in range(32, 127))
MINUTE = timedelta(minutes=1)


@pytest.fixture
def client(store: Store) -> QueueClient:
    return QueueClient(store.jobs)


# Putting


async def test_a_job_comes_back_as_its_producer_described_it(client: QueueClient) -> None:
    job = Job("a", "resize", "low", "urgent", b"\x00\xff", {"trace": "1-2"}, timeout=MINUTE, lasting=True)
    await client.enqueue(job)
    (claimed,) = await client.claim()
    assert claimed.job == job


@pytest.mark.parametrize(
    "payload",
    [b"", bytes(range(256)), bytes(range(256)) * (PAYLOAD_BYTES_MAX // 256)],
    ids=["no bytes", "every byte", "16 MiB"],
)
async def test_payload_bytes_are_never_changed(client: QueueClient, payload: bytes) -> None:
    await client.enqueue(Job("a", payload=payload))
    (claimed,) = await client.claim()
    await client.dead_letter(claimed.claim)
    record = await client.record("a")
    assert (claimed.job.payload, record.job.payload, record.info.size) == (payload, payload, len(payload))


@pytest.mark.parametrize("id", [PRINTABLE, "é✓𝄞 日本", "'; --", "a/b", "%2F", "a:b:c", "*", "0"])
async def test_an_id_may_have_any_printable_character(client: QueueClient, id: str) -> None:
    await client.enqueue(Job(id, kind=id, queue=id, priority=id))
    (claimed,) = await client.claim(queues=[id])
    await client.complete(claimed.claim)
    assert ((await client.record(id)).job.kind, await client.ids(JobState.DONE)) == (id, [id])


async def test_headers_and_results_are_kept_up_to_their_limits(client: QueueClient) -> None:
    headers = {"é": "✓" * 20_000, "n": ""}
    headers["n"] = "x" * (HEADERS_BYTES_MAX - sum(len(each.encode()) for pair in headers.items() for each in pair))
    await client.enqueue(Job("a", headers=headers))
    (claimed,) = await client.claim()
    assert claimed.job.headers == headers
    await client.settle(Complete(claimed.claim, bytes(PAYLOAD_BYTES_MAX)))
    assert (await client.record("a")).result == bytes(PAYLOAD_BYTES_MAX)


@pytest.mark.parametrize("letter", ["\x01", '"', "𝄞"])
async def test_a_job_at_all_limits_lives_its_whole_life(client: QueueClient, letter: str) -> None:
    long = letter * (HEADERS_BYTES_MAX // max(len(letter.encode()), json_size(letter)) - 8)
    for headers in ({letter: long}, {"job_id": long}):
        job = Job("a", headers=headers, payload=bytes(INLINE_MAX), timeout=MINUTE)
        await client.enqueue(job)
        for _ in range(HISTORY_MAX + 1):
            (claimed,) = await client.claim()
            assert claimed.job == job
            far = {"a": Progress(0.5, letter * NOTE_CHARS_MAX)}
            told = await client.jobs.heartbeat(client.worker, [claimed.claim], heartbeat_timeout=MINUTE, progress=far)
            assert told.mine == (True,)
            again = Requeue(claimed.claim, Budget.FAILURES, Reason.FAILED, error=letter * ERROR_CHARS_MAX)
            assert await client.settle(again) == DONE
        (claimed,) = await client.claim()
        assert await client.settle(Complete(claimed.claim, bytes(INLINE_MAX))) == DONE
        record = await client.record("a")
        assert (record.job.headers, record.result, len(record.history)) == (headers, bytes(INLINE_MAX), HISTORY_MAX)
        assert [*await client.jobs.delete([Delete(claimed.claim, JobState.DONE)])] == DONE


async def test_an_error_that_is_no_text_is_kept_as_near_as_can_be(client: QueueClient) -> None:
    first, second = await client.claimed("a"), await client.claimed("b")
    assert await client.settle(DeadLetterJob(first, Reason.FAILED, error="caf\udce9 \0")) == DONE
    assert await client.settle(Requeue(second, Budget.FAILURES, Reason.FAILED, error="caf\udce9 \0")) == DONE
    assert await client.move(Cancel("b", error="caf\udce9 \0")) == DONE
    for id in "ab":
        assert (await client.info(id)).error == "caf\\udce9 \0"
    assert [attempt.error for attempt in (await client.record("b")).history] == ["caf\\udce9 \0"]


async def test_headers_and_results_beyond_their_limits_are_refused(client: QueueClient) -> None:
    with pytest.raises(TooLarge, match=f"headers of {HEADERS_BYTES_MAX + 1} bytes"):
        await client.enqueue(Job("good"), Job("bad", headers={"n": "x" * HEADERS_BYTES_MAX}))
    assert await client.state("good") is None
    claim = await client.claimed("a")
    with pytest.raises(TooLarge, match=f"a result of {PAYLOAD_BYTES_MAX + 1} bytes"):
        await client.settle(Complete(claim, bytes(PAYLOAD_BYTES_MAX + 1)))
    assert await client.complete(claim) == [Outcome.DONE]


async def test_an_enqueue_is_all_or_none(client: QueueClient) -> None:
    with pytest.raises(TooLarge):
        await client.enqueue(Job("good"), Job("bad", payload=bytes(PAYLOAD_BYTES_MAX + 1)))
    assert await client.state("good") is None


async def test_a_batch_beyond_the_limit_is_refused(client: QueueClient) -> None:
    with pytest.raises(UsageError):
        await client.enqueue(*(Job(str(n)) for n in range(BATCH_MAX + 1)))
    assert (await client.count()).ready == 0


async def test_putting_nothing_is_nothing(client: QueueClient) -> None:
    assert (await client.enqueue(), await client.settle(), await client.move()) == ([], [], [])


async def test_an_enqueue_says_which_ids_were_known(client: QueueClient) -> None:
    await client.enqueue("b")
    answers = await client.enqueue("a", "b", "c", "a")
    assert (answers, (await client.count()).ready) == ([True, False, True, False], 3)


@pytest.mark.parametrize("state", list(JobState))
async def test_a_job_stays_as_it_is_when_its_id_is_enqueued_again(client: QueueClient, state: JobState) -> None:
    await client.enqueue(Job("a", payload=b"first"))
    if state is not JobState.READY:
        claim = await client.claim_one()
        await {JobState.RUNNING: client.heartbeat, JobState.DONE: client.complete, JobState.DEAD: client.dead_letter}[
            state
        ](claim)
    before = await client.record("a")
    answers = await client.enqueue(Job("a", payload=b"second"))
    assert (answers, await client.record("a")) == ([False], before)


# The order of service


async def test_jobs_of_one_queue_are_served_in_the_order_they_were_enqueued(client: QueueClient) -> None:
    await client.enqueue("a", "b")
    await client.enqueue("c")
    served = [claimed.job.id for _ in range(3) for claimed in await client.claim(limit=1)]
    assert served == ["a", "b", "c"]


async def test_the_first_queue_is_served_before_the_second(client: QueueClient) -> None:
    await client.enqueue(
        Job("l1"), Job("h1", queue="high"), Job("l2"), Job("h2", queue="high"), Job("x", queue="other")
    )
    served = [claimed.job.id for claimed in await client.claim(limit=3, queues=["high", "low"])]
    assert served == ["h1", "h2", "l1"]


async def test_a_claim_stays_within_its_limit_and_its_queues(client: QueueClient) -> None:
    await client.enqueue("a", "b", Job("x", queue="other"))
    served = [len(await client.claim(limit=1)), len(await client.claim()), len(await client.claim())]
    assert (served, await client.state("x")) == ([1, 1, 0], JobState.READY)


async def test_a_rescued_job_is_served_next(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("first")
    await client.enqueue("second", "third")
    await store.pass_time(LONGER)
    await client.rescue(claim)
    assert [claimed.job.id for claimed in await client.claim()] == ["first", "second", "third"]


async def test_a_released_job_is_served_next(client: QueueClient) -> None:
    claim = await client.claimed("first")
    await client.enqueue("second")
    await client.settle(Requeue(claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED))
    assert [claimed.job.id for claimed in await client.claim()] == ["first", "second"]


async def test_a_requeued_job_returns_to_the_queue_it_came_from(client: QueueClient) -> None:
    await client.enqueue(Job("a", queue="other"))
    (claimed,) = await client.claim(queues=["low", "other"])
    await client.fail(claimed.claim)
    assert [claimed.job.queue for claimed in await client.claim(queues=["other"])] == ["other"]


# Delays


async def test_a_delayed_job_is_not_served_before_its_time(client: QueueClient, store: Store) -> None:
    await client.enqueue(Job("a", delay=HEARTBEAT_TIMEOUT))
    early = await client.claim()
    counted = await client.count()
    await store.pass_time(LONGER)
    assert (early, counted.scheduled, counted.ready, len(await client.claim())) == ([], 1, 0, 1)


async def test_not_before_is_an_instant_of_the_backends_clock(client: QueueClient, store: Store) -> None:
    now = await client.now()
    await client.enqueue(Job("past", not_before=now - MINUTE), Job("future", not_before=now + HEARTBEAT_TIMEOUT))
    early = [claimed.job.id for claimed in await client.claim()]
    await store.pass_time(LONGER)
    assert (early, [claimed.job.id for claimed in await client.claim()]) == (["past"], ["future"])


async def test_the_later_of_delay_and_not_before_counts(client: QueueClient, store: Store) -> None:
    now = await client.now()
    await client.enqueue(
        Job("a", not_before=now + HEARTBEAT_TIMEOUT, delay=3 * HEARTBEAT_TIMEOUT),
        Job("b", not_before=now + 3 * HEARTBEAT_TIMEOUT),
    )
    await store.pass_time(2 * HEARTBEAT_TIMEOUT)
    assert await client.claim() == []


async def test_a_delayed_job_joins_the_end_of_its_queue(client: QueueClient, store: Store) -> None:
    await client.enqueue(Job("late", delay=HEARTBEAT_TIMEOUT))
    await client.enqueue("early")
    await store.pass_time(LONGER)
    assert [claimed.job.id for claimed in await client.claim()] == ["early", "late"]


async def test_a_delayed_job_says_when_it_becomes_ready_and_then_no_longer(client: QueueClient, store: Store) -> None:
    await client.enqueue(Job("a", delay=HEARTBEAT_TIMEOUT))
    info = await client.info("a")
    await store.pass_time(LONGER)
    counted = await client.count()
    assert (info.not_before, counted.ready, counted.scheduled) == (info.created_at + HEARTBEAT_TIMEOUT, 1, 0)


async def test_a_failed_job_waits_out_its_delay_without_its_worker(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await client.fail(claim, delay=HEARTBEAT_TIMEOUT)
    early = await client.claim()
    await store.pass_time(LONGER)
    (again,) = await client.claim()
    assert (early, again.failures, again.attempt) == ([], 1, 2)


async def test_a_waiting_job_is_never_touched_by_time(client: QueueClient, store: Store) -> None:
    await client.enqueue("a")
    before = await client.record("a")
    await store.pass_time(3 * HEARTBEAT_TIMEOUT)
    assert (list(await client.jobs.overdue(None, 10)), await client.record("a")) == ([], before)


# Holding


async def test_a_claim_has_a_deadline_one_heartbeat_timeout_from_now(client: QueueClient) -> None:
    await client.enqueue("a")
    claimed = await client.jobs.claim(["low"], 1, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh())
    (job,), info, until = claimed.jobs, await client.info("a"), claimed.at + HEARTBEAT_TIMEOUT
    assert (job.deadline, info.deadline, info.claim) == (until, until, job.claim)


async def test_a_running_job_is_not_served_again(client: QueueClient) -> None:
    await client.claimed("a")
    assert await client.claim() == []


async def test_a_live_worker_keeps_its_job(client: QueueClient, store: Store) -> None:
    claim = await client.claimed("a")
    await store.pass_time(HEARTBEAT_TIMEOUT / 2)
    mine = await client.heartbeat(claim)
    await store.pass_time(HEARTBEAT_TIMEOUT / 2)
    assert (mine, list(await client.jobs.overdue(None, 10)), await client.rescue(claim)) == ([True], [], CONFLICT)


async def test_a_heartbeat_past_the_deadline_keeps_a_job_that_was_not_rescued(
    client: QueueClient, store: Store
) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    mine = await client.heartbeat(claim)
    assert (mine, await client.rescue(claim), await client.complete(claim)) == ([True], CONFLICT, DONE)


async def test_a_completion_past_the_deadline_counts_for_a_job_that_was_not_rescued(
    client: QueueClient, store: Store
) -> None:
    claim = await client.claimed("a")
    await store.pass_time(LONGER)
    assert (await client.complete(claim), await client.state("a")) == (DONE, JobState.DONE)


async def test_a_heartbeat_says_which_claims_are_gone(client: QueueClient) -> None:
    await client.enqueue("a", "b")
    a, b = [claimed.claim for claimed in await client.claim()]
    await client.complete(a)
    assert await client.heartbeat(a, b, Claim("c", 1, "n")) == [False, True, False]


async def test_the_late_finish_of_a_rescued_job_is_refused(client: QueueClient, store: Store) -> None:
    late = await client.claimed("a")
    await store.pass_time(LONGER)
    await client.rescue(late)
    assert (await client.complete(late), await client.heartbeat(late), await client.state("a")) == (
        CONFLICT,
        [False],
        JobState.READY,
    )


async def test_only_the_newest_holder_can_finish(client: QueueClient, store: Store) -> None:
    late = await client.claimed("a")
    await store.pass_time(LONGER)
    await client.rescue(late)
    newest = await client.claim_one()
    assert (await client.complete(late), await client.complete(newest)) == (CONFLICT, DONE)


async def test_a_right_token_with_a_wrong_nonce_is_refused(client: QueueClient) -> None:
    claim = await client.claimed("a")
    forged = Claim(claim.id, claim.token, claim.nonce + "x")
    assert (await client.heartbeat(forged), await client.complete(forged), await client.state("a")) == (
        [False],
        CONFLICT,
        JobState.RUNNING,
    )


async def test_a_finished_job_cannot_be_finished_or_failed_again(client: QueueClient) -> None:
    claim = await client.claimed("a")
    await client.complete(claim)
    assert (await client.complete(claim), await client.fail(claim), await client.dead_letter(claim)) == (
        CONFLICT,
        CONFLICT,
        CONFLICT,
    )


# Settling


async def test_a_finish_keeps_its_result(client: QueueClient) -> None:
    claim = await client.claimed("a")
    await client.settle(Complete(claim, result=b"\x00 42"))
    record = await client.record("a")
    assert (record.result, record.info.state, record.info.deadline) == (b"\x00 42", JobState.DONE, None)


async def test_follow_up_jobs_come_with_the_finish(client: QueueClient) -> None:
    claim = await client.claimed("a")
    outcomes = await client.settle(
        Complete(claim, enqueues=(Job("next", payload=b"p"), Job("later", delay=HEARTBEAT_TIMEOUT)))
    )
    assert (outcomes, await client.ids(JobState.READY), (await client.count()).scheduled) == (
        DONE,
        ["next", "later"],
        1,
    )


async def test_follow_up_jobs_do_not_come_with_a_refused_finish(client: QueueClient) -> None:
    claim = await client.claimed("a")
    await client.move(Cancel("a"))
    assert (await client.settle(Complete(claim, enqueues=(Job("next"),))), await client.state("next")) == (
        CONFLICT,
        None,
    )


async def test_a_finish_with_a_bad_follow_up_changes_nothing(client: QueueClient) -> None:
    claim = await client.claimed("a")
    with pytest.raises(UsageError):
        await client.settle(Complete(claim, enqueues=(Job("ok"), Job("tab\there"))))
    assert (await client.state("a"), await client.state("ok")) == (JobState.RUNNING, None)


async def test_a_follow_up_whose_id_is_known_stays_as_it_is(client: QueueClient) -> None:
    await client.enqueue(Job("next", queue="other", payload=b"first"))
    claim = await client.claimed("a")
    outcomes = await client.settle(Complete(claim, enqueues=(Job("next", payload=b"second"),)))
    assert (outcomes, (await client.record("next")).job.payload) == (DONE, b"first")


@pytest.mark.parametrize(
    ("spends", "reason", "counts"),
    [
        (Budget.FAILURES, Reason.FAILED, (1, 0, 0)),
        (Budget.RESCUES, Reason.WORKER_DIED, (0, 1, 0)),
        (Budget.INTERRUPTIONS, Reason.INTERRUPTED, (0, 0, 1)),
    ],
)
async def test_a_requeue_spends_one_of_its_budget(
    client: QueueClient, spends: Budget, reason: Reason, counts: tuple[int, int, int]
) -> None:
    claim = await client.claimed("a")
    await client.settle(Requeue(claim, spends, reason, error="why"))
    record = await client.record("a")
    info, (attempt,) = record.info, record.history
    assert (info.failures, info.rescues, info.interruptions) == counts
    assert (attempt.number, attempt.worker, attempt.reason, attempt.error) == (1, "w1", reason, "why")


async def test_a_dead_job_keeps_bytes_reason_error_and_history(client: QueueClient) -> None:
    await client.enqueue(Job("a", payload=b"\xff\x00"))
    await client.fail(await client.claim_one())
    await client.settle(
        DeadLetterJob(await client.claim_one(), Reason.TIMEOUT, error="too slow", spends=Budget.FAILURES)
    )
    record = await client.record("a")
    info, payload = record.info, record.job.payload
    assert (payload, info.reason, info.error, info.failures) == (b"\xff\x00", Reason.TIMEOUT, "too slow", 2)
    assert [(each.number, each.reason) for each in record.history] == [(1, Reason.FAILED), (2, Reason.TIMEOUT)]


async def test_a_dead_job_is_not_served(client: QueueClient) -> None:
    await client.dead_letter(await client.claimed("a"))
    assert await client.claim() == []


async def test_a_job_that_always_fails_runs_once_more_than_it_may_fail(client: QueueClient, store: Store) -> None:
    policy, runs = RetryPolicy(failures_max=3, base=HEARTBEAT_TIMEOUT / 4, max=HEARTBEAT_TIMEOUT), 0
    await client.enqueue("a")
    while await client.state("a") is not JobState.DEAD:
        for claimed in await client.claim():
            runs += 1
            await client.settle(policy.after_failure(claimed.claim, claimed.failures, u=0.5))
        await store.pass_time(LONGER)
    assert (runs, (await client.info("a")).failures) == (4, 4)


async def test_the_newest_attempts_are_remembered(client: QueueClient) -> None:
    await client.enqueue("a")
    for _ in range(HISTORY_MAX + 3):
        await client.fail(await client.claim_one())
    history = (await client.record("a")).history
    assert [attempt.number for attempt in history] == list(range(4, HISTORY_MAX + 4))


async def test_a_long_error_is_cut(client: QueueClient) -> None:
    claim = await client.claimed("a")
    await client.settle(DeadLetterJob(claim, Reason.FAILED, error="é" * (ERROR_CHARS_MAX + 1)))
    assert (await client.info("a")).error == "é" * ERROR_CHARS_MAX


async def test_every_settlement_of_a_batch_has_its_own_outcome(client: QueueClient) -> None:
    await client.enqueue("a", "b", "c")
    a, b, c = [claimed.claim for claimed in await client.claim()]
    await client.move(Cancel("b"))
    requeue = Requeue(c, Budget.FAILURES, Reason.FAILED)
    outcomes = await client.settle(Complete(a), Complete(b), requeue, Complete(c))
    assert outcomes == [Outcome.DONE, Outcome.CONFLICT, Outcome.DONE, Outcome.CONFLICT]


# How many finished jobs are kept


async def test_no_more_done_jobs_are_kept_than_allowed(open_store: OpenStore) -> None:
    store = await open_store(done_max=2)
    client = QueueClient(store.jobs)
    for id in "abcd":
        await client.complete(await client.claimed(id))
        await store.pass_time(timedelta(milliseconds=2))
    assert (await client.ids(JobState.DONE), (await client.count()).done) == (["c", "d"], 2)


async def test_done_jobs_need_not_be_kept_at_all(open_store: OpenStore) -> None:
    client = QueueClient((await open_store(done_max=0)).jobs)
    await client.enqueue(Job("a", lasting=True), Job("b"))
    outcomes = await client.complete(*[claimed.claim for claimed in await client.claim()])
    assert (outcomes, await client.ids(JobState.DONE)) == (DONE * 2, [])
    assert await client.enqueue("a", "b") == [False, True]
