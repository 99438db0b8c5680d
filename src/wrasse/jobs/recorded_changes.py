"""Changes of jobs kept as records: read, ask the rules, write under the version that was read; else look again.

A job that is done and not to be kept goes with the write that ends it. Where something comes after its end (follow-ups,
parts beside the record, an id to remember) it is first written as leaving, and due a little later: until then its
writer is in charge of what is left to do, and after that whoever makes it due later again. So follow-ups are put once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.jobs.recorded_answers import KnownIds
from wrasse.jobs.recorded_names import Names, plain
from wrasse.jobs.recorded_store import CHARGE, INLINE_BYTES_MAX, RecordedStore, Seen
from wrasse.jobs.recorded_views import RecordedViews
from wrasse.ports import job_transitions as rules
from wrasse.ports.job_transitions import StoredJob
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    Budget,
    Bury,
    Cancel,
    Delete,
    Finish,
    Job,
    JobState,
    Move,
    Place,
    Reason,
    Requeue,
    Revive,
    Settlement,
)
from wrasse.ports.outcome import Outcome

DOUBTS_MAX = 10_000
EXPIRED_MAX = 100  # overdue jobs that one take sees to
_TRIES = 20
_log = logging.getLogger("wrasse.jobs")


class Fate(StrEnum):
    """What becomes of an overdue job."""

    RESCUED = "rescued"
    FINISHED = "finished"
    LEFT = "left"


class Beside(Protocol):
    """What somebody keeps beside a job, under its id."""

    async def fate(self, state: JobState) -> Fate:
        """Asked before a job is taken from a worker that is silent: its end may have been written elsewhere."""
        ...

    async def ended(self, state: JobState) -> bool:
        """Takes away what is beside a job that has ended; False if not all of it can go yet. It is asked again then."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedOptions:
    """`rescues_max`: how often a job may lose its worker before a take buries it; None leaves that to the sweep.
    `done_max`: how many done jobs are kept. `poll_max`: seconds between two looks while nothing is ready."""

    names: Names = field(default_factory=Names)
    done_max: int = 0
    rescues_max: int | None = 3
    poll_max: float = 1.0
    beside: Beside | None = None


