"""Cleanup after a lease has ended: superseded state objects are deleted first, the index entry last.

An object is written once, before the record that names it, and deleted after the record that no longer does. What a
crash leaves is still indexed, and a sweep finds it. If the process dies, is cancelled or gets no answer between the two
writes, an unreferenced object remains under a lease that continues. So a lease counts as clean only in the process that
granted it, only while none of its writes and deletes is unconfirmed, and not once it was evicted from the LRU cache.
After a lease that is not clean, the index entry is kept, or the record is scheduled for a second check after
RECHECK_AFTER.

Before a key is cleaned, its lease is cleared. The cleanup lists the objects of that key, reads the record again, and
deletes only objects whose token is not above the cleared lease's and which the record does not name: an object that a
later holder is about to name is never deleted.

If this process is acquiring the same key again, the next lease needs the index entry too. Its record then carries the
objects that the last lease left, up to TOGETHER of them: a key in constant use costs one delete for several leases.

Deletes run in background tasks after the answer was sent. None of them is needed for correctness: what is not done,
because the process died or the store was unavailable, is found later by its index entry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Protocol, TypeVar

from msgspec.structs import replace

from wrasse.errors import StoreUnavailable, WrasseError
from wrasse.leases.core import Changed
from wrasse.leases.lease import RECHECK_AFTER, KeyRecord, StateObject
from wrasse.leases.names import state_folder, state_name, token_of
from wrasse.leases.store import KeyStore, Recent
from wrasse.ports.objects import DELETES_MAX, Data, ObjectDelete, ObjectInfo, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, pages

AT_ONCE_MAX = 64

T = TypeVar("T")

_log = logging.getLogger("wrasse.leases")
PAGE = 100
LEAVING_MAX = 32
TOGETHER = 8  # objects of a key in constant use are deleted in batches of this size
GONE_MAX = 4_096  # names of deleted objects, cached until records no longer name them


class BackgroundTasks:
    """Tasks that run after an answer; `finished` waits for all of them."""

    __slots__ = ("_tasks", "failed")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed = 0

    async def add(self, work: Awaitable[object]) -> None:
        """Runs this in the background; in the foreground if too many tasks are running."""
        if len(self._tasks) >= AT_ONCE_MAX:
            await self._do(work)
            return
        self.soon(work)

    def soon(self, work: Awaitable[object]) -> None:
        """Runs this in the background without a limit; for work that is started one at a time."""
        task = asyncio.create_task(self._do(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Waits until all added work is done."""
        while self._tasks:
            await asyncio.wait([*self._tasks])

    async def _do(self, work: Awaitable[object]) -> None:
        try:
            await work
        except WrasseError as error:
            self.failed += 1
            _log.debug("left for a sweep: %s", error.message)


async def beside(work: Awaitable[T], other: Awaitable[None]) -> tuple[T, WrasseError | None]:
    """Runs both concurrently; returns the result of the first and the error of the second. Both have ended then."""
    answer, failed = await asyncio.gather(work, other, return_exceptions=True)
    if isinstance(answer, BaseException):
        raise answer
    if failed is not None and not isinstance(failed, WrasseError):
        raise failed
    return answer, failed


