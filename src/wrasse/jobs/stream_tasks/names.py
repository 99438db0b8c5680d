"""Tasks by name: which types and ids there may be, and the record, the streams and the group of each; pure.

The names are those of the design document: the record of a task is `gbe:state:tasks:<type>:<id>`, its type has the
streams `gbe.tasks.<type>.queue`, `.progress` and `.terminal`, and workers share the queue as `<type>-workers`.
"""

from __future__ import annotations

import re
from datetime import timedelta

from wrasse.errors import UsageError
from wrasse.ports.records import Collection

ROOT = "gbe"
TASKS = Collection(
    data="gbe:state:tasks",
    index="gbe:state:tasks-due",
    buckets="gbe:state:tasks-due/buckets.json",
    width=timedelta(minutes=1),
    flat=True,
)
WORKERS = Collection.named("wrasse-tasks/workers", width=timedelta(minutes=1))
KNOWN_IDS = Collection.named("wrasse-tasks/ids")

ERRORS = f"{ROOT}.events.system.error"
SWEEPS = f"{ROOT}.events.system.sweep"

_TYPE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_task_type(task_type: str) -> None:
    """Refuses what is no type, with why."""
    if not _TYPE.fullmatch(task_type):
        raise UsageError(
            f"the task type {task_type[:60]!r}",
            do="use 1 to 48 of a-z, 0-9 and -, with no - at either end",
        )


def check_task_id(id: str) -> None:
    """Refuses what is no id, with why."""
    if not _ID.fullmatch(id):
        raise UsageError(f"the task id {id[:80]!r}", do="use 1 to 64 of A-Z, a-z, 0-9, _ and -")


def record_key(task_type: str, id: str) -> str:
    """The key of a task's record in its collection."""
    return f"{task_type}:{id}"


def wire_key(task_type: str, id: str) -> str:
    """What the record is called on the wire."""
    return f"{TASKS.data}:{task_type}:{id}"


def names_in(key: str) -> tuple[str, str]:
    """Type and id of a record's key."""
    task_type, _, id = key.partition(":")
    return task_type, id


def id_in(wire: str, task_type: str) -> str:
    """The id in a record's name on the wire, whichever of the origin's two spellings it has; empty if it is none."""
    name = wire.replace(".", ":")
    start = wire_key(task_type, "")
    return name.removeprefix(start) if name.startswith(start) else ""


def queue_of(task_type: str) -> str:
    """The stream that says which tasks wait."""
    return f"{ROOT}.tasks.{task_type}.queue"


def progress_of(task_type: str) -> str:
    """The stream that says how far tasks are."""
    return f"{ROOT}.tasks.{task_type}.progress"


def terminal_of(task_type: str) -> str:
    """The stream that says how tasks ended."""
    return f"{ROOT}.tasks.{task_type}.terminal"


def group_of(task_type: str) -> str:
    """The group of all workers of a type."""
    return f"{task_type}-workers"
