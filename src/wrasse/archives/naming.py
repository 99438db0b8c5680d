"""Names of archives: `{prefix}/{domain}/{YYYY}/{MM}/{DD}/{subject}-after-{ms, 15 digits}-{seq}.jsonl.gz`.

In the hive layout the day is one part, `dt=YYYY-MM-DD`, which query engines recognise as a partition. A stream that was
set back and is archived again has a higher epoch: its names end in `-e2` before `.jsonl`, and so on.

A name says after which entry the archive begins, never where it ends: any process that writes the batch after that
entry, now or after a crash, uses this one name, and a create-only write lets only the first succeed. The day is that of
the first entry. Everything in a name can be parsed back. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from wrasse.archives.codec import Compression, compression_of_suffix
from wrasse.ports.objects import check_object_key
from wrasse.ports.records import key_of, stored_name
from wrasse.ports.streams import EntryId

HIVE = "dt="  # what a day begins with in that layout
_EVENTS = "gbe.events."
_DAY = r"(?:(\d{4})/(\d{2})/(\d{2})|dt=(\d{4})-(\d{2})-(\d{2}))"
_NAME = re.compile(rf"(.+)/([^/]+)/{_DAY}/([^/]+)-after-(\d{{15,}})-(\d+)(?:-e(\d+))?\.jsonl(\.gz|\.zst|)")


class DayLayout(StrEnum):
    """The layout of the day in a name."""

    SLASHES = "slashes"
    HIVE = "hive"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of archives: the layout of their names, and their compression."""

    layout: DayLayout = DayLayout.SLASHES
    codec: Compression = Compression.GZIP


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """The content of an archive's key: stream, entry before it, and the day of its first entry."""

    prefix: str
    domain: str
    day: date
    subject: str
    after: EntryId
    epoch: int = 1
    form: Form = Form()

    def __str__(self) -> str:
        epoch = f"-e{self.epoch}" if self.epoch > 1 else ""
        return f"{self.stem}{self.after.seq}{epoch}.jsonl{self.form.codec.suffix}"

    @property
    def stem(self) -> str:
        """The part of the key before the last numbers, which have no fixed width."""
        domain, subject, day = stored_name(self.domain), stored_name(self.subject), self.day.isoformat()
        day = f"{HIVE}{day}" if self.form.layout is DayLayout.HIVE else day.replace("-", "/")
        return f"{self.prefix}/{domain}/{day}/{subject}-after-{self.after.ms:015d}-"

    @property
    def place(self) -> tuple[int, EntryId]:
        """Its position among the archives of its stream."""
        return self.epoch, self.after


def check_name(name: ArchiveName) -> ArchiveName:
    """The name; UsageError if it is not a valid object key."""
    check_object_key(str(name))
    return name


def parse_name(key: str, prefix: str | None = None) -> ArchiveName | None:
    """Parses a key; None if it is not the key of an archive, or not below this prefix."""
    found = _NAME.fullmatch(key)
    if found is None or prefix not in (None, found[1]):
        return None
    below, domain, *days, subject, ms, seq, epoch, suffix = found.groups()
    form = Form(DayLayout.SLASHES if days[0] else DayLayout.HIVE, compression_of_suffix(suffix))
    try:
        when = date(*(int(part) for part in days if part))
    except ValueError:
        return None
    after = EntryId(int(ms), int(seq))
    return ArchiveName(below, key_of(domain), when, key_of(subject), after, int(epoch or 1), form)


def domain_of(subject: str) -> str:
    """The part of a system that a subject belongs to: the third token of `gbe.events.*`, else the second or only."""
    tokens = subject.split(".")
    place = 2 if subject.startswith(_EVENTS) else 1
    return tokens[min(place, len(tokens) - 1)]


def listing_prefix(prefix: str, domain: str | None) -> str:
    """The prefix of the archives of a domain, or of all."""
    return f"{prefix}/" if domain is None else f"{prefix}/{stored_name(domain)}/"


def day_of(id: EntryId) -> date:
    """The UTC day of an entry."""
    return id.at.date()
