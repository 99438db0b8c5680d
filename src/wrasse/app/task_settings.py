"""The settings of tasks, as the design document of the sweeper writes them: the types there are, and how often what is
stuck among them is looked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from wrasse.app.setting_key import Key
from wrasse.duration import format_duration
from wrasse.errors import UsageError
from wrasse.jobs.stream_tasks.fields import check_task_type
from wrasse.jobs.stream_tasks.queue import TaskType

TYPE_KEYS = "workers, step_timeout, max_retries"
STEP_MIN = timedelta(seconds=5)
_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class TaskTypeSettings:
    """One type of tasks."""

    workers: Annotated[int, Key("how many of its tasks one process runs at once", seed=True)] = 4
    step_timeout: Annotated[
        timedelta,
        Key("how long a task may go without a sign of life; 0: as long as sweeper.stuck_threshold says", seed=True),
    ] = _ZERO
    max_retries: Annotated[
        int, Key("how often a task is tried again, whether it failed or was stuck: 3 means 4 runs", seed=True)
    ] = 3


@dataclass(frozen=True, slots=True)
class StuckTasksSettings:
    """How stuck tasks are looked for, in the design document's words."""

    interval: Annotated[timedelta, Key("how often stuck tasks are looked for")] = timedelta(seconds=30)
    lock_ttl: Annotated[
        timedelta, Key("on Redis: how long the key gbe:lock:sweeper lasts without renewal")
    ] = timedelta(seconds=60)
    stuck_threshold: Annotated[
        timedelta, Key("how long a task of a type that says nothing else may go without a sign of life")
    ] = timedelta(seconds=300)


def threshold(own: TaskTypeSettings, own_sweep: StuckTasksSettings) -> timedelta:
    """How long a task of this type may go without a sign of life."""
    return own.step_timeout or own_sweep.stuck_threshold


def task_types(types: Mapping[str, TaskTypeSettings], own_sweep: StuckTasksSettings) -> tuple[TaskType, ...]:
    """The types, as the queue of tasks wants them."""
    return tuple(TaskType(name, own.max_retries, threshold(own, own_sweep)) for name, own in types.items())


def task_rules(
    types: Mapping[str, TaskTypeSettings], own_sweep: StuckTasksSettings, queues: Mapping[str, str]
) -> Iterator[tuple[bool, str, str, str]]:
    """What is right: whether it is, of which setting, what is wrong, and what to write."""
    for name, own in types.items():
        try:
            check_task_type(name)
        except UsageError as why:
            yield False, "task_types", f"has {why.message}", why.do
        path = f"task_types.{name}"
        yield (
            name not in queues.values(),
            "task_types",
            f"has the type {name!r}, which is a queue of worker.queues too",
            "give one of them another name",
        )
        yield own.workers >= 1, "task_types", f"{path}.workers is {own.workers}", "use 1 or more"
        yield own.max_retries >= 0, "task_types", f"{path}.max_retries is {own.max_retries}", "use 0 or more"
        span = threshold(own, own_sweep)
        yield (
            span >= STEP_MIN,
            "task_types",
            f"{path}.step_timeout is {format_duration(span)}: a busy machine would lose its tasks to others",
            "use 5s or more",
        )
    for name in ("interval", "lock_ttl", "stuck_threshold"):
        yield getattr(own_sweep, name) > _ZERO, f"sweeper.{name}", "is 0", "use a time such as 30s"
