"""Records: small, versioned, conditional, with a due index.

Promise. Every write names the version it read, so of two writers exactly one wins. What `due_at` says is found by
`due` without a scan, at most `resolution` late. A write whose reply was lost can be asked again with the same nonce
and gives the first answer; what can no longer be decided is answered `unknown`, never `conflict`. Where `emits` says
so, a write may carry drafts for streams of the same backend: they are appended in the step that makes the write, once,
and not at all if it is lost or refused.

Costs. get, create, put, delete: one round trip. page and due: one round trip per page, flat in the number of records.

Keys are 1 to 256 bytes of UTF-8. `page` is in the byte order of stored names (see `stored_name`), on every backend.
A backend hands out one Records per Collection; the collection fixes the names it uses, so that layouts which others
read come out as documented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from wrasse.errors import TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.streams import Draft

if TYPE_CHECKING:
    from wrasse.ports.foreign_records import SharedRecords
    from wrasse.ports.status_index import IndexedRecords, IndexEntry

KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 1 << 20
NONCES_KEPT = 16


@dataclass(frozen=True, slots=True)
class Collection:
    """Where a set of records lives: `<data>/<name>`, due entries under `<index>/<bucket>/<name>`, the list of
    buckets at `<buckets>`. `width` is the width of a bucket where a backend needs buckets to find what is due. In a
    `tended` collection entries that a record has left behind stand for something that somebody must look at: `due`
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
        """A collection of our own whose layout nobody else reads."""
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


class Records(Protocol):
    """The port. `nonce` names the write; without one the backend makes one up and the write cannot be asked again."""

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
        """Counts and listings from an index. None where whoever counts must read; a write with a spot is refused."""
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
        longer or not yet due: the caller looks at `due_at` and its write names the version."""
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