class Measured(Protocol):
    """Bytes in chunks, with their count."""

    @property
    def size(self) -> int:
        """How many bytes have passed."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class StateObjects:
    """The state objects of one namespace."""

    __slots__ = ("_namespace", "_objects")

    def __init__(self, objects: Objects, namespace: str) -> None:
        self._objects, self._namespace = objects, namespace

    async def write(self, key: str, token: int, data: bytes) -> StateObject:
        """Creates a new object for this key; it is ignored until a record names it."""
        return await self._write(key, token, data, lambda: len(data))

    async def write_stream(self, key: str, token: int, data: Measured) -> StateObject:
        """Creates a new object for this key from chunks; memory use does not depend on its size."""
        return await self._write(key, token, data, lambda: data.size)

    async def _write(self, key: str, token: int, data: Data, size: Callable[[], int]) -> StateObject:
        id = secrets.token_hex(8)
        name = state_name(self._namespace, key, token, id)
        stored = await self._objects.create(name, data)
        if stored.outcome is not Outcome.DONE:
            raise StoreUnavailable(
                f"it is unknown whether an object of {key!r} was written", do="try again; nothing was staged"
            )
        assert stored.version is not None, "what is written has a version"
        return StateObject(name, stored.version, id, size())

    async def read(self, state: StateObject) -> bytes:
        """The bytes; raises Gone if the object was superseded and deleted."""
        return b"".join([chunk async for chunk in self.stream(state)])

    def stream(self, state: StateObject) -> AsyncIterator[bytes]:
        """The bytes in chunks, likewise."""
        return self._objects.read(state.name)

    async def drop(self, *states: StateObject) -> bool:
        """Deletes objects that no record names any more; whether all deletes are confirmed. If not, the next cleanup of
        the key finds them."""
        if not states:
            return True
        with suppress(StoreUnavailable):
            outcomes = await self._objects.delete([ObjectDelete(state.name, state.version) for state in states])
            return all(outcome in (Outcome.DONE, Outcome.CONFLICT) for outcome in outcomes)
        return False

    async def of(self, key: str) -> Sequence[ObjectInfo]:
        """Every object of this key, oldest token first. Usually one request."""
        folder, found = state_folder(self._namespace, key), list[ObjectInfo]()
        async for page in pages(lambda after: self._objects.page(folder, after, PAGE)):
            found += page
        return [info for info in found if token_of(info.key) is not None]

    async def there(self, name: str) -> bool:
        """Whether an object is there."""
        return await self._objects.head(name) is not None

    async def page(self, after: str | None, limit: int) -> Page[ObjectInfo]:
        """Every state object of the namespace; used only by `fsck`."""
        return await self._objects.page(f"{self._namespace}/state/", after, limit)

    async def delete(self, infos: Sequence[ObjectInfo]) -> int:
        """Deletes these objects at the versions listed; returns how many were deleted."""
        gone = 0
        for begin in range(0, len(infos), DELETES_MAX):
            deletes = [ObjectDelete(info.key, info.version) for info in infos[begin : begin + DELETES_MAX]]
            gone += sum(outcome is Outcome.DONE for outcome in await self._objects.delete(deletes))
        return gone


class LeaseCleanup:
    """Deletes what the leases of one namespace leave behind."""

    __slots__ = ("_acquiring", "_deferred", "_deleted", "_open", "_store", "background", "versions")

    def __init__(self, store: KeyStore, versions: StateObjects, background: BackgroundTasks) -> None:
        self._store, self.versions, self.background = store, versions, background
        self._open: Recent[int] = Recent()  # by lease, how many of its writes and deletes are unconfirmed
        self._deleted: dict[str, None] = {}  # in the order of deletion
        self._acquiring: dict[str, int] = {}  # by key, how many acquires of this process are running
        self._deferred: dict[str, tuple[str, Changed]] = {}  # by key, the last lease, whose cleanup waits for them

    def granted(self, lease: str) -> None:
        """This process has just granted the lease: it has no objects yet."""
        self._open.note(lease, 0)

    def begin(self, lease: str, count: int = 1) -> None:
        """An object is about to be written or deleted; -1: the record names the written object, or the delete is
        confirmed."""
        before = self._open.get(lease)
        if before is not None:
            self._open.note(lease, before + count)

    def is_clean(self, lease: str) -> bool:
        """Whether this lease certainly left nothing behind."""
        return self._open.get(lease) == 0

    def released_record(self, lease: str, record: KeyRecord, after: KeyRecord, at: datetime) -> KeyRecord:
        """The record after a release, with what a sweep needs to find its objects if this process does not delete them:
        recheck_at or `leaving`."""
        going = record.superseded_by(after)
        if not self.is_clean(lease):
            return replace(after, recheck_at=at + RECHECK_AFTER)
        if not self._store.index_apart:
            # No index entry remains in such a store: only recheck_at leads a sweep to what a crash leaves.
            return replace(after, recheck_at=at + RECHECK_AFTER if going else record.recheck_at)
        # The entry leads to them, but the next lease shares it if it ends in the same hour.
        leaving = self._not_deleted((*record.leaving, *going))
        if len(leaving) > LEAVING_MAX:
            return replace(after, recheck_at=at + RECHECK_AFTER, leaving=())
        return replace(after, leaving=leaving)

    def acquire_begins(self, key: str) -> None:
        """An acquire of this key begins; `came` follows."""
        self._acquiring[key] = self._acquiring.get(key, 0) + 1

    def acquire_ended(self, key: str, *, taken: bool) -> None:
        """The acquire has ended. A deferred cleanup runs now, unless the new lease carries it along."""
        others = self._acquiring[key] - 1
        if others:
            self._acquiring[key] = others
        else:
            del self._acquiring[key]
        if taken or not others:
            deferred = self._deferred.pop(key, None)
            if deferred is not None and taken:
                self._open.forget(deferred[0])
            elif deferred is not None:
                self.background.soon(self.clean_up(key, *deferred))

    async def clean_up(self, key: str, lease: str, changed: Changed) -> None:
        """Cleans up after a release."""
        before, after = changed.before, changed.after
        few = len(after.leaving) < TOGETHER
        if few and key in self._acquiring and self._store.index_apart and self.is_clean(lease):
            self._deferred[key] = (lease, changed)
            return
        going = self._not_deleted((*before.leaving, *before.superseded_by(after)))
        gone = await self.versions.drop(*going)
        self._note_deleted(going if gone else ())
        clean = self.is_clean(lease) and gone
        self._open.forget(lease)
        if gone:
            self._store.leaving_deleted(key, after)
        if not clean or before.recheck_at is not None or before.lease is None:
            return
        if self._store.index_apart:
            await self._store.leave(key, before.lease.expires_at)
            return
        if after.recheck_at is not None and self._store.cached(key) == after:
            await self._store.store(key, replace(after, recheck_at=None))

    def _not_deleted(self, states: tuple[StateObject, ...]) -> tuple[StateObject, ...]:
        """Those not yet deleted by this process: the next acquire often precedes the cleanup after the last lease."""
        return tuple(state for state in states if state.name not in self._deleted)

    def _note_deleted(self, states: tuple[StateObject, ...]) -> None:
        for state in states:
            if len(self._deleted) >= GONE_MAX:
                del self._deleted[next(iter(self._deleted))]
            self._deleted[state.name] = None

    async def clean(self, key: str, ended: int, seen: KeyRecord | None = None) -> int:
        """Deletes objects of the key that no record names, written under this token or an earlier one. The lease must
        have been cleared before. If the record `seen` names all of them, nothing is read again."""
        infos = [info for info in await self.versions.of(key) if (token_of(info.key) or 0) <= ended]
        if seen is not None:
            infos = [info for info in infos if not seen.names(info.key)]
        if not infos:
            return 0
        record = await self._store.read(key)  # read again after the listing: an object that is now named stays
        loose = [info for info in infos if record is None or not record.names(info.key)]
        return await self.versions.delete(loose)

    async def drop_staged(self, record: KeyRecord) -> None:
        """Deletes what was staged under a lease that was cleared: the record no longer names it, and never will."""
        for state in record.superseded_by(replace(record, staged=None)):
            await self.background.add(self.versions.drop(state))

    async def drop_superseded(self, lease: str, changed: Changed) -> None:
        """Deletes, while a lease continues, what it staged before and no longer names."""
        for state in changed.before.superseded_by(changed.after):
            self.begin(lease)
            await self.background.add(self.dropped(lease, state))

    async def dropped(self, lease: str, state: StateObject) -> None:
        """Deletes an object that this lease wrote; until the delete is confirmed, the lease is not clean."""
        if await self.versions.drop(state):
            self.begin(lease, -1)
