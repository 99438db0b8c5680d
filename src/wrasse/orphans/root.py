"""The configuration of one root: where to search for orphans, the shape of keys, references, and safety limits.

A grace shorter than the time that a write may take is refused: it would delete what is being written.

A template describes the keys below a root: `archives/{id}/{op_id}/{file}`. Every name in braces stands for one part of
a path, `{file*}` for any number of them. The directory of the last part is the unit: its files are removed together.
The directory of the owner is the group. A key of any other shape is foreign: it is reported and never touched.

The `workspaces` preset reads references from a table with `id`, `archive_key`, `op_id` and `deleted_at`. A row protects
the directory of its `archive_key`, and `<prefix><id>/<op_id>/` in every state, until it is soft-deleted and no
operation runs on it any more. The queries are plain SQL that every database understands.

Pins are keys to keep regardless of the database, from a file that is read in every scan: one key per line; one that
ends in `/` is a directory; empty lines and lines that begin with # are ignored. A file that cannot be read is an error:
without it, pinned objects would count as orphans.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from wrasse.duration import format_duration
from wrasse.errors import ConfigError, StoreBroken, TooLarge
from wrasse.ports.catalog import Catalog, CatalogSnapshot, Query, Reference
from wrasse.ports.guard import Guard
from wrasse.ports.objects import raw_key
from wrasse.ports.page import Page
from wrasse.ports.sightings import Evidence

DIRECTORY = "directory"
OBJECT = "object"
NO_OWNER = "none"
_PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*)(\*?)\}")
_SURROGATE = re.compile("[\ud800-\udfff]")  # how Python represents a byte of an argument that is not UTF-8
_BRACE = re.compile(r"[{}]")
_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
PINS_MAX = 100_000
TRASH = ".trash/"
MOVE = "move"
MARK = "mark"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """Where a key belongs: its unit, and its group or an empty value."""

    unit: bytes
    group: bytes


@dataclass(frozen=True, slots=True)
class Template:
    """A template. `pattern` matches whole keys; its parts 1 and 2 are the directory and the group of a key. `units`
    matches the names of units."""

    text: str
    unit: str
    pattern: re.Pattern[bytes]
    units: re.Pattern[bytes]
    grouped: bool  # read by `Root.digest` alone, which is stored with armed roots and in plan files

    @property
    def directories(self) -> bool:
        """Whether units are directories."""
        return self.unit == DIRECTORY

    def place(self, key: bytes) -> UnitPlace | None:
        """The unit and group of a key; None if it is foreign."""
        found = self.pattern.fullmatch(key)
        if found is None:
            return None
        unit = key[: found.end("unit")] if self.unit == DIRECTORY else key
        return UnitPlace(unit, key[: found.end("group")])

    def group_of(self, unit: bytes) -> bytes:
        """The group of a unit, from its name alone."""
        found = self.units.fullmatch(unit)
        return b"" if found is None else unit[: found.end("group")]


def parse_template(text: str, *, unit: str = DIRECTORY, owner: str = "") -> Template:
    """Parses a template. `owner` names the part that identifies the owner, or is `none`; without it, the first named
    part is the owner, if units are below it."""
    segments = text.split("/")
    if len(segments) < 2 or not all(segments) or text.startswith("/"):
        raise _wrong(text, "it needs a directory first, and no empty part")
    if _SURROGATE.search(text):
        raise _wrong(text, "it is not UTF-8")
    if _BRACE.search(_PLACEHOLDER.sub("", text)):
        raise _wrong(text, "a brace is not closed, or its name is not lower-case letters, digits and _")
    names = [found.group(1) for found in _PLACEHOLDER.finditer(text)]
    if len(set(names)) < len(names):
        raise _wrong(text, "a name occurs twice")
    if any(star for segment in segments[:-1] for _, star in _PLACEHOLDER.findall(segment)):
        raise _wrong(text, "only the last part may have a star")
    if _PLACEHOLDER.search(segments[0]):
        raise _wrong(text, "the first part must be fixed, so that the root is not the whole store")
    if not names:
        raise _wrong(text, "it has no name in braces")
    if unit not in (DIRECTORY, OBJECT):
        raise ConfigError(f"a unit is {unit!r}", do="write directory or object")
    below = _owner_segment(text, segments, owner, unit)
    directory = _directory(segments, below)
    whole = re.compile((directory + _expression(segments[-1])).encode(), re.DOTALL)
    units = re.compile(directory.encode(), re.DOTALL) if unit == DIRECTORY else whole
    return Template(text, unit, whole, units, below is not None)


def _owner_segment(text: str, segments: list[str], owner: str, unit: str) -> int | None:
    """The index of the group's directory, which must be above the unit; None without one."""
    if owner == NO_OWNER:
        return None
    last = len(segments) - (2 if unit == DIRECTORY else 1)
    for index, segment in enumerate(segments):
        named = [name for name, _ in _PLACEHOLDER.findall(segment)]
        if owner in named or (not owner and named):
            if index < last:
                return index
            if not owner:
                return None
            raise _wrong(text, f"{{{owner}}} is the owner and must be a directory above the unit")
    raise _wrong(text, f"it has no {{{owner}}}, which is configured as the owner")


