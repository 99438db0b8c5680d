"""Where the parts of a queue on records are stored; pure.

    <root>/jobs/<key>.json                    the record: everything about one job; every change is one write of it
    <root>/ready/<queue>/<turn>.<key>.<mark>  a sign that a job is ready, in the order of service
    <root>/done/<when>.<key>.<mark>.<queue>   a sign that a job is done, by when it finished; likewise `dead`
    <root>/due/<minute>/<key>                 found when the deadline of a held job should have passed
    <root>/parts/<key>.<mark>                 a payload or result that is too large for the record

A sign is a hint without bytes, so that one listing tells what is where. It is there before the record that it is for,
and goes after it. It counts only while the record has its mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.jobs.record_core.known_ids import plain
from wrasse.ports.job import Place
from wrasse.ports.job_transitions import StoredJob
from wrasse.ports.records import Collection

_MIDDLE = 1 << 63  # turns below zero come first


@dataclass(frozen=True, slots=True)
class Names:
    """The names below one root."""

    root: str = "jobs"

    @property
    def jobs(self) -> Collection:
        """The records of the jobs."""
        root = self.root
        return Collection(f"{root}/jobs", f"{root}/due", f"{root}/due/buckets.json", width=timedelta(minutes=1))

    @property
    def workers(self) -> Collection:
        """The records of who works them."""
        return Collection.named(f"{self.root}/workers", width=timedelta(minutes=1))

    @property
    def ids(self) -> Collection:
        """Ids that are remembered after their job is gone."""
        return Collection.named(f"{self.root}/ids")

    def folder(self, place: Place) -> str:
        """Where the signs of a place are."""
        return f"{self.root}/{place.value}/"

    def queue(self, queue: str) -> str:
        """Where the signs of what is ready in one queue are."""
        return f"{self.folder(Place.READY)}{plain(queue)}/"

    def part(self, key: str, mark: str) -> str:
        """Of what is too large for a record."""
        return f"{self.root}/parts/{key}.{mark}"

    def sign(self, stored: StoredJob, mark: str) -> str | None:
        """The sign of a job; a held one has none."""
        state, key = stored.state, plain(stored.state.id)
        if state.place is Place.READY:
            return f"{self.queue(state.queue)}{stored.rank + _MIDDLE:020d}.{key}.{mark}"
        if state.place is Place.HELD:
            return None
        return f"{self.folder(state.place)}{stored.turn:020d}.{key}.{mark}.{plain(state.queue)}"


@dataclass(frozen=True, slots=True)
class Sign:
    """What the name of a sign says. `turn` is in nanoseconds where the job is ready, else when it finished."""

    name: str
    version: str
    turn: int
    key: str
    mark: str
    queue: str
    made_at: datetime | None = None

    @property
    def ready_at(self) -> int:
        """Of a ready job: since when, in microseconds; what was given back is ready since then."""
        return abs(self.turn) // 1_000


def read_sign(name: str, version: str, made_at: datetime | None = None) -> Sign | None:
    """The sign of this name; None if it is not one of ours."""
    folder, _, last = name.rpartition("/")
    parts = last.split(".")
    if len(parts) < 3 or not parts[0].isdigit():
        return None
    ready = len(parts) == 3
    turn = int(parts[0]) - (_MIDDLE if ready else 0)
    queue = folder.rpartition("/")[2] if ready else parts[3]
    return Sign(name, version, turn, parts[1], parts[2], queue, made_at)
