"""Who works: one record per worker that has beaten and has not said goodbye, listed for an hour after its last
beat. Nothing is decided by it: what a worker holds is judged by the deadline of each job."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.jobs.record_core.store_time import StoreTime
from wrasse.ports.jobs import Counts, WorkerInfo, WorkerState
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages
from wrasse.ports.records import Records

SILENT_KEPT = timedelta(hours=1)
_PAGE = 1_000
_OLD_MAX = 20  # removed by one beat
_decode = msgspec.json.Decoder(WorkerState).decode


class RecordedWorkers:
    """The workers of all types."""

    def __init__(self, records: Records, time: StoreTime) -> None:
        self._records = records
        self._time = time
        self._versions: dict[str, str] = {}  # of the records that this process writes

    async def beat(self, worker: WorkerInfo, at: datetime, silence: timedelta) -> None:
        """Notes a sign of life."""
        state = WorkerState(worker, beat_at=at, until=at + silence)
        value, due_at = msgspec.json.encode(state), state.until + SILENT_KEPT
        version = self._versions.get(worker.id)
        if version is not None:
            written = await self._records.put(worker.id, value, at=version, due_at=due_at)
        else:
            await self._forget(at)
            written = await self._records.create(worker.id, value, due_at=due_at)
        if written.outcome is not Outcome.DONE:
            # Another process of the same worker, such as the child that beats for it, was here meanwhile.
            found = await self._records.get(worker.id)
            written = (
                await self._records.create(worker.id, value, due_at=due_at)
                if found is None
                else await self._records.put(worker.id, value, at=found.version, due_at=due_at)
            )
        self._time.heard(written.at)
        if written.version is None:
            self._versions.pop(worker.id, None)
        else:
            self._versions[worker.id] = written.version

    async def goodbye(self, worker: WorkerInfo) -> None:
        """Takes a worker off the list."""
        self._versions.pop(worker.id, None)
        found = await self._records.get(worker.id)
        if found is not None:
            await self._records.delete(worker.id, at=found.version)

    async def all(self, at: datetime) -> tuple[WorkerState, ...]:
        """The workers, by their ids."""
        found: list[WorkerState] = []
        async for page in pages(lambda after: self._records.page("", after, _PAGE)):
            for record in page:
                with suppress(ValueError):  # nothing is decided by it: a row that cannot be read is not shown
                    found.append(decoded(_decode, record.value))
        return tuple(state for state in found if at - state.until <= SILENT_KEPT)

    async def counts(self) -> Counts:
        """The workers alone, for whoever asks after them: jobs are not counted for that."""
        at = await self._time.now()
        return Counts((), await self.all(at), at)

    async def _forget(self, at: datetime) -> None:
        for record in await self._records.due(None, None, _OLD_MAX):
            if record.due_at is not None and record.due_at <= at:
                await self._records.delete(record.key, at=record.version)
