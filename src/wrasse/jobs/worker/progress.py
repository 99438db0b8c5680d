"""Progress of handlers: written to the backend at once, then at most once a second for all jobs together.

The newest progress of a job is written before the job is settled, so the last report stays. Progress is best effort:
while the backend does not answer it is kept and written later, and no handler waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta

from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import BATCH_MAX, Claim, JobQueue, Progress, WorkerInfo

_PAUSE = 1.0  # seconds between two writes
_WRITE_MAX = 5.0  # seconds that one write may delay a settle


class ProgressReporter:
    """Progress that one worker's handlers reported, until it is written."""

    __slots__ = ("_heartbeat_timeout", "_jobs", "_latest", "_wake", "_worker", "_writing", "wrote")

    def __init__(self, jobs: JobQueue, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        self._jobs, self._worker, self._heartbeat_timeout = jobs, worker, heartbeat_timeout
        self._latest: dict[str, tuple[Claim, Progress]] = {}  # bounded by the jobs in flight
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self.wrote = False

    @property
    def pending(self) -> bool:
        """Whether there is progress that may not be stored yet."""
        return bool(self._latest) or self._writing.locked()

    def note(self, claim: Claim, progress: Progress) -> None:
        """Keeps the newest progress of a job."""
        self._latest[claim.id] = (claim, progress)
        self._wake.set()

    async def run(self) -> None:
        """Writes progress until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write(self._latest.keys())
            await asyncio.sleep(_PAUSE)

    async def report(self, ids: Collection[str]) -> None:
        """Writes the progress of these jobs, which are about to be settled, and forgets it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_MAX):
                await self._write(ids)
        for id in ids:
            self._latest.pop(id, None)

    async def _write(self, ids: Collection[str]) -> None:
        async with self._writing:
            due = {id: self._latest[id] for id in [*ids][:BATCH_MAX] if id in self._latest}
            if not due:
                return
            progress = {id: word for id, (_, word) in due.items()}
            try:
                claims = [claim for claim, _ in due.values()]
                await self._jobs.heartbeat(
                    self._worker, claims, heartbeat_timeout=self._heartbeat_timeout, progress=progress
                )
            except StoreUnavailable:
                self._wake.set()
                return
            self.wrote = True
            for id, word in due.items():
                if self._latest.get(id) is word:
                    del self._latest[id]
            if self._latest:
                self._wake.set()
