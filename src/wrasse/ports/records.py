"""Records: small, versioned, conditional, with a due index.

Promise. Every write names the version it read, so of two writers exactly one wins. What `due_at` says is found by
`due` without a scan, at most `resolution` late. A write whose reply was lost can be retried with the same nonce
and gives the first answer; what can no longer be decided is answered `unknown`, never `conflict`. Where `emits` says
so, a write may carry drafts for streams of the same backend: they are appended in the step that makes the write, once,
and not at all if it is lost or refused.

Costs. get, create, put, delete: one round trip. page and due: one round trip per page, flat in the number of records.

Keys are 1 to 256 bytes of UTF-8. `page` is in the byte order of stored names (see `stored_name`), on every backend.
A backend hands out one Records per Collection; the collection fixes the names it uses, so that layouts which others
read come out as documented.

IndexedRecords counts and lists the records of a collection by status without reading them; `Records.status_index` is
it, or None.

Promise. A record has the index entry that its newest write named, or none; the entry changes in the same transaction as
the record. Numbers come from the index, and a page of one status reads the records that it shows. Where other programs
write records too, a record may have changed since it was indexed: a listing checks each record, and `reindex` corrects
its entry, so that no number stays wrong for ever.

Costs. One round trip each; a write with an index entry writes one entry more. Counting costs the same however many
records a status has.

SharedRecords finds records that other programs wrote; `Records.shared` is it, or None. Such a record has no entry in
the due index and would never be due, until a scan finds it and its reader, who knows its fields, notes when it is.

Promise. A record that another program wrote, or changed since we last wrote or noted it, is found by a round of scans;
one that only we touched is not. `note` changes nothing but the index, and only if the record is still the one that was
read. A dry scan changes nothing, not even where the next one begins.

Costs. One scan reads a bounded part of what there is, in a few round trips.

Namespaces lists the namespaces that a store holds keys of, from the store itself, so that a restart forgets none.

Promise. A namespace that has a key is listed; one that had some may be, and in a bucket any other folder at its top.
Names that begin with a dot are reserved and never listed.

Costs. One round trip per page, which follows the number of namespaces, not of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from wrasse.errors import TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, number_in
from wrasse.ports.streams import Draft

KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 1 << 20
NONCES_KEPT = 16
META = "/meta"  # a namespace is what has this collection
_POSITION_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class Collection:
    """Where a set of records lives: `<data>/<name>`, due entries under `<index>/<bucket>/<name>`, the list of
    buckets at `<buckets>`. `width` is the width of a bucket where a backend needs buckets to find what is due. In a
    `tended` collection the entries that a record has left behind stand for work of a sweep: `due`
    shows them, with the entry's time as `due_at`, until `leave` takes them away. Elsewhere `due` does that itself. The
    values of a `flat` collection are JSON objects whose values are all strings: a backend that has hashes keeps each
    as one, for programs that read and write its fields."""

    data: str
    index: str
    buckets: str
    width: timedelta = timedelta(hours=1)
    tended: bool = False
    flat: bool = False

    @classmethod
    def named(cls, name: str, *, width: timedelta = timedelta(hours=1)) -> Collection:
        """A collection of our own whose layout no other program reads."""
        return cls(data=f"{name}/r", index=f"{name}/due", buckets=f"{name}/due/buckets.json", width=width)


@dataclass(frozen=True, slots=True)
class Record:
    """One stored record. `version` is opaque; a write names the one it read."""

    key: str
    value: bytes
    version: str
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a write: `done` with the new version, or `conflict`, or `unknown`. `at` is the backend's clock."""

    outcome: Outcome
    version: str | None
    at: datetime

    def __bool__(self) -> bool:
        return self.outcome is Outcome.DONE


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The status of a record, and its position among those of this status. A status has no spaces."""

    status: str
    position: int

    def __post_init__(self) -> None:
        assert " " not in self.status, "a status has no spaces"
        assert -_POSITION_MAX <= self.position < _POSITION_MAX, "a position has 64 bits"


@dataclass(frozen=True, slots=True)
class StatusRange:
    """All records of a status, or those up to a position, that one included."""

    status: str
    upto: int | None = None


class Records(Protocol):
    """One collection. `nonce` names a write; without one the backend makes one up and the write cannot be retried."""

    @property
    def resolution(self) -> timedelta:
        """How late `due` may show a record: zero on SQL and Redis, one bucket width on object stores and NATS."""
        ...

    @property
    def emits(self) -> bool:
        """Whether writes may carry drafts; where not, one that does is refused."""
        ...

    @property
    def status_index(self) -> IndexedRecords | None:
        """Counts and listings from an index. None where a count must read; a write with an index entry is refused."""
        ...

    @property
    def shared(self) -> SharedRecords | None:
        """The search for what other programs wrote; None where no others write."""
        ...

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        """Writes the record if there is none under this key; `conflict` if there is. `emit` is appended with it, and
        `index_entry` says where it stands from now on; without one it stands nowhere."""
        ...

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        """The record as it is now. `entering` says that a write with this due time is about to follow: a backend
        whose due index is apart makes the entry beside this read, so that the write need not wait for it."""
        ...

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        at: str,
        due_at: datetime | None = None,
        nonce: str | None = None,
        entry_stays: bool = False,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        """Replaces value and due time if the record still has version `at`. With `entry_stays` the entry that its
        old due time has in an index apart is left for `leave`: until then a sweep still finds the record by it.
        `emit` and `index_entry` are those of `create`."""
        ...

    async def leave(self, key: str, due_at: datetime) -> None:
        """Takes away the entry that a put left, unless the record is due then again. Nothing to do where the due
        index is part of the record."""
        ...

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        """Removes the record if it still has version `at`."""
        ...

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        """Records whose key starts with `prefix`, in the byte order of stored names."""
        ...

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        """Records due at or before `before` (None: the backend's now), earliest first. May show one that is no
        longer or not yet due: the caller checks `due_at` and its write names the version."""
        ...


class IndexedRecords(Protocol):
    """Records with a status index: the `index_entry` of the newest `create` or `put` is what counts."""

    async def reindex(self, placed: Sequence[tuple[Record, IndexEntry | None]]) -> int:
        """Corrects the entries of records, each if it is still the one that was read; returns how many were wrong.
        Changes neither a record nor its version."""
        ...

    async def status_counts(self, spans: Sequence[StatusRange]) -> tuple[tuple[int, ...], datetime]:
        """How many records each span has, all at the same moment; and the backend's clock."""
        ...

    async def status_page(self, status: str, after: str | None, limit: int, *, newest: bool = False) -> Page[Record]:
        """Records of a status by position, equal positions by stored name; with `newest` downwards. `after` is a
        cursor, as `index_cursor` makes one of any position and name."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignScan:
    """What one scan found. `cursor` continues the round; `ended` says that this scan was the last of one."""

    changed: tuple[Record, ...]
    at: datetime
    cursor: str
    ended: bool


class SharedRecords(Protocol):
    """Records of which other programs have a part."""

    async def scan(self, after: str | None, limit: int, *, dry: bool) -> ForeignScan:
        """Scans about `limit` records. Without a cursor it continues where the last scan, by any process, stopped."""
        ...

    async def note(self, key: str, *, at: str, due_at: datetime | None) -> Outcome:
        """Notes when the record is due, if it still has version `at`; `conflict` if not."""
        ...


class Namespaces(Protocol):
    """The namespaces of a store."""

    async def page(self, after: str | None, limit: int) -> Page[str]:
        """Names of namespaces, in the byte order that they have with a slash behind: `a.b` comes before `a`."""
        ...


def refuse_emit(emit: Sequence[Draft]) -> None:
    """What a backend does with drafts that it cannot append in the step of a write."""
    if emit:
        raise UsageError(
            "a record is to be written together with entries of a stream, and the two are not one database here",
            do="name one backend for records and streams, or append the entries after the write",
        )


def refuse_index_entry(index_entry: IndexEntry | None) -> None:
    """What a backend without a status index does with a record that is to have an entry there."""
    if index_entry is not None:
        raise UsageError(
            f"a record is to have the status {index_entry.status!r}, and these records have no status index",
            do="leave out `index_entry` where `Records.status_index` is None",
        )


def stored_name(key: str) -> str:
    """The name a key is stored under: `/` and `%` escaped, so that `a` and `a/b` never collide."""
    return key.replace("%", "%25").replace("/", "%2F")


def key_of(name: str) -> str:
    """The key that `stored_name` stored."""
    return name.replace("%2F", "/").replace("%25", "%")


def check_record(key: str, value: bytes) -> None:
    """Refuses what no backend could keep, before anything is sent."""
    size = len(key.encode("utf-8", "surrogatepass"))
    if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
        raise UsageError("a record key with half a character in it", do="use text that can be written as UTF-8")
    if not 1 <= size <= KEY_BYTES_MAX:
        raise UsageError(f"a record key of {size} bytes", do=f"use 1 to {KEY_BYTES_MAX} bytes of UTF-8")
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"a record of {len(value)} bytes under {key!r}", do=f"records hold at most {VALUE_BYTES_MAX}; use Objects"
        )


def index_cursor(position: int, name: str) -> str:
    """Where a listing goes on after the record of this stored name."""
    return f"{position}:{name}"


def read_cursor(cursor: str) -> tuple[int, str]:
    """The position and the stored name in a cursor."""
    position, colon, name = cursor.partition(":")
    return number_in(cursor, position if colon else ""), name


def namespace_of(collection: str) -> str | None:
    """The namespace that a collection's data belongs to, if it is one of keys."""
    name, meta, rest = collection.partition(META)
    return name if meta and not rest and name and not name.startswith(".") and "/" not in name else None


def in_order(name: str) -> str:
    """What namespaces are sorted by: how stores list folders."""
    return f"{name}/"


def page_of(names: Iterable[str], after: str | None, limit: int, at: datetime) -> Page[str]:
    """The page of these names after a cursor."""
    start = "" if after is None else in_order(after)
    left = sorted((name for name in names if in_order(name) > start), key=in_order)
    return Page.of(left, limit, at, str)
