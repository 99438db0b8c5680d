"""Publishing archives into a stream again: each message once where the backend knows keys, in order, as it was.

Bodies and fields are appended as they were archived, byte for byte, so a message keeps its id. The key of an entry is
made of where it came from: whoever runs a replay again within the backend's window after an interruption adds nothing
twice; later, or where a backend has no keys, consumers know messages by their id.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta

from wrasse.archives.reader import Archived
from wrasse.ports.streams import Draft, Streams

_BATCH = 500
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to."""

    messages: int
    bytes: int


async def replay(
    messages: AsyncIterator[Archived],
    streams: Streams | None,
    into: str | None,
    told: Callable[[int], None] = lambda count: None,
) -> Replayed:
    """Appends messages to the stream `into`, or each to the one it came from; without `streams` it only counts."""
    keyed = streams is not None and streams.dedup_window > timedelta(0)
    count = size = held = 0
    drafts: list[Draft] = []
    async for archived in messages:
        entry = archived.entry
        subject = into or entry.subject
        key = _key(archived, subject) if keyed else ""
        drafts.append(Draft(subject, entry.body, key, entry.fields))
        count, size, held = count + 1, size + len(entry.body), held + len(entry.body)
        if len(drafts) >= _BATCH or held >= _BATCH_BYTES:
            await _append(streams, drafts, told)
            drafts, held = [], 0
    await _append(streams, drafts, told)
    return Replayed(count, size)


async def _append(streams: Streams | None, drafts: list[Draft], told: Callable[[int], None]) -> None:
    if streams is not None and drafts:
        await streams.append(drafts)
    told(len(drafts))


def _key(archived: Archived, subject: str) -> str:
    entry = archived.entry
    origin = f"{entry.subject} {entry.id} {archived.key} {subject}"
    return f"replay:{hashlib.sha256(origin.encode('utf-8', 'surrogateescape')).hexdigest()}"
