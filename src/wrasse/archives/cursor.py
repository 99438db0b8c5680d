"""Cursors: how far each stream is archived, kept as one record per subject.

A record is {after, passed}: everything up to `after` is in archives; or {after, passed, key}: somebody meant to write
the archive that follows `after` under this key, and whoever finds that uses this key and no other. Every change names
the version it read. A lost reply needs no care: whichever of the two states is found afterwards is one to go on from.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from wrasse.archives.facts import Facts
from wrasse.errors import StoreBroken
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import EntryId

CURSORS = Collection.named("archives/cursors")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the archiving of a stream stands. `passed` counts what the stream ever held up to `after`, where that can
    be known; `key` is where an archive was meant to be written."""

    subject: str
    after: EntryId
    passed: int | None
    key: str | None
    version: str


class _Stored(msgspec.Struct, omit_defaults=True):
    after: str
    passed: int | None = None
    key: str | None = None


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(_Stored).decode


class Cursors:
    """The cursors of one set of streams. None as an answer to a change: somebody else was there first; look again."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def load(self, subject: str) -> Cursor | None:
        """The cursor of a stream as it is now."""
        record = await self._records.get(subject)
        if record is None:
            return None
        try:
            stored = _DECODE(record.value)
            return Cursor(subject, EntryId.parse(stored.after), stored.passed, stored.key, record.version)
        except (msgspec.MsgspecError, ValueError) as why:
            raise StoreBroken(
                f"the cursor of {subject!r} is none of ours",
                do="delete that record: it is made again from the group and the newest archive",
            ) from why

    async def create(self, subject: str, after: EntryId, passed: int | None) -> Cursor | None:
        """The first cursor of a stream."""
        written = await self._records.create(subject, _ENCODE(_Stored(str(after), passed)))
        return Cursor(subject, after, passed, None, written.version) if written and written.version else None

    async def intend(self, cursor: Cursor, key: str) -> Cursor | None:
        """Fixes the key of the archive that follows."""
        assert cursor.key is None, "the key was fixed before"
        return await self._put(cursor, cursor.after, cursor.passed, key)

    async def move(self, cursor: Cursor, after: EntryId, passed: int | None) -> Cursor | None:
        """Moves on to where the archives are known to go on."""
        return await self._put(cursor, after, passed, None)

    async def commit(self, cursor: Cursor, facts: Facts) -> Cursor | None:
        """Moves on behind the archive that is at the cursor's key."""
        assert cursor.key is not None, "the key is fixed before the archive is written"
        assert facts.last > cursor.after, "an archive moves its stream on"
        return await self._put(cursor, facts.last, facts.passed, None)

    async def _put(self, cursor: Cursor, after: EntryId, passed: int | None, key: str | None) -> Cursor | None:
        value = _ENCODE(_Stored(str(after), passed, key))
        written = await self._records.put(cursor.subject, value, at=cursor.version)
        return Cursor(cursor.subject, after, passed, key, written.version) if written and written.version else None
