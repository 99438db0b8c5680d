"""Names of archives: `{prefix}/{domain}/{YYYY}/{MM}/{DD}/{subject}-after-{ms, 15 digits}-{seq}.jsonl.gz`.

In the hive layout the day is one part, `dt=YYYY-MM-DD`, as query engines find partitions by themselves. A stream that
was set back and is archived anew goes on in a later epoch: its names end in `-e2` before `.jsonl`, and so on.

A name says after which entry the archive begins, never where it ends: whoever writes the batch after that entry, now or
after a crash, writes it under this one name, and a create-only put lets only the first do so. The day is that of the
first entry. Whatever a name is made of can be read back from it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from wrasse.archives.codec import Compression, codec_of
from wrasse.ports.objects import check_object_key
from wrasse.ports.records import key_of, stored_name
from wrasse.ports.streams import EntryId

HIVE = "dt="  # what a day begins with in that layout
_EVENTS = "gbe.events."
_DAY = r"(?:(\d{4})/(\d{2})/(\d{2})|dt=(\d{4})-(\d{2})-(\d{2}))"
_NAME = re.compile(rf"(.+)/([^/]+)/{_DAY}/([^/]+)-after-(\d{{15,}})-(\d+)(?:-e(\d+))?\.jsonl(\.gz|\.zst|)")


class DayLayout(StrEnum):
    """How the day stands in a name."""

    SLASHES = "slashes"
    HIVE = "hive"


@dataclass(frozen=True, slots=True)
class Form:
    """What archives look like: the layout of their names, and how they are compressed."""

    layout: DayLayout = DayLayout.SLASHES
    codec: Compression = Compression.GZIP


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """What the key of an archive says: which stream, after which entry, and the day of its first entry."""

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
        """What the key shares with those that differ from it behind the milliseconds alone: numbers without a fixed
        width."""
        domain, subject, day = stored_name(self.domain), stored_name(self.subject), self.day.isoformat()
        day = f"{HIVE}{day}" if self.form.layout is DayLayout.HIVE else day.replace("-", "/")
        return f"{self.prefix}/{domain}/{day}/{subject}-after-{self.after.ms:015d}-"

    @property
    def place(self) -> tuple[int, EntryId]:
        """Where it stands among the archives of its stream."""
        return self.epoch, self.after


def check_name(name: ArchiveName) -> ArchiveName:
    """The name; UsageError if no store could keep it."""
    check_object_key(str(name))
    return name


def parse_name(key: str, prefix: str | None = None) -> ArchiveName | None:
    """Reads a key back; None if it is not the key of an archive, or not below this prefix, where one is given."""
    found = _NAME.fullmatch(key)
    if found is None or prefix not in (None, found[1]):
        return None
    below, domain, *days, subject, ms, seq, epoch, suffix = found.groups()
    form = Form(DayLayout.SLASHES if days[0] else DayLayout.HIVE, codec_of(suffix))
    try:
        when = date(*(int(part) for part in days if part))
    except ValueError:
        return None
    after = EntryId(int(ms), int(seq))
    return ArchiveName(below, key_of(domain), when, key_of(subject), after, int(epoch or 1), form)


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
    return id.at.date()
