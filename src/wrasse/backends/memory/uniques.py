"""Names of which there may be one job at a time. Bounded: every new name forgets some that stand in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.ports.jobs import Job

_FORGOTTEN = 2  # names looked at for every new one


@dataclass(frozen=True, slots=True)
class _Name:
    id: str
    until: datetime | None  # None: until the job is finished


class Uniques:
    """Unique names, and the job that has each. `unfinished` says whether a job is still to be done."""

    __slots__ = ("_names", "_unfinished")

    def __init__(self, unfinished: Callable[[str], bool]) -> None:
        self._unfinished = unfinished
        self._names: dict[str, _Name] = {}

    def in_the_way(self, job: Job, now: datetime) -> str | None:
        """The id of the job that has this one's name, if it still counts."""
        name = self._names.get(job.unique)
        return name.id if name is not None and self._counts(name, now) else None

    def take(self, job: Job, now: datetime) -> None:
        """Gives the name to a job that was just put."""
        for old in [name for name, _ in zip(self._names, range(_FORGOTTEN), strict=False)]:
            held = self._names.pop(old)
            if self._counts(held, now):
                self._names[old] = held  # to the end: the next look is at others
        self._names[job.unique] = _Name(job.id, now + job.window if job.window > timedelta(0) else None)

    def _counts(self, name: _Name, now: datetime) -> bool:
        return self._unfinished(name.id) if name.until is None else now < name.until