def _directory(segments: list[str], group: int | None) -> str:
    """The expression of the directory of a key, including the group."""
    parts = [_expression(segment) + "/" for segment in segments[:-1]]
    above = "" if group is None else "".join(parts[: group + 1])
    rest = "".join(parts if group is None else parts[group + 1 :])
    return f"(?P<unit>(?P<group>{above}){rest})"


def _expression(segment: str) -> str:
    text, last = "", 0
    for found in _PLACEHOLDER.finditer(segment):
        text += re.escape(segment[last : found.start()]) + (".+" if found.group(2) else "[^/]+")
        last = found.end()
    return text + re.escape(segment[last:])


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} is not a valid template of keys: {why}", do="write archives/{id}/{op_id}/{file}")


@dataclass(frozen=True, slots=True)
class Graces:
    """How long a unit must have been an orphan in every scan before it is due, by kind of evidence."""

    superseded: timedelta = timedelta(hours=24)
    soft_deleted: timedelta = timedelta(days=30)
    owner_unknown: timedelta = timedelta(days=30)

    def of(self, evidence: Evidence) -> timedelta:
        """The grace of one kind of evidence."""
        if evidence is Evidence.SUPERSEDED:
            return self.superseded
        return self.soft_deleted if evidence is Evidence.SOFT_DELETED else self.owner_unknown

    @property
    def shortest(self) -> timedelta:
        """The shortest of them."""
        return min(self.superseded, self.soft_deleted, self.owner_unknown)


@dataclass(frozen=True, slots=True)
class WriterTime:
    """The maximum time from the write of an object to the commit of its reference: the timeout of one attempt, and
    retries."""

    timeout: timedelta = timedelta(minutes=30)
    retries: int = 3

    @property
    def longest(self) -> timedelta:
        """The total time."""
        return self.timeout * (self.retries + 1)


@dataclass(frozen=True, slots=True)
class Caps:
    """When a scan is implausible or its plan too large. A plan needs approval beyond `objects_max` objects that are
    more than `share_max` of all, beyond `bytes_max` that are more than that share, and beyond `group_max` units of any
    one group. Vanished references count as a fault of the database until an operator approves them."""

    objects_max: int = 1_000
    share_max: float = 0.01
    bytes_max: int = 100 << 30
    group_max: int = 1_000
    rows_share_min: float = 0.8
    match_share_min: float = 0.95
    vanished_max: int = 50
    vanished_share_max: float = 0.01


