"""The four states of a job and the legal moves between them; pure.

Everything that affects which state a job may be in is in this table: backends implement it, the simulation's law checks
every write against it, and the documentation draws it. A job is ready, running, done or dead; None is outside: not
enqueued yet, or deleted. Nothing but the moves below changes a state, and time alone never does.

A token belongs to one claim. It only grows: `claim` makes a new one, and so does whatever takes a job from its holder,
so that the holder is refused from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wrasse.ports.jobs import Budget, JobState


class Step(StrEnum):
    """The moves of a job."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"
    REQUEUE_DEAD = "requeue_dead"
    CANCEL = "cancel"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Rule:
    """One legal move: from which states, to which state, and who may make it."""

    step: Step
    before: frozenset[JobState | None]
    after: JobState | None
    by: str


def _rule(step: Step, before: tuple[JobState | None, ...], after: JobState | None, by: str) -> Rule:
    return Rule(step, frozenset(before), after, by)


RULES: tuple[Rule, ...] = (
    _rule(Step.ENQUEUE, (None,), JobState.READY, "anybody"),
    _rule(Step.CLAIM, (JobState.READY,), JobState.RUNNING, "a worker"),
    _rule(Step.HEARTBEAT, (JobState.RUNNING,), JobState.RUNNING, "its holder"),
    _rule(Step.COMPLETE, (JobState.RUNNING,), JobState.DONE, "its holder"),
    _rule(Step.REQUEUE, (JobState.RUNNING,), JobState.READY, "its holder, or a sweep once the deadline has passed"),
    _rule(Step.DEAD_LETTER, (JobState.RUNNING,), JobState.DEAD, "its holder, or a sweep once the deadline has passed"),
    _rule(Step.REQUEUE_DEAD, (JobState.DEAD,), JobState.READY, "anybody"),
    _rule(Step.CANCEL, (JobState.READY, JobState.RUNNING), JobState.DEAD, "anybody"),
    _rule(Step.DELETE, (JobState.READY, JobState.DONE, JobState.DEAD), None, "anybody"),
)

_BY_STEP = {rule.step: rule for rule in RULES}


def legal(step: Step, before: JobState | None, after: JobState | None) -> bool:
    """May this step take a job from here to there?"""
    rule = _BY_STEP[step]
    return before in rule.before and after == rule.after


def steps_between(before: JobState | None, after: JobState | None) -> frozenset[Step]:
    """The steps that lead from one state to another; empty where no single step does."""
    return frozenset(rule.step for rule in RULES if before in rule.before and after == rule.after)


def token_grew(step: Step, before: int, after: int) -> bool:
    """Did the token move as it must: new at a claim, never back, and unmoved by a heartbeat?"""
    if step is Step.CLAIM:
        return after > before
    return after == before if step is Step.HEARTBEAT else after >= before


def budget_spent(spends: Budget | None, before: tuple[int, int, int], after: tuple[int, int, int]) -> bool:
    """Did exactly the named one of (failures, rescues, interruptions) grow by exactly one?"""
    order = (Budget.FAILURES, Budget.RESCUES, Budget.INTERRUPTIONS)
    return all(after[i] - before[i] == (1 if budget is spends else 0) for i, budget in enumerate(order))
