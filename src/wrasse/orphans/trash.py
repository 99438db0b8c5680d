"""Quarantine outside the root: files are copied under `.trash/<root>/<round>/`, then deleted at the version copied.

Where the store keeps what is deleted, deleting is all: the bytes stay in the store, and come back as they were.

Nothing is ever without a whole copy: the copy is there before the original goes, and the original is back before the
copy goes. Bringing back never overwrites. The marker of a unit is the first to go and the last to come back, so that
what is half there never looks whole. Each step may be repeated after a crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from wrasse.errors import Gone
from wrasse.orphans.passing import text
from wrasse.orphans.root import Root
from wrasse.orphans.spool import Listed
from wrasse.ports.objects import ObjectDelete, ObjectHead, Objects
from wrasse.ports.outcome import Outcome


def ordered(files: Sequence[Listed], marker: str) -> list[Listed]:
    """Files in the order in which they go: markers first."""
    end = marker.encode()
    return sorted(files, key=lambda file: not (end and file.key.endswith(end)))


class Trash:
    """The quarantine of one root."""

    def __init__(self, objects: Objects, root: Root) -> None:
        self._objects = objects
        self._root = root

    async def put(self, round: str, files: Sequence[Listed]) -> Outcome:
        """Moves a unit's files there. `lost` if one of them was changed meanwhile: then all are where they were."""
        moved: list[Listed] = []
        kept = self._objects.versions is not None and await self._objects.versions.keeps_deleted()
        for file in ordered(files, self._root.marker):
            if kept:
                (end,) = await self._objects.delete([ObjectDelete(text(file.key), file.version)])
            else:
                end = await self._put(text(file.key), file.version, self._key(round, file))
            if end is Outcome.DONE:
                moved.append(file)
            elif end is Outcome.LOST and await self._objects.head(text(file.key)) is None:
                continue  # gone before us: moved by a run that was cut short, or taken away by its owner
            else:
                back = await self.take(round, moved)
                return end if back in (Outcome.DONE, Outcome.LOST) else back
        return Outcome.DONE

    async def take(self, round: str, files: Sequence[Listed]) -> Outcome:
        """Brings files back to where they were. `lost` if something else stands there by now; then its copy stays."""
        ends = [await self._take(self._key(round, file), file) for file in _back(files, self._root.marker)]
        for worst in (Outcome.FAILED, Outcome.UNKNOWN, Outcome.LOST):
            if worst in ends:
                return worst
        return Outcome.DONE

    async def empty(self, round: str, files: Sequence[Listed]) -> Outcome:
        """Deletes the copies of a unit for good."""
        for file in ordered(files, self._root.marker):
            key = self._key(round, file)
            head = await self._objects.head(key)
            if head is not None:
                (end,) = await self._objects.delete([ObjectDelete(key, head.info.version)])
                if end not in (Outcome.DONE, Outcome.LOST):
                    return end
            if self._objects.versions is not None:
                end = await self._objects.versions.purge(text(file.key), at=file.version)
                if end is not Outcome.DONE:
                    return end
        return Outcome.DONE

    async def holds(self, round: str, files: Sequence[Listed]) -> bool:
        """Whether any of these files is in quarantine."""
        for file in files:
            if await self._objects.head(self._key(round, file)) is not None:
                return True
            kept = self._objects.versions
            if kept is not None and await kept.deleted(text(file.key), at=file.version):
                return True
        return False

    def _key(self, round: str, file: Listed) -> str:
        return f"{self._root.trash}{round}/{text(file.key)}"

    async def _put(self, key: str, version: str, to: str) -> Outcome:
        head = await self._objects.head(key)
        if head is None or head.info.version != version:
            return Outcome.LOST
        copied = await self._copy(head, to)
        if copied is Outcome.LOST and not await self._same(key, to):
            there = await self._objects.head(to)
            return Outcome.LOST if there is None else Outcome.FAILED
        if copied in (Outcome.UNKNOWN, Outcome.FAILED):
            return copied
        (end,) = await self._objects.delete([ObjectDelete(key, version)])
        if end is Outcome.LOST and await self._objects.head(key) is not None:
            await self._drop(to)
        return end

    async def _take(self, copy: str, file: Listed) -> Outcome:
        head, key = await self._objects.head(copy), text(file.key)
        if head is None:
            # Brought back before us, or never moved: what matters is that it is there.
            if await self._objects.head(key) is not None:
                return Outcome.DONE
            if self._objects.versions is not None:
                return await self._objects.versions.undelete(key, at=file.version)
            return Outcome.LOST
        copied = await self._copy(head, key)
        if copied in (Outcome.UNKNOWN, Outcome.FAILED):
            return copied
        if copied is Outcome.LOST and not await self._same(copy, key):
            return Outcome.LOST
        await self._objects.delete([ObjectDelete(copy, head.info.version)])
        return Outcome.DONE

    async def _copy(self, head: ObjectHead, to: str) -> Outcome:
        """Gives an object a second key, in the store where it can do that, else through us."""
        key, version = head.info.key, head.info.version
        if self._objects.copies is not None:
            end = await self._objects.copies.copy(key, to, at=version)
            if end is not Outcome.FAILED:
                return end
        try:
            data = self._objects.read(key, at=version)
            return (await self._objects.create(to, data, metadata=head.metadata)).outcome
        except Gone:
            return Outcome.LOST

    async def _drop(self, key: str) -> None:
        head = await self._objects.head(key)
        if head is not None:
            await self._objects.delete([ObjectDelete(key, head.info.version)])

    async def _same(self, one: str, other: str) -> bool:
        """Whether two objects hold the same bytes."""
        return await self._digest(one) == await self._digest(other)

    async def _digest(self, key: str) -> bytes:
        told = hashlib.blake2b()
        try:
            async for chunk in self._objects.read(key):
                told.update(chunk)
        except Gone:
            return b""
        return told.digest()


def _back(files: Sequence[Listed], marker: str) -> list[Listed]:
    return ordered(files, marker)[::-1]
