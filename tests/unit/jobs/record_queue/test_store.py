"""A job kept as one record, under whatever is asked of it in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from lifecycle import Step, budget_spent, legal, token_grew
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.record_names import plain
from wrasse.jobs.record_queue.store import Recorded, decode_recorded, encode_recorded
from wrasse.ports.jobs import (
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
    RequeueDead,
)
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import StoredJob

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
SECOND = timedelta(seconds=1)

seconds = st.integers(0, 60).map(lambda n: timedelta(seconds=n))
delays = st.sampled_from([timedelta(0), SECOND, HEARTBEAT_TIMEOUT])
budgets = st.sampled_from(Budget)
asked = st.tuples(
    st.sampled_from(
        ["claim", "heartbeat", "complete", "requeue", "dead-letter", "rescue", "rescue dead", "requeue dead", "cancel"]
    ),
    seconds,
    delays,
    budgets,
    st.booleans(),  # by the current holder, or by an earlier one
)


def added(**more: object) -> StoredJob:
    return rules.added(Job("a", **more), NOW, rank=rules.back(NOW), request="p")  # type: ignore[arg-type]


def taken(record: StoredJob, at: datetime = NOW, nonce: str = "n") -> StoredJob:
    held = rules.claim(record, at, worker="w", nonce=nonce, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert held is not None
    return held


def asking(record: StoredJob, what: str, at: datetime, delay: timedelta, budget: Budget, claim: Claim) -> tuple:
    """What a request makes of a record, the step it was, and what it spends."""
    rank = rules.back(at)
    requeue, dead_letter = (
        Requeue(claim, budget, Reason.FAILED, delay=delay),
        DeadLetterJob(claim, Reason.FAILED, spends=budget),
    )
    match what:
        case "claim":
            after = rules.claim(record, at, worker="w", nonce=f"{at}", heartbeat_timeout=HEARTBEAT_TIMEOUT)
            return after, Step.CLAIM, None
        case "heartbeat":
            return rules.heartbeat(record, claim, at, heartbeat_timeout=HEARTBEAT_TIMEOUT), Step.HEARTBEAT, None
        case "complete":
            return rules.settle(record, Complete(claim), at, request="s", rank=rank), Step.COMPLETE, None
        case "requeue":
            return rules.settle(record, requeue, at, request="s", rank=rank), Step.REQUEUE, budget
        case "dead-letter":
            return rules.settle(record, dead_letter, at, request="s", rank=rank), Step.DEAD_LETTER, budget
        case "rescue":
            return rules.move(record, requeue, at, rank=rank), Step.REQUEUE, budget
        case "rescue dead":
            return rules.move(record, dead_letter, at, rank=rank), Step.DEAD_LETTER, budget
        case "requeue dead":
            return rules.move(record, RequeueDead(claim, delay), at, rank=rank), Step.REQUEUE_DEAD, None
        case _:
            return rules.move(record, Cancel("a"), at, rank=rank), Step.CANCEL, None


@given(st.lists(asked, max_size=25))
def test_whatever_is_asked_only_legal_moves_are_made(requests: list[tuple]) -> None:
    record, at, claims = added(), NOW, [Claim("a", 1, "never")]
    for what, passed, delay, budget, current in requests:
        at += passed
        claim = record.info.claim if current else claims[0]
        before = record.at(at).info
        after, step, spends = asking(record, what, at, delay, budget, claim)
        if after is None:
            continue
        assert legal(step, before.state, after.info.state)
        assert token_grew(step, before.token, after.info.token)
        if step is not Step.REQUEUE_DEAD:
            counts = [(s.failures, s.rescues, s.interruptions) for s in (before, after.info)]
            assert budget_spent(spends, *counts)
        assert current or step in (Step.CLAIM, Step.CANCEL), "an earlier worker moves nothing"
        if what.startswith("rescue"):
            assert before.deadline is not None
            assert before.deadline <= at
        claims.append(before.claim)
        record = after
        recorded = Recorded(record, "mark")
        assert decode_recorded(plain(record.info.id), encode_recorded(recorded)) == recorded


@given(delay=delays, passed=seconds)
def test_a_job_is_taken_when_it_is_ready_and_never_before(delay: timedelta, passed: timedelta) -> None:
    record = added(delay=delay)

    held = rules.claim(record, NOW + passed, worker="w", nonce="n", heartbeat_timeout=HEARTBEAT_TIMEOUT)

    assert (held is not None) == (passed >= delay)


@given(passed=seconds)
def test_time_alone_changes_no_place(passed: timedelta) -> None:
    records = [added(), added(delay=SECOND), taken(added())]

    assert [record.at(NOW + passed).info.state for record in records] == [r.info.state for r in records]


def test_a_job_that_is_given_back_goes_before_those_that_wait() -> None:
    held = taken(added())
    again = Requeue(held.info.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED)

    earlier = rules.settle(held, again, NOW + SECOND, request="s", rank=rules.back(NOW + SECOND))
    later = rules.settle(held, again, NOW + 2 * SECOND, request="s", rank=rules.back(NOW + 2 * SECOND))

    assert earlier is not None
    assert later is not None
    assert (later.rank < earlier.rank < 0 < held.rank, later.served_next) == (True, True)


def test_a_request_that_settled_a_job_is_known_again() -> None:
    held = taken(added())
    claim = held.info.claim

    done = rules.settle(held, Complete(claim, result=b"r"), NOW, request="s", rank=0)

    assert done is not None
    assert rules.settled_by(done, claim, "s")
    assert not rules.settled_by(done, claim, "another")
    assert not rules.settled_by(held, claim, "s")


def test_a_result_that_is_kept_holds_its_job() -> None:
    held = taken(added(keep=HEARTBEAT_TIMEOUT))
    done = rules.settle(held, Complete(held.info.claim), NOW, request="s", rank=0)
    assert done is not None
    delete = Delete(done.info.claim, JobState.DONE)

    assert not rules.deletable(done, delete, NOW + SECOND)
    assert rules.deletable(done, delete, NOW + HEARTBEAT_TIMEOUT)


def test_progress_carries_the_time_of_its_beat() -> None:
    held = taken(added())

    told = rules.heartbeat(
        held, held.info.claim, NOW + SECOND, heartbeat_timeout=HEARTBEAT_TIMEOUT, progress=Progress(0.5, "half")
    )

    assert told is not None
    assert told.progress == Progress(0.5, "half", NOW + SECOND)


def test_bytes_that_are_no_job_are_told_as_such() -> None:
    with pytest.raises(StoreBroken, match="not a job"):
        decode_recorded("key", b'{"stored": 1}')
