"""Cursors: how far each stream is archived, kept as one record per subject.

A record is {after, passed}: everything up to `after` is in archives; or {after, passed, key}: somebody meant to write
the archive that follows `after` under this key, and whoever finds that uses this key and no other. Every change names
the version it read. A lost reply needs no care: whichever of the two states is found afterwards is one to go on from.

`epoch` grows when a stream was set back and is archived anew; `history` is what the backend called itself when the
cursor was written, so that a failover or a restore is noticed before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from wrasse.archives.batch import ArchiveFacts
from wrasse.bounded import decoded
from wrasse.errors import StoreBroken
from wrasse.ports.records import Collection, Record, Records, Written
from wrasse.ports.streams import SEQ_MAX, EntryId

CURSORS = Collection.named("archives/cursors")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the archiving of a stream stands. `passed` counts what the stream ever held up to `after`, where that can
    be known; `key` is where an archive was meant to be written."""

    subject: str
    after: EntryId
    passed: int | None
    key: str | None = None
    version: str = ""
    epoch: int = 1
    history: str = ""


class _Stored(msgspec.Struct, omit_defaults=True):
    after: str
    passed: int | None = None
    key: str | None = None
    epoch: int = 1
    history: str = ""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(_Stored).decode


def decode_cursor(record: Record) -> Cursor:
    """The cursor in a record, whose key is the subject; StoreBroken if it holds none."""
    try:
        stored = decoded(_DECODE, record.value)
        after = EntryId.parse(stored.after)
        if after.ms < 0 or not 0 <= after.seq <= SEQ_MAX or stored.epoch < 1:
            raise ValueError(f"{stored.after[:40]!r} is no position in a stream")
        return Cursor(record.key, after, stored.passed, stored.key, record.version, stored.epoch, stored.history)
    except ValueError as why:
        raise StoreBroken(
            f"the cursor of {record.key!r} is none of ours: {why}",
            do="delete that record: it is made again from the group and the newest archive",
        ) from why


class Cursors:
    """The cursors of one set of streams. None as an answer to a change: somebody else was there first; look again."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def load(self, subject: str) -> Cursor | None:
        """The cursor of a stream as it is now."""
        record = await self._records.get(subject)
        return None if record is None else decode_cursor(record)

    async def create(self, cursor: Cursor) -> Cursor | None:
        """The first cursor of a stream."""
        return _written(cursor, await self._records.create(cursor.subject, _bytes(cursor)))

    async def intend(self, cursor: Cursor, key: str) -> Cursor | None:
        """Fixes the key of the archive that follows."""
        assert cursor.key is None, "the key was fixed before"
        return await self._put(replace(cursor, key=key))

    async def move(self, cursor: Cursor) -> Cursor | None:
        """Moves on to where the archives are known to go on."""
        return await self._put(replace(cursor, key=None))

    async def commit(self, cursor: Cursor, facts: ArchiveFacts) -> Cursor | None:
        """Moves on behind the archive that is at the cursor's key."""
        assert cursor.key is not None, "the key is fixed before the archive is written"
        assert facts.last > cursor.after, "an archive moves its stream on"
        return await self._put(replace(cursor, after=facts.last, passed=facts.passed, key=None))

    async def _put(self, cursor: Cursor) -> Cursor | None:
        written = await self._records.put(cursor.subject, _bytes(cursor), at=cursor.version)
        return _written(cursor, written)


def _bytes(cursor: Cursor) -> bytes:
    return _ENCODE(_Stored(str(cursor.after), cursor.passed, cursor.key, cursor.epoch, cursor.history))


def _written(cursor: Cursor, written: Written) -> Cursor | None:
    return replace(cursor, version=written.version) if written and written.version else None