class Changes:
    """Everything that changes a job but its put and its take. `readied` hears of each that became ready; `follow` puts
    what a finish promised."""

    def __init__(
        self,
        store: RecordedStore,
        views: RecordedViews,
        ids: KnownIds,
        options: RecordedOptions,
        readied: Callable[[Seen], None],
        follow: Callable[[Sequence[Job], str], Awaitable[None]],
    ) -> None:
        self._store, self._views, self._ids, self._options = store, views, ids, options
        self._readied, self._follow = readied, follow
        self._held: dict[str, Seen] = {}  # what this process took, as it wrote it last
        self._doubtful: dict[str, None] = {}  # requests that began to end a job, and got no answer yet
        self._finished = 0

    async def settle(self, settlement: Settlement, request: str, *, beside: bool = False) -> Outcome:
        """Ends an attempt, by its holder. `beside`: a job that is done then has something beside it."""
        hold, doubted = settlement.hold, request in self._doubtful
        for look in self._looks(hold.id):
            found = await look()
            if found is None:
                # Gone; by this very request, if its reply was lost.
                return Outcome.UNKNOWN if doubted else Outcome.LOST
            if rules.settled_by(found.stored, hold, request):
                await self.go_on(found)
                return Outcome.DONE
            at = await self._store.time.now()
            rank = rules.back(at + (settlement.delay if isinstance(settlement, Requeue) else timedelta(0)))
            after = rules.settle(found.stored, settlement, at, request=request, rank=rank)
            if after is None:
                if found is self._held.pop(hold.id, None):
                    continue  # what this process remembers may be out of date
                return Outcome.LOST
            self._doubt(request)
            outcome = await self._settled(found, after, beside)
            if not doubted:
                self._doubtful.pop(request, None)
            self._held.pop(hold.id, None)
            if outcome is not Outcome.LOST:
                return outcome
        raise _changing(hold.id)

    async def _settled(self, seen: Seen, after: StoredJob, beside: bool) -> Outcome:
        """Writes the end of an attempt. One that is done and not kept goes at once, if nothing comes after it."""
        goes = after.state.place is Place.DONE and not self._options.done_max and after.state.kept_until is None
        recorded = seen.recorded
        plain = recorded.payload is None and recorded.result is None and not after.follow and not after.job.lasting
        if goes and plain and not beside:
            return await self._store.delete(seen)
        result = after.result
        apart = result if result is not None and len(result) > INLINE_BYTES_MAX and not goes else None
        if goes or apart is not None:
            after = replace(after, result=None)
        written = await self._store.write(seen, after, leaving=goes, result=apart, beside=beside and goes)
        if written is None:
            return Outcome.LOST
        self._note(written)
        await self.go_on(written)
        if after.state.place is Place.DONE and not goes:
            await self._trim()
        return Outcome.DONE

    async def go_on(self, seen: Seen) -> None:
        """What comes after the end of a job: its follow-ups, then what is beside it, its parts, its record."""
        mine = await self._charged(seen) if seen.recorded.leaving or seen.stored.follow else None
        if mine is None:
            return
        if mine.stored.follow:
            await self._follow(mine.stored.follow, f"{mine.stored.state.id}#{mine.stored.state.token}")
        if not mine.recorded.leaving:
            await self._store.write(mine, replace(mine.stored, follow=()))
            return
        if mine.stored.job.lasting:
            await self._ids.keep(mine.stored.state.id, await self._store.time.now() + IDS_KEPT)
        beside = self._options.beside if mine.recorded.beside else None
        if beside is not None and not await beside.ended(mine.stored.state):
            return
        await self._store.drop_parts(mine)
        await self._store.delete(mine)

    async def _charged(self, seen: Seen) -> Seen | None:
        """A job with something left to do, if this process is in charge of it: it wrote it just now, or is the one
        that makes it due later again. None if another was faster."""
        if seen.due_at is not None and seen.due_at - await self._store.time.now() > CHARGE / 2:
            return seen
        return await self._store.write(
            seen, seen.stored, leaving=seen.recorded.leaving, beside=seen.recorded.beside
        )

    async def _trim(self) -> None:
        """Keeps the number of done jobs bounded; looks once for every hundredth of the bound."""
        self._finished += 1
        most = self._options.done_max
        if self._finished <= most // 100:
            return
        self._finished = 0
        await self._store.finished()
        at = await self._store.time.now()
        for sign in await self._views.oldest(Place.DONE, most):
            seen = await self._store.looked_at(sign.key)
            if isinstance(seen, Seen) and seen.recorded.mark == sign.mark:
                await self._remove(seen, Delete(seen.stored.state.hold, Place.DONE), at, IDS_KEPT)

    async def move(self, move: Move) -> Outcome:
        """A move by anybody but the holder."""
        id = move.id if isinstance(move, Cancel) else move.hold.id
        delay = move.delay if isinstance(move, Requeue | Revive) else timedelta(0)
        at = await self._store.time.now()
        rank = rules.back(at + delay)
        moved = await self.change(id, lambda stored: rules.move(stored, move, at, rank=rank))
        return Outcome.DONE if moved else Outcome.LOST

    async def delete(self, delete: Delete, ids_kept: timedelta) -> Outcome:
        """Takes a job away, if it is still where it was seen."""
        seen = await self._stored(delete.hold.id)
        at = await self._store.time.now()
        return Outcome.LOST if seen is None else await self._remove(seen, delete, at, ids_kept)

    async def _remove(self, seen: Seen, delete: Delete, at: datetime, ids_kept: timedelta) -> Outcome:
        if seen.recorded.leaving or not rules.deletable(seen.stored, delete, at):
            return Outcome.LOST
        if seen.stored.job.lasting:
            # Kept first: a crash in between leaves an id that is known twice, never one that is forgotten.
            await self._ids.keep(seen.stored.state.id, at + ids_kept)
        if seen.recorded.payload is None and seen.recorded.result is None:
            return await self._store.delete(seen)
        leaving = await self._store.write(seen, seen.stored, leaving=True)
        if leaving is None:
            return Outcome.LOST
        await self._store.drop_parts(leaving)
        await self._store.delete(leaving)
        return Outcome.DONE

    async def change(self, id: str, change: Callable[[StoredJob], StoredJob | None]) -> bool:
        """One change of a job; False if what it expects is not so."""
        for look in self._looks(id):
            seen = await look()
            after = None if seen is None or seen.recorded.leaving else change(seen.stored)
            if seen is None or after is None:
                if seen is not None and self._held.pop(id, None) is seen:
                    continue
                return False
            written = await self._store.write(seen, after)
            if written is not None:
                self._note(written)
                return True
            self._held.pop(id, None)
        raise _changing(id)

    def _looks(self, id: str) -> Sequence[Callable[[], Awaitable[Seen | None]]]:
        """How to see a job, try after try: as this process wrote it last, then as the store has it."""
        known = self._held.get(id)

        async def remembered() -> Seen | None:
            return known

        return ([remembered] if known is not None else []) + [lambda: self._stored(id)] * _TRIES

    async def _stored(self, id: str) -> Seen | None:
        """A job as the store has it. A record that cannot be read is nobody's hold: it costs one job of a batch."""
        seen = await self._store.looked_at(plain(id))
        if isinstance(seen, StoreBroken):
            _log.error("job %s is left as it is: %s", id, seen)
            return None
        return seen

    async def expire(self) -> int:
        """Takes overdue jobs from workers that died, and goes on with what a crash left; how many became ready."""
        found, at = await self._store.overdue(EXPIRED_MAX)
        return sum([await self.expire_one(seen, at) for seen in found])

    async def expire_one(self, seen: Seen, at: datetime) -> bool:
        """The same for one job; whether it became ready."""
        state = seen.stored.state
        if seen.recorded.leaving or seen.stored.follow:
            if seen.due_at is None or seen.due_at <= at:
                await self.go_on(seen)
        elif state.place is Place.HELD and state.until is not None and state.until <= at:
            return await self._rescue(state, at)
        return False

    async def look(self, id: str) -> Seen | None:
        """A job as this process wrote it last while it holds it, else as it is stored."""
        known = self._held.get(id)
        return known if known is not None else await self._store.get(id)

    async def _rescue(self, state: JobState, at: datetime) -> bool:
        most = self._options.rescues_max
        if most is None:
            return False
        beside = self._options.beside
        fate = Fate.RESCUED if beside is None else await beside.fate(state)
        if fate is Fate.FINISHED:
            await self.settle(Finish(state.hold), f"{state.id}#{state.token}", beside=True)
        if fate is not Fate.RESCUED:
            return False
        silent = f"worker {state.worker} silent for {int((at - (state.beat_at or at)).total_seconds())} s"
        spent = state.rescues >= most
        if state.retries_max is not None:
            spent = state.failures + state.rescues >= state.retries_max
        if spent:
            await self.move(Bury(state.hold, Reason.WORKER_DIED, error=silent, spends=Budget.RESCUES))
            return False
        requeue = Requeue(state.hold, Budget.RESCUES, Reason.WORKER_DIED, error=silent)
        return await self.move(requeue) is Outcome.DONE

    def _note(self, seen: Seen) -> None:
        """What was just written: ready here, or among what is held here."""
        state = seen.stored.state
        if state.place is Place.READY:
            self._readied(seen)
        if state.id in self._held:
            if state.place is Place.HELD:
                self._held[state.id] = seen
            else:
                del self._held[state.id]

    def _doubt(self, request: str) -> None:
        self._doubtful[request] = None
        while len(self._doubtful) > DOUBTS_MAX:
            del self._doubtful[next(iter(self._doubtful))]

    def hold(self, seen: Seen) -> None:
        """Remembers a job that this process took, so that its holder need not read before it writes."""
        self._held[seen.stored.state.id] = seen
        while len(self._held) > BATCH_MAX:
            del self._held[next(iter(self._held))]


def _changing(id: str) -> StoreUnavailable:
    return StoreUnavailable(f"the record of job {id!r} keeps changing", do="try again")
