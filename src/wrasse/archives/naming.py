"""Names of archives: `{prefix}/{domain}/{YYYY}/{MM}/{DD}/{subject}-after-{ms, 15 digits}-{seq}.jsonl.gz`.

A name says after which entry the archive begins, never where it ends: whoever writes the batch after that entry, now or
after a crash, writes it under this one name, and a create-only put lets only the first do so. The day is that of the
first entry. Whatever a name is made of can be read back from it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime

from wrasse.clock import from_micros
from wrasse.ports.objects import check_object_key
from wrasse.ports.records import key_of, stored_name
from wrasse.ports.streams import EntryId

SUFFIX = ".jsonl.gz"
_EVENTS = "gbe.events."
_LATEST = 253_402_300_799_999  # the last millisecond of the year 9999
_NAME = re.compile(r"([^/]+)/(\d{4})/(\d{2})/(\d{2})/([^/]+)-after-(\d{15,})-(\d+)" + re.escape(SUFFIX))


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """What the key of an archive says: which stream, after which entry, and the day of its first entry."""

    prefix: str
    domain: str
    day: date
    subject: str
    after: EntryId

    def __str__(self) -> str:
        domain, subject = stored_name(self.domain), stored_name(self.subject)
        day = self.day.isoformat().replace("-", "/")
        stem = f"{self.prefix}/{domain}/{day}/{subject}-after-"
        return f"{stem}{self.after.ms:015d}-{self.after.seq}{SUFFIX}"

    @property
    def stem(self) -> str:
        """What the key shares with those that differ from it in the last number alone, which has no fixed width."""
        return str(self).rpartition("-")[0] + "-"


def name_archive(prefix: str, domain: str, subject: str, after: EntryId, first: EntryId) -> ArchiveName:
    """The name of the archive that begins after `after` with `first`; UsageError if no store could keep it."""
    name = ArchiveName(prefix, domain, day_of(first), subject, after)
    check_object_key(str(name))
    return name


def parse_name(key: str, prefix: str) -> ArchiveName | None:
    """Reads a key back; None if it is not the key of an archive below this prefix."""
    found = _NAME.fullmatch(key.removeprefix(f"{prefix}/")) if key.startswith(f"{prefix}/") else None
    if found is None:
        return None
    domain, year, month, day, subject, ms, seq = found.groups()
    try:
        when = date(int(year), int(month), int(day))
    except ValueError:
        return None
    return ArchiveName(prefix, key_of(domain), when, key_of(subject), EntryId(int(ms), int(seq)))


def domain_of(subject: str) -> str:
    """What part of a system a subject belongs to: the third token of `gbe.events.*`, else the second, or the only."""
    tokens = subject.split(".")
    place = 2 if subject.startswith(_EVENTS) else 1
    return tokens[min(place, len(tokens) - 1)]


def listing_prefix(prefix: str, domain: str | None) -> str:
    """Where the archives of a domain, or of all, are listed."""
    return f"{prefix}/" if domain is None else f"{prefix}/{stored_name(domain)}/"


def day_of(id: EntryId) -> date:
    """The day, UTC, of an entry."""
    return instant_of(id).date()


def instant_of(id: EntryId) -> datetime:
    """When an entry was appended, by its backend's clock."""
    # A foreign program may have chosen the ids itself; what is beyond every calendar is the last day.
    return from_micros(min(id.ms, _LATEST) * 1_000).astimezone(UTC)
