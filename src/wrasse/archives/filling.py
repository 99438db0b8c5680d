"""Filling a batch: read, check and compress at the same time, with one stretch under way and one piece in a thread.

Whatever was asked for is answered before this returns: nothing is read or compressed behind anybody's back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from wrasse.archives.batch import PIECE_BYTES, Batch, Sealed
from wrasse.ports.drains import Stretch
from wrasse.ports.streams import EntryId, Streams

STRETCH = 1_000  # entries read at once
_AT_ONCE_BYTES = 64 << 10


async def fill(
    batch: Batch, streams: Streams, subject: str, after: EntryId, stopping: asyncio.Event
) -> datetime | None:
    """Extends a batch with what follows it, or `after` where it is empty, until it is complete or there is no more;
    gives the backend's clock at the last read. Reads nothing once `stopping` is set."""
    try:
        async with asyncio.TaskGroup() as group:
            return await _Filling(batch, streams, subject, group, stopping).run(batch.last or after)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def sealed_of(batch: Batch) -> Sealed:
    """The batch, sealed; in a thread where that is long enough to be worth one."""
    return batch.seal() if batch.held < _AT_ONCE_BYTES else await asyncio.to_thread(batch.seal)


class _Filling:
    def __init__(
        self, batch: Batch, streams: Streams, subject: str, group: asyncio.TaskGroup, stopping: asyncio.Event
    ) -> None:
        self._batch = batch
        self._streams = streams
        self._subject = subject
        self._group = group
        self._stopping = stopping
        self._pressing: asyncio.Task[None] | None = None

    async def run(self, after: EntryId) -> datetime | None:
        at: datetime | None = None
        reading = self._read(after, self._batch.room)
        while reading is not None:
            stretch = await reading
            at = stretch.at
            # Asked for before this one is looked at, so that the backend works meanwhile.
            left = self._batch.room - len(stretch)
            reading = self._read(stretch.id(len(stretch) - 1), left) if stretch.more else None
            await asyncio.sleep(0)  # a task begins when its maker waits; what follows does not wait for long
            self._batch.extend(stretch)
            if self._batch.complete and reading is not None:
                await reading  # its bytes or its day made it complete: what was read ahead is for the next batch
                break
            if self._batch.waiting >= PIECE_BYTES:
                await self._press()
        if self._pressing is not None:
            await self._pressing
        return at

    def _read(self, after: EntryId, room: int) -> asyncio.Task[Stretch] | None:
        if room <= 0 or self._stopping.is_set():
            return None
        return self._group.create_task(self._streams.stretch(self._subject, after, min(STRETCH, room)))

    async def _press(self) -> None:
        press: Callable[[list[bytes]], None] = self._batch.press
        if self._pressing is not None:
            await self._pressing
        self._pressing = self._group.create_task(asyncio.to_thread(press, self._batch.piece()))