@dataclass(frozen=True, slots=True)
class Root:
    """A place to scan for orphans."""

    name: str
    template: Template
    prefix: str
    store: str = ""  # the store's name for people; part of a plan's identity
    marker: str = ".meta"  # suffix of files that mark a unit as complete: deleted first, restored last
    graces: Graces = field(default_factory=Graces)
    writer: WriterTime = field(default_factory=WriterTime)
    age_min: timedelta = timedelta(hours=24)
    keep_newest: int = 1
    quarantine: timedelta = timedelta(days=7)
    quarantine_by: str = MOVE
    uploads_after: timedelta = timedelta(days=7)  # age at which an unfinished multipart upload is aborted; 0: never
    caps: Caps = field(default_factory=Caps)
    source: str = ""  # the source of references; part of a plan's identity

    def __post_init__(self) -> None:
        where = f"orphans.{self.name}"
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"a root of orphans is named {self.name!r}", do="use lower-case letters, digits and _")
        if not self.prefix.endswith("/") or self.prefix.startswith(("/", "%", TRASH)):
            raise ConfigError(f"{where}.prefix is {self.prefix!r}", do="write a directory that ends in /: archives/")
        if not self.template.text.startswith(self.prefix):
            raise ConfigError(
                f"{where}.template does not begin with its prefix {self.prefix!r}", do="write whole keys as the shape"
            )
        if self.quarantine_by not in (MOVE, MARK):
            raise ConfigError(f"{where}.quarantine_by is {self.quarantine_by!r}", do=f"write {MOVE} or {MARK}")
        if self.keep_newest < 0 or self.quarantine < timedelta(0) or self.age_min < timedelta(0):
            raise ConfigError(f"{where} has a setting below zero", do="write zero or more")
        if self.graces.shortest < self.writer.longest:
            raise ConfigError(
                f"{where}: a delay of {format_duration(self.graces.shortest)} is shorter than a write may take: "
                f"{self.writer.retries + 1} x {format_duration(self.writer.timeout)}",
                do="make the delays longer, or set writer_timeout and writer_retries to their real values",
            )

    @property
    def trash(self) -> str:
        """The prefix of its files in quarantine, outside every root."""
        return f"{TRASH}{self.name}/"

    @property
    def digest(self) -> str:
        """A digest of this configuration. Stored: it depends on the names of these classes and their fields; if it
        changes, every armed root must be armed again. `tests/wire` checks it."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Workspaces:
    """The table: its name, the prefix of its keys, and which of the optional columns it has."""

    table: str = "workspaces"
    prefix: str = "archives/"
    columns: Collection[str] = ()

    def __post_init__(self) -> None:
        if not _TABLE.fullmatch(self.table):
            raise ConfigError(f"{self.table!r} is not a valid table name", do="write workspaces, or schema.workspaces")
        if "'" in self.prefix or "\\" in self.prefix:
            raise ConfigError(f"the prefix {self.prefix!r} cannot be used in a query", do="use plain characters")


def workspaces_queries(of: Workspaces, *, concat: str = "{} || {} || {} || {} || {}") -> tuple[Query, ...]:
    """The queries of the preset. `concat` joins five texts in the database; in MySQL: CONCAT({}, {}, {}, {}, {})."""
    started = "NULL"
    if "op_started_at" in of.columns:
        running = " AND operation <> 'NONE'" if "operation" in of.columns else ""
        started = f"CASE WHEN deleted_at IS NOT NULL{running} THEN op_started_at END"
    rest = f"deleted_at AS ended_at, {started} AS started_at FROM {of.table}"
    directory = concat.format(f"'{of.prefix}'", "id", "'/'", "op_id", "'/'")
    return (
        Query(
            "archive_key",
            f"SELECT archive_key AS \"key\", 0 AS prefix, id AS owner, 'archive_key' AS rule, {rest} "
            "WHERE archive_key IS NOT NULL AND archive_key <> ''",
        ),
        Query(
            "op_id",
            f"SELECT {directory} AS \"key\", 1 AS prefix, id AS owner, 'op_id' AS rule, {rest} "
            "WHERE op_id IS NOT NULL AND op_id <> ''",
        ),
    )


class PinnedCatalog:
    """A catalog combined with the pins of a file."""

    def __init__(self, catalog: Catalog, path: Path) -> None:
        self._catalog = catalog
        self._path = path

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PinnedSnapshot]:
        """One view of both."""
        async with self._catalog.snapshot() as snapshot:
            yield PinnedSnapshot(snapshot, await asyncio.to_thread(read_pins, self._path))

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        """Whether a pin or a row protects each key now."""
        pins = await asyncio.to_thread(read_pins, self._path)
        found = await self._catalog.referenced(keys, below=below)
        return [_pinned(key, pins, below) or row for key, row in zip(keys, found, strict=True)]

    def leader(self, name: str) -> Guard | None:
        """The guard of the database."""
        return self._catalog.leader(name)


class PinnedSnapshot:
    """Rows and pins in one order."""

    def __init__(self, snapshot: CatalogSnapshot, pins: Sequence[Reference]) -> None:
        self._snapshot = snapshot
        self._pins = pins

    @property
    def at(self) -> datetime:
        """The database's clock."""
        return self._snapshot.at

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        """References in the byte order of their keys. A cursor is the number of pins returned, and the cursor of the
        rows: a page has all rows of one underlying page, and the pins that sort before its last row."""
        start, cursor = _parsed(after)
        page = await self._snapshot.page(cursor, limit)
        end = raw_key(page.items[-1].key) if page.more else None
        upto = start
        while upto < len(self._pins) and (end is None or raw_key(self._pins[upto].key) <= end):
            upto += 1
        rows = tuple(heapq.merge(page.items, self._pins[start:upto], key=lambda each: raw_key(each.key)))
        # Only the last cursor can be resumed from: snapshots are read in whole pages.
        last = f"{upto}:{page.cursors[-1] if page.cursors else ''}"
        return Page(rows, tuple(last for _ in rows), page.at, page.more)


def read_pins(path: Path) -> list[Reference]:
    """The pins of a file, in order."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as why:
        raise StoreBroken(
            f"the file of pins {path} cannot be read: {why.strerror}", do="put it back, or remove pins_file"
        ) from None
    keys = sorted({line.rstrip(b"\r") for line in lines if line.strip() and not line.startswith(b"#")})
    if len(keys) > PINS_MAX:
        raise TooLarge(f"{len(keys)} pins in {path}", do=f"a file holds at most {PINS_MAX}; use a table")
    texts = [key.decode("utf-8", "surrogateescape") for key in keys]
    return [Reference(key, prefix=key.endswith("/"), rule=f"pin in {path.name}") for key in texts]


def _pinned(key: str, pins: Sequence[Reference], below: bool) -> Reference | None:
    return next(
        (
            pin
            for pin in pins
            if pin.key == key or (pin.prefix and key.startswith(pin.key)) or (below and pin.key.startswith(key))
        ),
        None,
    )


def _parsed(after: str | None) -> tuple[int, str | None]:
    if after is None:
        return 0, None
    number, _, cursor = after.partition(":")
    return int(number), cursor or None
