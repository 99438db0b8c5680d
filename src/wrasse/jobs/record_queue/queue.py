"""A JobQueue made of Records and Objects alone, so that an S3 bucket or a directory is a job queue.

Nothing is left of a finished job that is not to be kept. No sweep is needed: a claim checks for overdue jobs when it
finds no ready ones, and every ten seconds, so that a dead worker's job spends its rescue budget; the sweep stuck_jobs
does the same.

A done job that is not kept is deleted by the write that ends it. If something follows its end (follow-ups, parts beside
the record, an id to remember), it is first written as leaving, due a little later: until then its writer does the rest,
and after that the process whose conditional write postpones it again. So follow-ups are enqueued once.

Costs, in requests to a bucket: enqueue 2, and 1 more for an id that the caller gave; claim 3 for each job, and one
listing when the list of ready jobs is used up or five seconds old; heartbeat 1 (2 when the minute changes); complete 2;
a payload beyond 64 KiB 1 more each time. Listings and counts follow what is stored.

Ready markers determine which job is next: they are listed in the order of service, and each is claimed by one
conditional write. A list may be out of date at any moment: a claim reads the record, and of two concurrent claims one
succeeds. So an outdated list costs a request and nothing else. Bounded: a page of markers for each queue.

A claim on a bucket costs three requests per job before the answer: its record is read while its deadline entry is
written, then the record is written. The marker is deleted after the answer.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.claims import Claims, RecordClaim
from wrasse.jobs.record_core.queue import Cause, QueueOrder, RecordQueue
from wrasse.jobs.record_core.record_names import plain
from wrasse.jobs.record_queue.store import (
    CHARGE,
    INLINE_BYTES_MAX,
    JobRecordNames,
    JobRecordRead,
    ReadyMarker,
    RecordedStore,
    read_marker,
)
from wrasse.jobs.record_queue.views import UNREADABLE, RecordedViews
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    Claim,
    Complete,
    Delete,
    Enqueued,
    Job,
    JobGroup,
    JobInfo,
    JobRecord,
    JobState,
    Requeue,
    Settlement,
)
from wrasse.ports.objects import Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Records
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import StoredJob

PAGE = 200
LISTED_FOR = 5.0  # seconds; then the list is read again, since others may have enqueued jobs that go first
SEEN_MAX = 10_000
QUEUES_MAX = 1_000
GATHERED_MAX = 16  # claims at once
EXPIRED_EVERY = 10.0  # seconds between two checks for overdue jobs while there is other work
POLL_FIRST = 0.05
POLL_GROWS = 1.5
_log = logging.getLogger("wrasse.jobs")


@dataclass(slots=True)
class _List:
    markers: list[tuple[str, ReadyMarker]] = field(default_factory=list)  # by name, which is their order
    last: str | None = None  # where the listing stopped; None: all was listed
    listed_at: float = float("-inf")


class Ready:
    """The lists of ready markers of all queues."""

    def __init__(self, store: RecordedStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lists: OrderedDict[str, _List] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()  # markers whose job was claimed: ignored from then on

    def note(self, queue: str, marker: ReadyMarker) -> None:
        """Inserts a marker that this process made into the list of its queue, if there is one."""
        known = self._lists.get(queue)
        if known is not None and (known.last is None or marker.name < known.last) and len(known.markers) < 2 * PAGE:
            insort(known.markers, (marker.name, marker), key=lambda each: each[0])

    def spent(self, marker: ReadyMarker) -> None:
        """Ignores a marker from now on: its job was claimed."""
        self._over[marker.name] = None
        if len(self._over) > SEEN_MAX:
            self._over.popitem(last=False)

    def fresh(self, queue: str) -> bool:
        """Whether a list is cached and young enough to use."""
        known = self._lists.get(queue)
        return known is not None and self._clock.monotonic() - known.listed_at < LISTED_FOR

    def pop(self, queue: str, count: int, at: datetime) -> list[ReadyMarker]:
        """Removes and returns the next markers that are due."""
        known = self._lists.get(queue)
        if known is None:
            return []
        found: list[ReadyMarker] = []
        now = to_micros(at)
        while known.markers and len(found) < count:
            marker = known.markers[0][1]
            if marker.position > 0 and marker.ready_at > now:
                break
            del known.markers[0]
            if marker.name not in self._over:
                found.append(marker)
        return found

    def ends(self, queue: str) -> bool:
        """Whether all markers of the queue were listed."""
        known = self._lists.get(queue)
        return known is None or known.last is None

    async def list(self, queue: str, *, on: bool = False) -> None:
        """Lists a queue from its beginning, or continues where the last listing stopped. One request."""
        known = self._lists.get(queue)
        after = known.last if on and known is not None else None
        markers, more = await self._store.markers(self._store.names.queue(queue), after, PAGE)
        fresh = _List([(marker.name, marker) for marker in markers], listed_at=self._clock.monotonic())
        fresh.last = markers[-1].name if more and markers else None
        self._lists[queue] = fresh
        if len(self._lists) > QUEUES_MAX:
            self._lists.popitem(last=False)

    def next_at(self, queue: str) -> datetime | None:
        """When the first listed job becomes ready, if there is one."""
        known = self._lists.get(queue)
        return from_micros(known.markers[0][1].ready_at) if known is not None and known.markers else None


class RecordQueueClaims(Claims[JobRecordRead]):
    """Claims jobs by their ready markers. `expire` handles overdue jobs; `poll_max` is the longest pause between two
    tries while nothing is ready."""

    def __init__(
        self, store: RecordedStore, ready: Ready, clock: Clock, expire: Callable[[], Awaitable[int]], poll_max: float
    ) -> None:
        super().__init__(store)
        self._store, self._ready, self._clock, self._expire, self._poll_max = store, ready, clock, expire, poll_max
        self._expired_at = float("-inf")
        self._wakeup = asyncio.Event()
        self.waiting = 0

    def ring(self) -> None:
        """Wakes waiting claims: a job became ready here."""
        self._wakeup.set()

    def readied(self, seen: JobRecordRead) -> None:
        """Lists the marker of a job that this process made ready, and wakes waiting claims."""
        name = self._store.names.marker(seen.stored, seen.recorded.mark)
        marker = None if name is None else read_marker(name, "")
        assert marker is not None, "a ready job has a marker"
        self._ready.note(seen.stored.info.queue, marker)
        self.ring()

    async def claim(self, claim: RecordClaim, wait: timedelta) -> list[JobRecordRead]:
        """Up to the claim's limit, waiting for the first for as long as `wait`."""
        claimed = await self._to_the_end(self._claim_once(claim))
        if claimed or wait <= timedelta(0):
            return claimed
        pause = POLL_FIRST
        self.waiting += 1
        try:
            async with asyncio.timeout(wait.total_seconds()) as limit:
                while True:
                    await self._nap(min(pause, await self._until_next(claim)))
                    pause = min(pause * POLL_GROWS, self._poll_max)
                    ends = limit.when()
                    limit.reschedule(None)  # a try is never cancelled half way
                    claimed = await self._to_the_end(self._claim_once(claim))
                    if claimed:
                        return claimed
                    limit.reschedule(ends)
        except TimeoutError:
            if not limit.expired():
                raise
            return []
        finally:
            self.waiting -= 1

    async def _claim_once(self, claim: RecordClaim) -> list[JobRecordRead]:
        """Claims what is ready; checks for overdue jobs if nothing is, else after the answer every EXPIRED_EVERY."""
        claimed = await self._claim_ready(claim)
        if not claimed:
            return await self._claim_ready(claim) if await self._check_overdue() else []
        if self._clock.monotonic() - self._expired_at > EXPIRED_EVERY:
            await self._store.later(self._check_overdue_later())
        return claimed

    async def _check_overdue(self) -> int:
        self._expired_at = self._clock.monotonic()
        return await self._expire()

    async def _check_overdue_later(self) -> None:
        if await self._check_overdue():
            self.ring()

    async def _claim_ready(self, claim: RecordClaim) -> list[JobRecordRead]:
        """Claims ready jobs, queue by queue."""
        claimed: list[JobRecordRead] = []
        for queue in claim.queues:
            listed = False
            if not self._ready.fresh(queue):
                await self._ready.list(queue)
                listed = True
            while len(claimed) < claim.limit:
                at = await self._store.time.now()
                markers = self._ready.pop(queue, min(claim.limit - len(claimed), GATHERED_MAX), at)
                if markers:
                    found = await asyncio.gather(*(self._claim_marker(claim, marker) for marker in markers))
                    claimed += [seen for seen in found if seen is not None]
                elif not self._ready.ends(queue):
                    await self._ready.list(queue, on=True)
                elif not listed:
                    await self._ready.list(queue)
                    listed = True
                else:
                    break
        return claimed

    async def _claim_marker(self, claim: RecordClaim, marker: ReadyMarker) -> JobRecordRead | None:
        """The claimed job; None if it cannot be claimed."""
        at = await self._store.time.now()
        seen = await self._store.looked_at(marker.key, entering=at + claim.heartbeat_timeout)
        if isinstance(seen, StoreBroken):
            self._ready.spent(marker)
            _log.error("a job is skipped: %s", seen)
            return None
        if not await self._store.counts(marker, seen, at) or seen is None:
            return None  # its record is not yet written, or has changed
        if seen.stored.at(at).scheduled:
            return None
        written = await self._claim(claim, seen)
        self._ready.spent(marker)
        return written

    async def _until_next(self, claim: RecordClaim) -> float:
        """Seconds until a scheduled job of these queues becomes ready, as far as listed."""
        at = await self._store.time.now()
        known = [each for each in map(self._ready.next_at, claim.queues) if each is not None]
        return min([max((each - at).total_seconds(), 0.005) for each in known], default=self._poll_max)

    async def _nap(self, seconds: float) -> None:
        """Waits until a job becomes ready here, or this long. A wakeup since the last try ends it at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        self._wakeup.clear()


ATTEMPTS_HEADER = "wrasse-attempts-max"  # of a job: after so many attempts that failed or died it is dead
EXPIRED_MAX = 100  # overdue jobs that one claim handles


class Fate(StrEnum):
    """What is done with an overdue job."""

    RESCUED = "rescued"
    FINISHED = "finished"
    LEFT = "left"


class Beside(Protocol):
    """Data that another component stores under a job's id."""

    async def fate(self, info: JobInfo) -> Fate:
        """Called before a job without heartbeats is rescued: its completion may be recorded elsewhere."""
        ...

    async def ended(self, info: JobInfo) -> bool:
        """Deletes the data of a job that has ended; False if some must stay for now: it is called again later."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedOptions:
    """`rescues_max`: how often a job may be rescued before a claim dead-letters it; None leaves that to the sweep.
    `done_max`: how many done jobs are kept. `poll_max`: seconds between two tries while nothing is ready."""

    names: JobRecordNames = field(default_factory=JobRecordNames)
    done_max: int = 0
    rescues_max: int | None = 3
    poll_max: float = 1.0
    beside: Beside | None = None


OPTIONS = RecordedOptions()


class RecordedJobs(RecordQueue[JobRecordRead]):
    """All queues below one root."""

    at_once = enqueue_at_once = 16

    def __init__(
        self,
        records: Callable[[Collection], Records],
        objects: Objects,
        clock: Clock,
        options: RecordedOptions = OPTIONS,
    ) -> None:
        names = options.names
        self._store = RecordedStore(records(names.jobs), objects, names, clock)
        self._ready = Ready(self._store, clock)
        self._marker_claims = RecordQueueClaims(self._store, self._ready, clock, self._expire_due, options.poll_max)
        super().__init__(
            self._store, self._marker_claims, records(names.ids), records(names.workers), clock, QueueOrder()
        )
        self._views: RecordedViews = RecordedViews(self._store, clock)
        self._options = options
        self._cache: dict[str, JobRecordRead] = {}  # jobs that this process claimed, as it wrote them last
        self._finished = 0

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        puts = await super().enqueue(jobs, request=request, groups=groups)
        self._marker_claims.ring()
        return puts

    async def get(self, id: str) -> JobRecord | None:
        seen = await self._store.looked_at(plain(id))
        if seen is None and id.startswith(UNREADABLE):
            return await self._views.unreadable(id.removeprefix(UNREADABLE))
        if isinstance(seen, StoreBroken):
            return await self._views.unreadable(plain(id))
        return None if seen is None or seen.leaving else await self._shown(seen)

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        """Running jobs whose deadline has passed; also finishes what a crash left to do after the end of others."""
        others, page = await self._views.overdue(after, limit)
        for seen in others:
            await self._expire(seen, page.at)
        return page

    async def state(self, id: str) -> JobInfo | None:
        """A job as this process wrote it last while it is running here, else as it is stored."""
        seen = self._cache.get(id) or await self._store.get(id)
        return None if seen is None or seen.leaving else seen.stored.at(await self.time.now()).info

    async def extend(self, claim: Claim, heartbeat_timeout: timedelta) -> datetime | None:
        """Extends a claim to `heartbeat_timeout` from now, without a worker's row; None if it is no longer current."""
        at = await self.time.now()
        return at + heartbeat_timeout if await self._heartbeat(claim, heartbeat_timeout) else None

    async def complete(self, claim: Claim, *, request: str) -> Outcome:
        """Completes a job with data beside it, which is deleted with it also after a crash."""
        return await self._settle(Complete(claim), request, beside=True)

    async def expire(self, id: str) -> None:
        """Handles one overdue job, as a claim would."""
        seen, at = await self._store.get(id), await self.time.now()
        if seen is not None:
            await self._expire(seen, at)

    async def now(self) -> datetime:
        """The store's time, a little late rather than early."""
        return await self.time.now()

    @property
    def waiting(self) -> int:
        """How many claims wait."""
        return self._marker_claims.waiting

    async def close(self) -> None:
        """Waits for the work that is left after the last answers."""
        await self._store.finished()

    def _retries_max(self, job: Job) -> int | None:
        attempts = job.headers.get(ATTEMPTS_HEADER, "")
        return int(attempts) - 1 if attempts.isdigit() and int(attempts) else None

    def _rank(self, due: datetime, at: datetime) -> int:
        return rules.back(due) if due > at else self._order.next(at)

    async def _find(self, id: str) -> JobRecordRead | None:
        """A job as it is stored. An unreadable record has no claim: it affects one job of a batch only."""
        seen = await self._store.looked_at(plain(id))
        if isinstance(seen, StoreBroken):
            _log.error("job %s is left as it is: %s", id, seen)
            return None
        return seen

    async def _stored(self, job: Job) -> JobRecordRead | None:
        return await self._store.get(job.id)

    async def _cached_or_stored(self, id: str) -> JobRecordRead | None:
        return self._cache.get(id) or await self._find(id)

    def _was_outdated(self, id: str, seen: JobRecordRead) -> bool:
        return self._cache.pop(id, None) is seen

    def _note_claimed(self, claimed: Sequence[JobRecordRead]) -> None:
        """Caches claimed jobs, so that their worker need not read before it writes."""
        for seen in claimed:
            self._cache[seen.stored.info.id] = seen
        while len(self._cache) > BATCH_MAX:
            del self._cache[next(iter(self._cache))]

    async def _create(self, stored: StoredJob, at: datetime, request: str) -> bool:
        seen = await self._store.add(stored)
        if seen is not None:
            self._marker_claims.readied(seen)
        return seen is not None

    async def _write(self, seen: JobRecordRead, after: StoredJob, at: datetime, cause: Cause) -> Outcome:
        written = await self._store.write(seen, after)
        if written is None:
            return Outcome.CONFLICT
        self._note(written)
        return Outcome.DONE

    async def _end(
        self,
        seen: JobRecordRead,
        after: StoredJob,
        at: datetime,
        settlement: Settlement,
        aside: dict[str, str],
        *,
        beside: bool,
    ) -> Outcome:
        """Writes the end of an attempt. A job that is done and not kept is deleted at once, if nothing follows."""
        goes = after.info.state is JobState.DONE and not self._options.done_max and after.info.kept_until is None
        alone = not (seen.apart or after.follow or after.job.lasting or beside)
        if goes and alone:
            return await self._store.delete(seen)
        result = after.result
        apart = result if result is not None and len(result) > INLINE_BYTES_MAX and not goes else None
        if goes or apart is not None:
            after = replace(after, result=None)
        written = await self._store.write(seen, after, leaving=goes, result=apart, beside=beside and goes)
        if written is None:
            return Outcome.CONFLICT
        self._note(written)
        await self._finish_up(written)
        if after.info.state is JobState.DONE and not goes:
            await self._trim()
        return Outcome.DONE

    async def _finish_up(self, seen: JobRecordRead) -> None:
        """What follows the end of a job: enqueues its follow-ups, then deletes data beside it, its parts, its
        record."""
        owned = await self._own_cleanup(seen) if seen.leaving or seen.stored.follow else None
        if owned is None:
            return
        if owned.stored.follow:
            await self._follow(owned.stored.follow, f"{owned.stored.info.id}#{owned.stored.info.token}")
        if not owned.leaving:
            await self._store.write(owned, replace(owned.stored, follow=()))
            return
        if owned.stored.job.lasting:
            await self._ids.keep(owned.stored.info.id, await self.time.now() + IDS_KEPT)
        beside = self._options.beside if owned.recorded.beside else None
        if beside is not None and not await beside.ended(owned.stored.info):
            return
        await self._store.drop_parts(owned)
        await self._store.delete(owned)

    async def _own_cleanup(self, seen: JobRecordRead) -> JobRecordRead | None:
        """A job with something left to do, if this process is to do it: it wrote it just now, or postpones it with a
        conditional write. None after a conflict."""
        if seen.due_at is not None and seen.due_at - await self.time.now() > CHARGE / 2:
            return seen
        return await self._store.write(seen, seen.stored, leaving=seen.leaving, beside=seen.recorded.beside)

    async def _trim(self) -> None:
        """Keeps the number of done jobs bounded; checks once for every hundredth of the bound."""
        self._finished += 1
        most = self._options.done_max
        if self._finished <= most // 100:
            return
        self._finished = 0
        await self._store.finished()
        at = await self.time.now()
        for marker in await self._views.oldest(JobState.DONE, most):
            seen = await self._store.looked_at(marker.key)
            if isinstance(seen, JobRecordRead) and seen.recorded.mark == marker.mark:
                await self._remove(seen, Delete(seen.stored.info.claim, JobState.DONE), at, IDS_KEPT)

    async def _drop(self, seen: JobRecordRead, at: datetime) -> Outcome:
        if not seen.apart:
            return await self._store.delete(seen)
        leaving = await self._store.write(seen, seen.stored, leaving=True)
        if leaving is None:
            return Outcome.CONFLICT
        await self._store.drop_parts(leaving)
        await self._store.delete(leaving)
        return Outcome.DONE

    async def _expire_due(self) -> int:
        """Rescues overdue jobs, and finishes what a crash left; returns how many became ready."""
        found, at = await self._store.overdue(EXPIRED_MAX)
        return sum([await self._expire(seen, at) for seen in found])

    async def _expire(self, seen: JobRecordRead, at: datetime) -> bool:
        """The same for one job; whether it became ready."""
        info = seen.stored.info
        if seen.leaving or seen.stored.follow:
            if seen.due_at is None or seen.due_at <= at:
                await self._finish_up(seen)
        elif info.state is JobState.RUNNING and info.deadline is not None and info.deadline <= at:
            return await self._rescue(info, at)
        return False

    async def _rescue(self, info: JobInfo, at: datetime) -> bool:
        most, beside = self._options.rescues_max, self._options.beside
        if most is None:
            return False
        fate = Fate.RESCUED if beside is None else await beside.fate(info)
        if fate is Fate.FINISHED:
            await self._settle(Complete(info.claim), f"{info.id}#{info.token}", beside=True)
        if fate is not Fate.RESCUED:
            return False
        change = rules.rescue(info, at, most)
        return await self._move(change) is Outcome.DONE and isinstance(change, Requeue)

    def _note(self, seen: JobRecordRead) -> None:
        """Updates the ready list and the cache with what was just written."""
        info = seen.stored.info
        if info.state is JobState.READY:
            self._marker_claims.readied(seen)
        if info.id in self._cache:
            if info.state is JobState.RUNNING:
                self._cache[info.id] = seen
            else:
                del self._cache[info.id]
