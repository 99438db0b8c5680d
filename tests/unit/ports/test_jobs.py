"""The places of a job and the moves between them."""

from __future__ import annotations

import pytest

from lifecycle import RULES, Step, budget_spent, legal, steps_between, token_grew
from wrasse.ports.jobs import Budget, JobState

PLACES = (None, *JobState)


def test_every_step_has_one_rule() -> None:
    assert sorted(rule.step for rule in RULES) == sorted(Step)


def test_a_finished_job_never_runs_again_in_one_step() -> None:
    assert not steps_between(JobState.DONE, JobState.RUNNING) | steps_between(JobState.DEAD, JobState.RUNNING)


def test_a_done_job_can_only_be_deleted() -> None:
    assert {step for place in PLACES for step in steps_between(JobState.DONE, place)} == {Step.DELETE}


def test_a_running_job_is_never_deleted() -> None:
    assert not legal(Step.DELETE, JobState.RUNNING, None)


def test_every_place_can_be_reached_and_left() -> None:
    for state in JobState:
        assert any(steps_between(before, state) for before in PLACES if before is not state)
        assert any(steps_between(state, after) for after in PLACES if after is not state)


@pytest.mark.parametrize("step", Step)
def test_no_step_moves_a_token_back(step: Step) -> None:
    assert not token_grew(step, before=2, after=1)


def test_a_claim_makes_a_new_token_and_a_heartbeat_does_not() -> None:
    assert not token_grew(Step.CLAIM, 2, 2)
    assert not token_grew(Step.HEARTBEAT, 2, 3)


def test_a_budget_is_spent_by_exactly_one_and_no_other_with_it() -> None:
    assert budget_spent(Budget.RESCUES, (1, 1, 1), (1, 2, 1))
    assert not budget_spent(Budget.RESCUES, (1, 1, 1), (2, 2, 1))
    assert not budget_spent(Budget.RESCUES, (1, 1, 1), (1, 1, 1))
    assert budget_spent(None, (1, 1, 1), (1, 1, 1))
