"""Jobs kept as records that other programs write too: found by looks, and noted as due when they say they are.

It is a search for strays (`ports/strays.py`): what nobody has noted would never be due. A record whose fields make no
sense is noted as due at once, so that the sweep meets it, says so and counts it; it is never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from wrasse.errors import WrasseError
from wrasse.ports.foreign import SharedRecords
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Record
from wrasse.ports.strays import Looked

Due = Callable[[Record, datetime], datetime | None]


@dataclass(frozen=True, slots=True)
class ForeignJobs:
    """Looks for records of other programs. `due_of` says from a record's fields when it is due, None for never; it may
    raise ValueError or an error of ours where they make no sense."""

    records: SharedRecords
    due_of: Due

    async def look(self, after: str | None, limit: int, *, silence: timedelta, dry: bool) -> Looked:
        """One look; see the port. What is adopted is due when its own fields say so, whatever the silence."""
        looked = await self.records.look(after, limit, dry=dry)
        adopted = 0
        for record in () if dry else looked.changed:
            noted = await self.records.note(record.key, at=record.version, due_at=self._due(record, looked.at))
            adopted += noted is Outcome.DONE
        return Looked(looked.scanned, len(looked.changed), adopted, looked.cursor, looked.ended)

    def _due(self, record: Record, at: datetime) -> datetime | None:
        try:
            return self.due_of(record, at)
        except (ValueError, WrasseError):
            return at
