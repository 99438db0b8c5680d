"""A job kept as one record, under whatever is asked of it in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, strategies as st

from lifecycle import Step, budget_spent, legal, token_grew
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.known_ids import plain
from wrasse.jobs.record_queue.store import Recorded, decode_recorded
from wrasse.ports.jobs import (
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
    RequeueDead,
)
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import StoredJob

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SILENCE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)

seconds = st.integers(0, 60).map(lambda n: timedelta(seconds=n))
delays = st.sampled_from([timedelta(0), SECOND, SILENCE])
budgets = st.sampled_from(Budget)
asked = st.tuples(
    st.sampled_from(["take", "beat", "finish", "requeue", "bury", "rescue", "rescue dead", "revive", "cancel"]),
    seconds,
    delays,
    budgets,
    st.booleans(),  # by the current holder, or by an earlier one
)


def added(**more: object) -> StoredJob:
    return rules.added(Job("a", **more), NOW, rank=rules.back(NOW), request="p")  # type: ignore[arg-type]


def taken(record: StoredJob, at: datetime = NOW, nonce: str = "n") -> StoredJob:
    held = rules.take(record, at, worker="w", nonce=nonce, silence=SILENCE)
    assert held is not None
    return held


def asking(record: StoredJob, what: str, at: datetime, delay: timedelta, budget: Budget, hold: Claim) -> tuple:
    """What a request makes of a record, the step it was, and what it spends."""
    rank = rules.back(at)
    requeue, bury = Requeue(hold, budget, Reason.FAILED, delay=delay), DeadLetterJob(hold, Reason.FAILED, spends=budget)
    match what:
        case "take":
            after = rules.take(record, at, worker="w", nonce=f"{at}", silence=SILENCE)
            return after, Step.TAKE, None
        case "beat":
            return rules.beat(record, hold, at, silence=SILENCE), Step.BEAT, None
        case "finish":
            return rules.settle(record, Complete(hold), at, request="s", rank=rank), Step.FINISH, None
        case "requeue":
            return rules.settle(record, requeue, at, request="s", rank=rank), Step.REQUEUE, budget
        case "bury":
            return rules.settle(record, bury, at, request="s", rank=rank), Step.BURY, budget
        case "rescue":
            return rules.move(record, requeue, at, rank=rank), Step.REQUEUE, budget
        case "rescue dead":
            return rules.move(record, bury, at, rank=rank), Step.BURY, budget
        case "revive":
            return rules.move(record, RequeueDead(hold, delay), at, rank=rank), Step.REVIVE, None
        case _:
            return rules.move(record, Cancel("a"), at, rank=rank), Step.CANCEL, None


@given(st.lists(asked, max_size=25))
def test_whatever_is_asked_only_legal_moves_are_made(requests: list[tuple]) -> None:
    record, at, holds = added(), NOW, [Claim("a", 1, "never")]
    for what, passed, delay, budget, current in requests:
        at += passed
        hold = record.state.hold if current else holds[0]
        before = record.at(at).state
        after, step, spends = asking(record, what, at, delay, budget, hold)
        if after is None:
            continue
        assert legal(step, before.place, after.state.place)
        assert token_grew(step, before.token, after.state.token)
        if step is not Step.REVIVE:
            counts = [(s.failures, s.rescues, s.interruptions) for s in (before, after.state)]
            assert budget_spent(spends, *counts)
        assert current or step in (Step.TAKE, Step.CANCEL), "an earlier holder moves nothing"
        if what.startswith("rescue"):
            assert before.until is not None
            assert before.until <= at
        holds.append(before.hold)
        record = after
        recorded = Recorded(record, "mark")
        assert decode_recorded(plain(record.state.id), msgspec.json.encode(recorded)) == recorded


@given(delay=delays, passed=seconds)
def test_a_job_is_taken_when_it_is_ready_and_never_before(delay: timedelta, passed: timedelta) -> None:
    record = added(delay=delay)

    held = rules.take(record, NOW + passed, worker="w", nonce="n", silence=SILENCE)

    assert (held is not None) == (passed >= delay)


@given(passed=seconds)
def test_time_alone_changes_no_place(passed: timedelta) -> None:
    records = [added(), added(delay=SECOND), taken(added())]

    assert [record.at(NOW + passed).state.place for record in records] == [r.state.place for r in records]


def test_a_job_that_is_given_back_goes_before_those_that_wait() -> None:
    held = taken(added())
    again = Requeue(held.state.hold, Budget.INTERRUPTIONS, Reason.INTERRUPTED)

    earlier = rules.settle(held, again, NOW + SECOND, request="s", rank=rules.back(NOW + SECOND))
    later = rules.settle(held, again, NOW + 2 * SECOND, request="s", rank=rules.back(NOW + 2 * SECOND))

    assert earlier is not None
    assert later is not None
    assert (later.rank < earlier.rank < 0 < held.rank, later.served_next) == (True, True)


def test_a_request_that_settled_a_job_is_known_again() -> None:
    held = taken(added())
    hold = held.state.hold

    done = rules.settle(held, Complete(hold, result=b"r"), NOW, request="s", rank=0)

    assert done is not None
    assert rules.settled_by(done, hold, "s")
    assert not rules.settled_by(done, hold, "another")
    assert not rules.settled_by(held, hold, "s")


def test_a_result_that_is_kept_holds_its_job() -> None:
    held = taken(added(keep=SILENCE))
    done = rules.settle(held, Complete(held.state.hold), NOW, request="s", rank=0)
    assert done is not None
    delete = Delete(done.state.hold, Place.DONE)

    assert not rules.deletable(done, delete, NOW + SECOND)
    assert rules.deletable(done, delete, NOW + SILENCE)


def test_progress_carries_the_time_of_its_beat() -> None:
    held = taken(added())

    told = rules.beat(held, held.state.hold, NOW + SECOND, silence=SILENCE, progress=Progress(0.5, "half"))

    assert told is not None
    assert told.progress == Progress(0.5, "half", NOW + SECOND)


def test_bytes_that_are_no_job_are_told_as_such() -> None:
    with pytest.raises(StoreBroken, match="not a job"):
        decode_recorded("key", b'{"stored": 1}')
