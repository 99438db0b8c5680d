"""The four places of a job and the legal moves between them; pure.

Everything that affects where a job may be is in this table: backends implement it, the simulation's law checks every
write against it, and the documentation draws it. A job is ready, held, done or dead; None is outside: not put yet, or
deleted. Nothing but the moves below changes a place, and time alone never does.

A token belongs to one hold. It only grows: `take` makes a new one, and so does whoever takes a job from its holder, so
that the holder is refused from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wrasse.ports.jobs import Budget, JobState


class Step(StrEnum):
    """The moves of a job."""

    PUT = "put"
    TAKE = "take"
    BEAT = "beat"
    FINISH = "finish"
    REQUEUE = "requeue"
    BURY = "bury"
    REVIVE = "revive"
    CANCEL = "cancel"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Rule:
    """One legal move: from which places, to which place, and who may make it."""

    step: Step
    before: frozenset[JobState | None]
    after: JobState | None
    by: str


def _rule(step: Step, before: tuple[JobState | None, ...], after: JobState | None, by: str) -> Rule:
    return Rule(step, frozenset(before), after, by)


RULES: tuple[Rule, ...] = (
    _rule(Step.PUT, (None,), JobState.READY, "anybody"),
    _rule(Step.TAKE, (JobState.READY,), JobState.RUNNING, "a worker"),
    _rule(Step.BEAT, (JobState.RUNNING,), JobState.RUNNING, "its holder"),
    _rule(Step.FINISH, (JobState.RUNNING,), JobState.DONE, "its holder"),
    _rule(Step.REQUEUE, (JobState.RUNNING,), JobState.READY, "its holder, or a sweep once the deadline has passed"),
    _rule(Step.BURY, (JobState.RUNNING,), JobState.DEAD, "its holder, or a sweep once the deadline has passed"),
    _rule(Step.REVIVE, (JobState.DEAD,), JobState.READY, "anybody"),
    _rule(Step.CANCEL, (JobState.READY, JobState.RUNNING), JobState.DEAD, "anybody"),
    _rule(Step.DELETE, (JobState.READY, JobState.DONE, JobState.DEAD), None, "anybody"),
)

_BY_STEP = {rule.step: rule for rule in RULES}


def legal(step: Step, before: JobState | None, after: JobState | None) -> bool:
    """May this step take a job from here to there?"""
    rule = _BY_STEP[step]
    return before in rule.before and after == rule.after


def steps_between(before: JobState | None, after: JobState | None) -> frozenset[Step]:
    """The steps that lead from one place to another; empty where no single step does."""
    return frozenset(rule.step for rule in RULES if before in rule.before and after == rule.after)


def token_grew(step: Step, before: int, after: int) -> bool:
    """Did the token move as it must: new at a take, never back, and unmoved by a beat?"""
    if step is Step.TAKE:
        return after > before
    return after == before if step is Step.BEAT else after >= before


def budget_spent(spends: Budget | None, before: tuple[int, int, int], after: tuple[int, int, int]) -> bool:
    """Did exactly the named one of (failures, rescues, interruptions) grow by exactly one?"""
    order = (Budget.FAILURES, Budget.RESCUES, Budget.INTERRUPTIONS)
    return all(after[i] - before[i] == (1 if budget is spends else 0) for i, budget in enumerate(order))
