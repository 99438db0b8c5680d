"""Removing orphans in batches, each under what is true now, not what was true during the scan.

    the sighting is unchanged -> no reference protects the unit now -> change

The catalog is queried last, right before the change; a unit that is referenced by then is not touched. Objects are
deleted at the versions that were judged, markers first.

Quarantine outside the root: files are copied to `.trash/<root>/<scan>/`, then deleted at the version copied. In a
store that keeps deleted versions, files are only deleted: the bytes stay in the store and can be undeleted.

There is a complete copy at any time: the copy exists before the original is deleted, and the original is restored
before the copy is deleted. Restoring never overwrites. The marker of a unit is deleted first and restored last, so that
an incomplete unit never appears complete. Each step may be repeated after a crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from wrasse.errors import Gone
from wrasse.orphans.merge import live, text, upload_of
from wrasse.orphans.root import MARK, Root
from wrasse.orphans.spool import SpooledObject
from wrasse.orphans.verdict import ABORT, DELETE, DISCARD, PURGE, QUARANTINE, RESTORE, KnownSighting, Suspected, unpack
from wrasse.ports.catalog import Catalog
from wrasse.ports.objects import DELETES_MAX, ObjectDelete, ObjectHead, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.sightings import Sighting, SightingChange, Sightings, SightingState

SETTLED_MAX = 10_000  # cached; beyond that a unit is tried again in each scan
_UNASKED = (RESTORE, DISCARD)  # the object at its key is not touched, so references are not queried


def ordered(files: Sequence[SpooledObject], marker: str) -> list[SpooledObject]:
    """Files in the order of deletion: markers first."""
    end = marker.encode()
    return sorted(files, key=lambda file: not (end and file.key.endswith(end)))


class Trash:
    """The quarantine of one root."""

    def __init__(self, objects: Objects, root: Root) -> None:
        self._objects = objects
        self._root = root

    async def put(self, scan: str, files: Sequence[SpooledObject]) -> Outcome:
        """Moves a unit's files to quarantine. `conflict` if one of them was changed meanwhile: then all are back in
        place."""
        moved: list[SpooledObject] = []
        kept = self._objects.versions is not None and await self._objects.versions.keeps_deleted()
        for file in ordered(files, self._root.marker):
            if kept:
                (end,) = await self._objects.delete([ObjectDelete(text(file.key), file.version)])
            else:
                end = await self._put(text(file.key), file.version, self._key(scan, file))
            if end is Outcome.DONE:
                moved.append(file)
            elif end is Outcome.CONFLICT and await self._objects.head(text(file.key)) is None:
                continue  # gone already: moved by an interrupted run, or deleted by its owner
            else:
                back = await self.take(scan, moved)
                return end if back in (Outcome.DONE, Outcome.CONFLICT) else back
        return Outcome.DONE

    async def take(self, scan: str, files: Sequence[SpooledObject]) -> Outcome:
        """Restores files. `conflict` if another object exists at the key; then the copy stays."""
        files = ordered(files, self._root.marker)[::-1]  # markers last
        ends = [await self._take(self._key(scan, file), file) for file in files]
        for worst in (Outcome.FAILED, Outcome.UNKNOWN, Outcome.CONFLICT):
            if worst in ends:
                return worst
        return Outcome.DONE

    async def empty(self, scan: str, files: Sequence[SpooledObject]) -> Outcome:
        """Deletes the copies of a unit permanently."""
        for file in ordered(files, self._root.marker):
            key = self._key(scan, file)
            head = await self._objects.head(key)
            if head is not None:
                (end,) = await self._objects.delete([ObjectDelete(key, head.info.version)])
                if end not in (Outcome.DONE, Outcome.CONFLICT):
                    return end
            if self._objects.versions is not None:
                end = await self._objects.versions.purge(text(file.key), at=file.version)
                if end is not Outcome.DONE:
                    return end
        return Outcome.DONE

    async def holds(self, scan: str, files: Sequence[SpooledObject]) -> bool:
        """Whether any of these files is in quarantine."""
        for file in files:
            if await self._objects.head(self._key(scan, file)) is not None:
                return True
            kept = self._objects.versions
            if kept is not None and await kept.deleted(text(file.key), at=file.version):
                return True
        return False

    def _key(self, scan: str, file: SpooledObject) -> str:
        return f"{self._root.trash}{scan}/{text(file.key)}"

    async def _put(self, key: str, version: str, to: str) -> Outcome:
        head = await self._objects.head(key)
        if head is None or head.info.version != version:
            return Outcome.CONFLICT
        copied = await self._copy(head, to)
        if copied is Outcome.CONFLICT and not await self._same(key, to):
            there = await self._objects.head(to)
            return Outcome.CONFLICT if there is None else Outcome.FAILED
        if copied in (Outcome.UNKNOWN, Outcome.FAILED):
            return copied
        (end,) = await self._objects.delete([ObjectDelete(key, version)])
        if end is Outcome.CONFLICT and await self._objects.head(key) is not None:
            await self._drop(to)
        return end

    async def _take(self, copy: str, file: SpooledObject) -> Outcome:
        head, key = await self._objects.head(copy), text(file.key)
        if head is None:
            # Restored before, or never moved: it is enough that it exists.
            if await self._objects.head(key) is not None:
                return Outcome.DONE
            if self._objects.versions is not None:
                return await self._objects.versions.undelete(key, at=file.version)
            return Outcome.CONFLICT
        copied = await self._copy(head, key)
        if copied in (Outcome.UNKNOWN, Outcome.FAILED):
            return copied
        if copied is Outcome.CONFLICT and not await self._same(copy, key):
            return Outcome.CONFLICT
        await self._objects.delete([ObjectDelete(copy, head.info.version)])
        return Outcome.DONE

    async def _copy(self, head: ObjectHead, to: str) -> Outcome:
        """Copies an object to a second key, in the store if that is supported, else through this process."""
        key, version = head.info.key, head.info.version
        if self._objects.copies is not None:
            end = await self._objects.copies.copy(key, to, at=version)
            if end is not Outcome.FAILED:
                return end
        try:
            data = self._objects.read(key, at=version)
            return (await self._objects.create(to, data, metadata=head.metadata)).outcome
        except Gone:
            return Outcome.CONFLICT

    async def _drop(self, key: str) -> None:
        head = await self._objects.head(key)
        if head is not None:
            await self._objects.delete([ObjectDelete(key, head.info.version)])

    async def _same(self, one: str, other: str) -> bool:
        """Whether two objects hold the same bytes."""
        return await self._digest(one) == await self._digest(other)

    async def _digest(self, key: str) -> bytes:
        digest = hashlib.blake2b()
        try:
            async for chunk in self._objects.read(key):
                digest.update(chunk)
        except Gone:
            return b""
        return digest.digest()


class Removal:
    """Removes and restores units. `protected` counts units that turned out to be referenced, `asked` all that were
    checked."""

    def __init__(self, root: Root, objects: Objects, catalog: Catalog, sightings: Sightings) -> None:
        self._root = root
        self._objects = objects
        self._catalog = catalog
        self._sightings = sightings
        self._trash = Trash(objects, root)
        self.asked = 0
        self.protected = 0
        self._settled: dict[bytes, str] = {}  # by unit: fingerprints of units in the trash that were written again

    async def apply(
        self, suspects: Sequence[Suspected], *, scan: str, tick: int, snapshot_at: datetime
    ) -> list[Outcome]:
        """Carries out each suspect's verb; returns the outcomes in their order."""
        if any(each.verb == ABORT for each in suspects):
            return await self._apply_with_uploads(suspects, scan, tick, snapshot_at)
        ends = [Outcome.CONFLICT] * len(suspects)
        found = await self._sightings.get(self._root.name, [text(each.known.unit) for each in suspects])
        standing = [index for index, each in enumerate(suspects) if _stands(each.known, found[index])]
        removed = [index for index in standing if suspects[index].verb not in _UNASKED]
        free = await self._unreferenced([suspects[index].known for index in removed], snapshot_at)
        todo = {index for index in standing if suspects[index].verb in _UNASKED}
        todo |= {index for index, is_free in zip(removed, free, strict=True) if is_free}
        for verb, change in (
            (RESTORE, self._restore),
            (QUARANTINE, lambda batch: self._quarantine(batch, scan, tick)),
            (PURGE, self._purge),
            (DISCARD, self._discard),
            (DELETE, self._delete),
        ):
            mine = [index for index in sorted(todo) if suspects[index].verb == verb]
            if mine:
                for index, end in zip(mine, await change([suspects[i].known for i in mine]), strict=True):
                    ends[index] = end
        return ends

    async def _apply_with_uploads(
        self, suspects: Sequence[Suspected], scan: str, tick: int, snapshot_at: datetime
    ) -> list[Outcome]:
        """A batch with uploads: they have no sighting, so they are processed separately."""
        units = [each for each in suspects if each.verb != ABORT]
        uploads = [each for each in suspects if each.verb == ABORT]
        free = await self._unreferenced([_in_unit(each.known, self._root) for each in uploads], snapshot_at)
        gone = await self._abort([each for each, is_free in zip(uploads, free, strict=True) if is_free])
        others = await self.apply(units, scan=scan, tick=tick, snapshot_at=snapshot_at) if units else []
        left, aborted, ended = iter(others), iter(gone), iter(free)
        return [
            (next(aborted) if next(ended) else Outcome.CONFLICT) if each.verb == ABORT else next(left)
            for each in suspects
        ]

    async def _abort(self, uploads: Sequence[Suspected]) -> Sequence[Outcome]:
        assert self._objects.multipart is not None, "a store that listed uploads can abort them"
        return await self._objects.multipart.abort([upload_of(each) for each in uploads])

    async def _unreferenced(self, units: Sequence[KnownSighting], snapshot_at: datetime) -> list[bool]:
        """Which units have no protecting reference now."""
        if not units:
            return []
        names = [text(each.unit) for each in units]
        found = await self._catalog.referenced(names, below=self._root.template.directories)
        free = [each is None or not live(each, self._root, snapshot_at) for each in found]
        self.asked += len(free)
        self.protected += free.count(False)
        return free

    async def _quarantine(self, units: Sequence[KnownSighting], scan: str, tick: int) -> list[Outcome]:
        to = SightingState.MARKED if self._root.quarantine_by == MARK else SightingState.MOVED
        fresh = [each for each in units if each.state == SightingState.SEEN]
        # Noted before anything moves: after a crash the unit is known to be in quarantine, and is found again.
        marks = [
            SightingChange(text(each.unit), SightingState.SEEN, each.fingerprint, to, scan, tick) for each in fresh
        ]
        noted = dict(zip([each.unit for each in fresh], await self._mark(marks), strict=True))
        ends = []
        for each in units:
            end = noted.get(each.unit, Outcome.DONE)
            if end is Outcome.DONE and SightingState.MOVED in (to, each.state):
                end = await self._move(each, each.state_scan or scan)
            ends.append(end)
        return ends

    async def _move(self, known: KnownSighting, scan: str) -> Outcome:
        files = unpack(known.files)
        end = await self._trash.put(scan, files)
        if end is Outcome.CONFLICT and not await self._trash.holds(scan, files):
            # It was written meanwhile: it stays in place, and its grace starts again. A copy made by an earlier attempt
            # keeps its sighting, which leads to the copy.
            await self._mark([_forget(known, SightingState.MOVED)])
        return end

    async def _restore(self, units: Sequence[KnownSighting]) -> list[Outcome]:
        ends = []
        for each in units:
            end = Outcome.DONE
            if each.state == SightingState.MOVED:
                end = await self._trash.take(each.state_scan, unpack(each.files))
            if end is Outcome.DONE:
                (end,) = await self._mark([_forget(each, SightingState(each.state))])
            elif end is Outcome.CONFLICT and len(self._settled) < SETTLED_MAX and await self._there(unpack(each.files)):
                self._settled[each.unit] = each.fingerprint
            ends.append(end)
        return ends

    def settled(self, known: KnownSighting) -> bool:
        """Whether a unit is known to have been written again since it was moved: the present object counts, and its
        copy waits for the end of its quarantine."""
        return self._settled.get(known.unit) == known.fingerprint

    async def _discard(self, units: Sequence[KnownSighting]) -> list[Outcome]:
        """Empties the trash of units that were written again, if all of their files exist at their keys now."""
        ends = []
        for each in units:
            files, end = unpack(each.files), Outcome.CONFLICT
            if await self._there(files):
                end = await self._trash.empty(each.state_scan, files)
            if end is Outcome.DONE:
                (end,) = await self._mark([_forget(each, SightingState.MOVED)])
            ends.append(end)
        return ends

    async def _there(self, files: Sequence[SpooledObject]) -> bool:
        for file in files:
            if await self._objects.head(text(file.key)) is None:
                return False
        return True

    async def _purge(self, units: Sequence[KnownSighting]) -> list[Outcome]:
        here = [each for each in units if each.state == SightingState.MARKED]
        ends = dict(zip([each.unit for each in here], await self._delete(here), strict=True))
        for each in units:
            if each.state == SightingState.MOVED:
                end = await self._trash.empty(each.state_scan, unpack(each.files))
                ends[each.unit] = (
                    (await self._mark([_forget(each, SightingState.MOVED)]))[0] if end is Outcome.DONE else end
                )
        return [ends[each.unit] for each in units]

    async def _delete(self, units: Sequence[KnownSighting]) -> list[Outcome]:
        """Deletes the files of units in place: all markers first, then the files of units whose markers are deleted."""
        ends = [Outcome.DONE] * len(units)
        files = [ordered(unpack(each.files), self._root.marker) for each in units]
        marker = self._root.marker.encode()
        for first in (True, False):
            batch = [
                (index, file)
                for index, mine in enumerate(files)
                if ends[index] is Outcome.DONE
                for file in mine
                if bool(marker and file.key.endswith(marker)) is first
            ]
            for start in range(0, len(batch), DELETES_MAX):
                await self._delete_files(batch[start : start + DELETES_MAX], ends)
        done = [(index, each) for index, each in enumerate(units) if ends[index] is Outcome.DONE]
        marked = await self._mark([_forget(each, SightingState(each.state)) for _, each in done])
        for (index, _), end in zip(done, marked, strict=True):
            ends[index] = end
        return ends

    async def _delete_files(self, batch: Sequence[tuple[int, SpooledObject]], ends: list[Outcome]) -> None:
        deletes = [ObjectDelete(text(file.key), file.version) for _, file in batch]
        for (index, file), end in zip(batch, await self._objects.delete(deletes), strict=True):
            if end is Outcome.CONFLICT and await self._objects.head(text(file.key)) is None:
                end = Outcome.DONE  # already gone
            if end is Outcome.DONE and self._objects.versions is not None:
                end = await self._objects.versions.purge(text(file.key), at=file.version)
            if end is not Outcome.DONE and ends[index] is Outcome.DONE:
                ends[index] = end

    async def _mark(self, marks: Sequence[SightingChange]) -> Sequence[Outcome]:
        return await self._sightings.mark(self._root.name, marks) if marks else []


def _stands(known: KnownSighting, found: Sighting | None) -> bool:
    """Whether a sighting is unchanged since it was judged."""
    return found is not None and (
        (found.state, found.fingerprint, found.first_scan, found.state_scan)
        == (known.state, known.fingerprint, known.first_scan, known.state_scan)
    )


def _in_unit(upload: KnownSighting, root: Root) -> KnownSighting:
    """The unit that an upload belongs to: its references also protect the upload."""
    place = root.template.place(upload.unit)
    return upload if place is None else KnownSighting(place.unit)


def _forget(known: KnownSighting, state: SightingState) -> SightingChange:
    return SightingChange(text(known.unit), state, known.fingerprint, None)
