"""Claims of jobs that are kept as records: each is one conditional write, recognised by the nonce of its request.

A cancelled claim runs to its end and releases what it got, since its caller would not know of it. An index of ready
jobs is a hint: the record decides, and of two concurrent claims of one job one succeeds.

Times are the store's clock in whole milliseconds, as stream tasks store them: never ahead of the store's own, so that a
deadline that has passed here has passed there.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, Protocol, TypeVar

from wrasse.bounded import LATEST
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import Gone, StoreBroken, StoreUnavailable, TooLarge, WrasseError
from wrasse.ports.jobs import PAYLOAD_BYTES_MAX, Claim
from wrasse.ports.objects import Objects, read_small
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import StoredJob
from wrasse.ports.rules.store_time import StoreTime

T = TypeVar("T")
GATHERED_MAX = 32


async def gather_bounded(calls: Sequence[Callable[[], Awaitable[T]]], most: int = GATHERED_MAX) -> list[T]:
    """The result of each call. If one fails, the others of its batch still end; then its error is raised."""
    answers: list[T] = []
    for start in range(0, len(calls), most):
        batch = await asyncio.gather(*(call() for call in calls[start : start + most]), return_exceptions=True)
        for answer in batch:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
    return answers


async def by_id(ids: Sequence[str], calls: Sequence[Callable[[], Awaitable[T]]], most: int = GATHERED_MAX) -> list[T]:
    """Makes changes of different jobs concurrently, and those of one job in order."""
    rows: dict[str, list[int]] = {}
    for n, id in enumerate(ids):
        rows.setdefault(id, []).append(n)

    async def row(numbers: list[int]) -> list[tuple[int, T]]:
        return [(n, await calls[n]()) for n in numbers]

    answers = await gather_bounded([partial(row, numbers) for numbers in rows.values()], most)
    return [answer for _, answer in sorted((each for row in answers for each in row), key=lambda each: each[0])]


_STALE = 5.0  # seconds after which the store's time is read again
_MILLISECOND = timedelta(milliseconds=1)


class MillisecondTime(StoreTime):
    """The time of a store, without a request each time."""

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]]) -> None:
        super().__init__(clock, ask, kept=_STALE)

    async def now(self) -> datetime:
        """The store's time."""
        return whole(await super().now())

    def heard(self, at: datetime) -> datetime:
        """Notes the time in an answer; returns it in whole milliseconds."""
        self.note(at)
        return whole(at)


def whole(at: datetime) -> datetime:
    """The last whole millisecond."""
    return from_micros(to_micros(at) // 1_000 * 1_000)


def whole_up(at: datetime) -> datetime:
    """The next whole millisecond, for moments before which something must not happen."""
    down = whole(at)
    return down if down == at or down > LATEST - _MILLISECOND else down + _MILLISECOND


class VersionedJob(Protocol):
    """A job's record as it was read or written. One that is `leaving` is finished, and only its cleanup is left;
    `apart`: its payload or result is stored beside the record."""

    @property
    def key(self) -> str: ...

    @property
    def stored(self) -> StoredJob: ...

    @property
    def leaving(self) -> bool: ...

    @property
    def apart(self) -> bool: ...


S = TypeVar("S", bound=VersionedJob)


class RecordStore(Protocol[S]):
    """The records of jobs: read, and written if unchanged since."""

    @property
    def time(self) -> MillisecondTime: ...

    async def load(self, key: str) -> S | None:
        """The job of this key."""
        ...

    async def put(self, seen: S, after: StoredJob, at: datetime) -> S | None:
        """Writes the new state of a job; None if its record has changed since."""
        ...

    async def whole(self, seen: S) -> StoredJob:
        """The job with its payload and result, also those stored beside the record."""
        ...


async def read_apart(objects: Objects, name: str) -> bytes:
    """A payload or result that is stored beside its record; StoreBroken if it is missing or too large."""
    try:
        return await read_small(objects, name, PAYLOAD_BYTES_MAX)
    except TooLarge as large:
        raise StoreBroken(f"of a job: {large.message}", do=large.do) from large
    except Gone as gone:
        raise StoreBroken(
            f"the object {name!r} of a job is gone", do="restore it from a backup, then requeue the job"
        ) from gone


@dataclass(frozen=True, slots=True)
class RecordClaim:
    """A claim request: worker, heartbeat timeout, and the request id by which a retry is recognised."""

    worker: str
    heartbeat_timeout: timedelta
    request: str
    queues: tuple[str, ...]
    limit: int
    tried: list[str] = field(default_factory=list)  # keys of every claim that was tried
    got: set[str] = field(default_factory=set)  # of these, the ones that succeeded

    def nonce(self, id: str) -> str:
        """The nonce of its claim of a job: the same if the request is retried."""
        return hashlib.blake2b(f"{self.request}\0{id}".encode(), digest_size=8).hexdigest()

    def holds(self, stored: StoredJob) -> bool:
        """Whether this job's current claim is of this request."""
        info = stored.info
        return rules.is_current(stored, Claim(info.id, info.token, self.nonce(info.id)))


class Claims(ABC, Generic[S]):
    """Claims jobs from their records. `tries`: how often a claim is tried after conflicts."""

    tries = 1

    def __init__(self, store: RecordStore[S]) -> None:
        self._records = store

    @abstractmethod
    async def claim(self, claim: RecordClaim, wait: timedelta) -> list[S]:
        """Up to the claim's limit of jobs, waiting for the first for as long as `wait`."""

    async def again(self, claim: RecordClaim) -> list[S]:
        """The jobs that an earlier try of this request claimed and that are still claimed."""
        found = [await self._records.load(key) for key in dict.fromkeys(claim.tried)]
        return [seen for seen in found if seen is not None and claim.holds(seen.stored)]

    async def _claim(self, claim: RecordClaim, seen: S) -> S | None:
        """The claimed job; None if it cannot be claimed, or if this request has it already."""
        info = seen.stored.info
        claim.tried.append(seen.key)
        for _ in range(self.tries):
            at = await self._records.time.now()
            nonce = claim.nonce(info.id)
            claimed = rules.claim(
                seen.stored, at, worker=claim.worker, nonce=nonce, heartbeat_timeout=claim.heartbeat_timeout
            )
            if claimed is None:
                return self._new(claim, seen) if claim.holds(seen.stored) else None
            written = await self._records.put(seen, claimed, at)
            if written is not None:
                return self._new(claim, written)
            found = await self._records.load(seen.key) if self.tries > 1 else None
            if found is None:
                return None
            seen = found
        raise changing(info.id)

    def _new(self, claim: RecordClaim, seen: S) -> S | None:
        if seen.key in claim.got:
            return None
        claim.got.add(seen.key)
        return seen

    async def _to_the_end(self, claiming: Coroutine[None, None, list[S]]) -> list[S]:
        """Claims; if cancelled, releases what was claimed."""
        task = asyncio.ensure_future(claiming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # If the server does not answer, the job is rescued at its deadline.
            with suppress(WrasseError):
                for seen in await task:
                    at = await self._records.time.now()
                    await self._records.put(seen, rules.unclaim(seen.stored, at), at)
            raise


def changing(id: str) -> StoreUnavailable:
    """The error after the last conflict of a change."""
    return StoreUnavailable(f"the record of job {id!r} keeps changing", do="try again")
