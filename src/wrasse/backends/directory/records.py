"""Records as JSON files: `<data>/<stored name>.json`, found when due through `<index>/<bucket>/<stored name>`.

The port's promises hold between processes and through a crash at any point; `record_files.py` says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from wrasse.backends.bucket.asked import Answer, Change, DueSpot
from wrasse.backends.bucket.envelope import Kept
from wrasse.backends.directory.record_files import RecordFiles
from wrasse.backends.directory.threads import Threads


class ThreadedRecords:
    """The files of one collection, asked in threads."""

    def __init__(self, threads: Threads, files: RecordFiles) -> None:
        self._threads, self._files = threads, files

    async def get(self, stored: bytes, entering: datetime | None = None) -> Kept | None:
        return await self._threads.run(lambda: self._files.get(stored))

    async def write(self, change: Change) -> Answer:
        return await self._threads.run(lambda: self._files.write(change))

    async def leave(self, stored: bytes, due_at: datetime) -> None:
        await self._threads.run(lambda: self._files.leave(stored, due_at))

    async def page(self, prefix: bytes, after: bytes | None, limit: int) -> tuple[Sequence[tuple[bytes, Kept]], bool]:
        found = await self._threads.run(lambda: self._files.page(prefix, after, limit))
        return found.found, found.more

    async def due(
        self, horizon: datetime, after: DueSpot | None, limit: int
    ) -> tuple[Sequence[tuple[DueSpot, Kept]], bool]:
        return await self._threads.run(lambda: self._files.due(horizon, after, limit))
