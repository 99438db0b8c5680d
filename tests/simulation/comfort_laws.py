"""The laws of what people expect of a job queue: slots, groups, limits, unique names and results.

They are checked at every write, from what was asked for and what became of it, and know nothing of how a backend keeps
count. Laws about every job are in `laws.py` and hold here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from faults import FaultyRecords, Network, Script, arrived_late
from simulation.laws import LawfulJobs, Ledger, WatchedShelves
from virtual_time import START, VirtualClock
from wrasse.backends.memory.jobs import MemoryJobs
from wrasse.backends.memory.status_index import JobRow
from wrasse.jobs.periodic import LATE_MAX, Every, Missed
from wrasse.jobs.scheduler import PeriodicMark
from wrasse.ports.jobs import Enqueued, Job, JobGroup, JobRecord, JobState, Rate
from wrasse.ports.records import IndexEntry, Records, Written
from wrasse.ports.streams import Draft

SLOW = Rate("slow", 3, timedelta(seconds=20))
# What a repeater needs from its decision to the stored job, when nothing arrives late: its patience and a bad clock.
DECIDED_WITHIN = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Plan:
    """A periodic job as its user means it."""

    schedule: Every
    missed: Missed


PLANS = {
    "all": Plan(Every(timedelta(seconds=20)), Missed.ALL),
    "once": Plan(Every(timedelta(seconds=150)), Missed.ONCE),
    "skip": Plan(Every(timedelta(seconds=150)), Missed.SKIP),
}


@dataclass(slots=True)
class Comforts:
    """What was asked for and what became of it."""

    ledger: Ledger
    clock: VirtualClock
    slots: Counter[tuple[str, str]] = field(default_factory=Counter)
    begun: dict[str, datetime] = field(default_factory=dict)
    groups: dict[str, tuple[JobGroup, tuple[str, ...]]] = field(default_factory=dict)  # by the id of the callback
    finished: set[str] = field(default_factory=set)
    revived: set[str] = field(default_factory=set)
    names: dict[str, list[tuple[str, datetime]]] = field(default_factory=dict)
    takes: list[tuple[datetime, float]] = field(default_factory=list)
    kept: dict[str, tuple[datetime, bytes | None]] = field(default_factory=dict)

    def created(self, job: Job, status_index: WatchedShelves, now: datetime) -> None:
        """A slot is put once, a callback after all members, a unique name while nobody has it."""
        require = self.ledger.require
        if job.id.startswith("periodic/"):
            _, name, slot = job.id.split("/")
            self._slot_put(name, slot[:20], job.id)
        if job.id in self.groups:
            _, members = self.groups[job.id]
            waiting = [id for id in members if id not in self.finished]
            require(not waiting, f"called back while {waiting} were not finished", job.id)
        if job.unique:
            for id, at in self.names.setdefault(job.unique, []):
                require(
                    not self._in_the_way(job, id, at, status_index, now), f"put beside {id} of the same name", job.id
                )
            self.names[job.unique].append((job.id, now))

    def _slot_put(self, name: str, slot: str, id: str) -> None:
        self.slots[name, slot] += 1
        self.ledger.require(self.slots[name, slot] == 1, "a slot was enqueued twice", id)
        late = START + timedelta(seconds=self.clock.monotonic()) - datetime.fromisoformat(slot)
        self.ledger.require(late > -DECIDED_WITHIN, "a slot was enqueued before it came", id)
        if PLANS[name].missed is Missed.SKIP and not arrived_late.get():
            self.ledger.require(
                late <= LATE_MAX + DECIDED_WITHIN, "a missed slot was enqueued that is to be skipped", id
            )

    def _in_the_way(self, job: Job, other: str, at: datetime, status_index: WatchedShelves, now: datetime) -> bool:
        if other == job.id:
            return False
        if job.window:
            return at <= now < at + job.window
        row = status_index.find(other)
        # Whoever requeues a dead job has looked at it; the name may have passed on.
        return row is not None and row.info.state in (JobState.READY, JobState.RUNNING) and other not in self.revived

    def changed(self, before: JobRow, after: JobRow, now: datetime) -> None:
        """Limits are kept, and what ended is written down."""
        job, was, new = after.job, before.info.state, after.info.state
        if (was, new) == (JobState.READY, JobState.RUNNING) and job.queue == SLOW.queue:
            # A store has one clock, which may be set; a stretch that is short by that one and in truth must do.
            true = self.clock.monotonic()
            self.takes.append((now, true))
            per = SLOW.per.total_seconds()
            recent = sum(now - SLOW.per < at <= now and true - per < truly for at, truly in self.takes)
            self.ledger.require(recent <= SLOW.limit, f"{recent} were claimed within {SLOW.per}", job.id)
        if (was, new) == (JobState.DEAD, JobState.READY):
            self.revived.add(job.id)
        if new in (JobState.DONE, JobState.DEAD):
            self.finished.add(job.id)
        if new is JobState.DONE and was is not JobState.DONE and job.keep:
            until = after.info.kept_until
            self.ledger.require(until == now + job.keep, "its result is not kept for as long as asked", job.id)
            self.kept[job.id] = (now + job.keep, after.result)

    def dropped(self, row: JobRow) -> None:
        """A kept result outlives whatever tidies up."""
        self.finished.add(row.job.id)
        if row.job.id in self.kept:
            over = self.clock.latest >= self.kept[row.job.id][0]
            self.ledger.require(over, "a result was deleted while it is to be kept", row.job.id)

    def read(self, id: str, record: JobRecord | None) -> None:
        """Whoever asks in time gets the result."""
        if id in self.kept and self.clock.latest < self.kept[id][0]:
            given = None if record is None else record.result
            self.ledger.require(given == self.kept[id][1] is not None, "a kept result was not given", id)

    def marked(self, name: str, last: datetime, to: datetime) -> None:
        """The record of a periodic job moves only past slots whose jobs are stored, as its policy says."""
        plan, id = PLANS[name], f"periodic/{name}"
        self.ledger.require(last < to, f"its record went back from {last} to {to}", id)
        slot = plan.schedule.next_after(last) if plan.missed is Missed.ALL else to
        while slot <= to:
            self.ledger.require(self.was_put(name, slot), f"the slot {slot} was passed without its job", id)
            slot = plan.schedule.next_after(slot)

    def was_put(self, name: str, slot: datetime) -> bool:
        """Whether the job of this slot was stored."""
        return bool(self.slots[name, slot.strftime("%Y-%m-%dT%H:%M:%SZ")])


class ComfortShelves(WatchedShelves):
    """The memory backend's rows, with both judges beside them."""

    __slots__ = ("comforts",)

    def __init__(self, ledger: Ledger, clock: VirtualClock, comforts: Comforts) -> None:
        super().__init__(ledger, clock)
        self.comforts = comforts

    def _judge(self, before: JobRow | None, after: JobRow | None) -> None:
        super()._judge(before, after)
        now = self.clock.now()
        if before is None and after is not None:
            self.comforts.created(after.job, self, now)
        elif before is not None and after is None:
            self.comforts.dropped(before)
        elif before is not None and after is not None:
            self.comforts.changed(before, after, now)


