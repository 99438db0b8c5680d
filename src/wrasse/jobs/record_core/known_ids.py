"""Ids that are refused although their job is gone, as records; and names that every store accepts."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime

from wrasse.jobs.record_core.claims import MillisecondTime
from wrasse.ports.records import Records

_OLD_MAX = 100  # removed by one call of keep
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


class RecordedIds:
    """Ids of lasting jobs that were deleted, each with its expiry."""

    def __init__(self, records: Records, time: MillisecondTime) -> None:
        self._records, self._time = records, time

    async def known(self, id: str, at: datetime) -> bool:
        """Whether this id is still refused."""
        record = await self._records.get(plain(id))
        return record is not None and record.due_at is not None and record.due_at > at

    async def keep(self, id: str, expires_at: datetime) -> None:
        """Stores the id of a job that is about to be deleted, and removes some expired ids."""
        key = plain(id)
        found = await self._records.get(key)
        if found is None:
            await self._records.create(key, b"{}", due_at=expires_at)
        else:
            await self._records.put(key, b"{}", at=found.version, due_at=expires_at)
        at = await self._time.now()
        for record in await self._records.due(None, None, _OLD_MAX):
            if record.due_at is not None and record.due_at <= at:
                await self._records.delete(record.key, at=record.version)


def plain(text: str) -> str:
    """A text as part of a name that every store accepts: itself where that is plain, else a digest."""
    if _PLAIN.fullmatch(text):
        return text
    return "~" + hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
