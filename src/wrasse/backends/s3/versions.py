"""Deleted objects in a versioned bucket: found by their tag, restored, or deleted for good.

A delete leaves a marker, and the bytes stay as an older version. Nothing here changes the current object of a key: a
version is removed by its own id, and only while it is not the latest or hidden by a marker. A marker is removed only if
that restores the requested version, or nothing at all.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from wrasse.backends.s3.client import ABSENT, Client
from wrasse.backends.s3.failures import S3Denied
from wrasse.backends.s3.transport import NoAnswer
from wrasse.backends.s3.xml import KeptVersion
from wrasse.errors import StoreBroken, StoreUnavailable, WrasseError
from wrasse.ports.outcome import Outcome

ENABLED = "Enabled"
PAGES_MAX = 20
"""Pages of versions of one key that are read."""
_BELIEVED = timedelta(minutes=1)


class BucketVersions:
    """The versions of one bucket."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ever: tuple[bool, datetime] | None = None  # whether it ever kept versions, and when that was read

    async def keeps_deleted(self) -> bool:
        """Whether deleted objects are kept now. Read again each time: objects that were written before versioning was
        enabled are lost once it is suspended."""
        try:
            return await self._client.versioning() == ENABLED
        except WrasseError:
            return False  # an unknown status counts as no versioning

    async def deleted(self, key: bytes, etag: str) -> bool:
        """Whether this object is kept as a deleted version, and is not the current one."""
        return any(each.etag == etag and not each.latest for each in await self._versions(key))

    async def undelete(self, key: bytes, etag: str) -> Outcome:
        """Restores an object: by removing its marker if the key has nothing else, else by a copy."""
        found = await self._versions(key)
        latest = next((each for each in found if each.latest), None)
        if latest is not None and not latest.marker:
            return Outcome.DONE if latest.etag == etag else Outcome.CONFLICT
        kept = [each for each in found if not each.marker]
        mine = next((each for each in kept if each.etag == etag), None)
        if mine is None:
            return Outcome.CONFLICT
        if len(kept) == 1:
            for each in found:
                if each.marker:
                    await self._client.remove_version(key, each.id)
            return Outcome.DONE if await self._stands(key, etag) else Outcome.CONFLICT
        try:
            copied = await self._client.copy(key, etag, key, ABSENT, version=mine.id)
        except NoAnswer:
            return Outcome.DONE if await self._stands(key, etag) else Outcome.UNKNOWN
        return Outcome.CONFLICT if copied is None else Outcome.DONE

    async def purge(self, key: bytes, etag: str) -> Outcome:
        """Deletes a deleted version for good, and the markers once they hide nothing."""
        try:
            for each in await self._versions(key):
                if each.etag == etag and not each.marker and not each.latest:
                    await self._client.remove_version(key, each.id)
            left = await self._versions(key)
            if all(each.marker for each in left):
                for each in left:
                    await self._client.remove_version(key, each.id)
        except S3Denied:
            return Outcome.FAILED
        return Outcome.DONE

    async def wipe(self, key: bytes) -> None:
        """Deletes all versions of a key. For keys of our own that no other program uses."""
        for each in await self._versions(key):
            await self._client.remove_version(key, each.id)

    async def _versions(self, key: bytes) -> list[KeptVersion]:
        """All versions of one key; none if the bucket never kept any."""
        if not await self._ever_kept():
            return []
        found: list[KeptVersion] = []
        markers: tuple[str, str] | None = None
        for _ in range(PAGES_MAX):
            page, markers = await self._client.versions(key, markers)
            found += [each for each in page if each.key == key]
            # Keys come in order: longer keys with this prefix come after it.
            if markers is None or (page and page[-1].key != key):
                return found
        raise StoreUnavailable(
            f"{self._client.where} has more versions of one key than are read",
            do="let a lifecycle rule expire old ones",
        )

    async def _ever_kept(self) -> bool:
        now = self._client.wire.time.now()
        if self._ever is None or abs(now - self._ever[1]) > _BELIEVED:
            try:
                self._ever = (bool(await self._client.versioning()), now)
            except (S3Denied, StoreBroken):
                self._ever = (False, now)  # a store without versioning, or without permission to read it
        return self._ever[0]

    async def _stands(self, key: bytes, etag: str) -> bool:
        seen = await self._client.head(key)
        return seen is not None and seen.etag == etag