class ComfortJobs(LawfulJobs):
    """The port, where an enqueue may also be refused for its name."""

    def __init__(self, jobs: MemoryJobs, ledger: Ledger, status_index: ComfortShelves) -> None:
        super().__init__(jobs, ledger, status_index)
        self._comforts = status_index.comforts

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        before = set(self._ledger.created)
        with self._under_way("put"):
            answer = tuple(await self._jobs.enqueue(jobs, request=request, groups=groups))
        first = self._ledger.first_answer("put", request, answer)
        same = first is None or answer == first
        self._ledger.require(same, f"the same put was answered {first} and then {answer}", request)
        for job, put in zip(jobs, answer if first is None else (), strict=False):
            self._ledger.require(self._is_true(job, put, before), f"an enqueue was answered {put}", job.id)
            before.add(put.id)
        return answer

    def _is_true(self, job: Job, put: Enqueued, before: set[str]) -> bool:
        if put.new:
            return put.id == job.id not in before and job.id in self._ledger.created
        if put.id == job.id:
            return job.id in before
        return bool(job.unique) and put.id in before and self._ledger.created[put.id].unique == job.unique

    async def get(self, id: str) -> JobRecord | None:
        record = await super().get(id)
        self._comforts.read(id, record)
        return record


class MarkRecords(FaultyRecords):
    """What repeaters remember; every step of it is judged where it is stored."""

    def __init__(self, records: Records, comforts: Comforts) -> None:
        super().__init__(records, Network(Script({})))
        self._comforts = comforts

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        written = await super().create(key, value, due_at=due_at, nonce=nonce, emit=emit, index_entry=index_entry)
        if written:
            self._comforts.begun.setdefault(key, _last(value))
        return written

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        at: str,
        due_at: datetime | None = None,
        nonce: str | None = None,
        entry_stays: bool = False,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        before = await self._records.get(key)
        written = await super().put(
            key, value, at=at, due_at=due_at, nonce=nonce, entry_stays=entry_stays, emit=emit, index_entry=index_entry
        )
        if written and before is not None and before.version == at:
            self._comforts.marked(key, _last(before.value), _last(value))
        return written


def _last(value: bytes) -> datetime:
    return msgspec.json.decode(value, type=PeriodicMark).last
