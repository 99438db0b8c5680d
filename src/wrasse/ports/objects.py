"""Objects: large, listed in order, conditional, deleted by version.

Promise. `create` never overwrites: of any number of writers at one key exactly one wins. `replace` and `delete` name
the version they saw. What `done` answers is durable, whole and listed. A listing is in the byte order of the raw keys
and complete: a page that cannot be read is an error, never an empty answer. Keys are kept as given: `a//b`, a
trailing slash and odd characters are names like any other, and `a` may exist beside `a/b`.

Costs. create, replace, head, read: one request each. page: one request per page. delete: one request per batch
where the store has one.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from wrasse.errors import Gone, TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

OBJECT_KEY_BYTES_MAX = 1_024
METADATA_BYTES_MAX = 2_048
DELETES_MAX = 1_000
CHUNK_BYTES = 1 << 20

NO_METADATA: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object. `version` is opaque; a conditional change names it. On S3 it names the bytes:
    the same bytes written again have the same version."""

    key: str
    size: int
    version: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """One object without its bytes: what a listing says, plus the metadata it was written with."""

    info: ObjectInfo
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_METADATA)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The answer to a write: `done` with the new version, `conflict`, or `unknown` after a lost reply that reading back
    could not settle."""

    outcome: Outcome
    version: str | None
    at: datetime

    def __bool__(self) -> bool:
        return self.outcome is Outcome.DONE


@dataclass(frozen=True, slots=True)
class ObjectDelete:
    """One object to delete, if it still has this version."""

    key: str
    version: str


Data = bytes | AsyncIterable[bytes]


class Objects(Protocol):
    """One store of objects. Three parts of it are None where it lacks them."""

    @property
    def copies(self) -> Copies | None:
        """Copies within the store. None where the bytes of a copy pass through us."""
        ...

    @property
    def multipart(self) -> HasUploads | None:
        """The list of open uploads in parts; None where there are no such uploads."""
        ...

    @property
    def versions(self) -> KeepsVersions | None:
        """What a store keeps of deleted objects; None where a delete is final."""
        ...

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        """Writes the object if there is none at this key; `conflict` if there is. Data may be streamed."""
        ...

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        """Writes the object if it still has version `at`."""
        ...

    async def head(self, key: str) -> ObjectHead | None:
        """The object without its bytes."""
        ...

    def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        """The bytes in chunks, all of one version: that of `at`, or the one found first. Raises Gone if there is no
        such object, or if it was replaced while it was read."""
        ...

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the byte order of their keys."""
        ...

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        """Removes objects, each under its own condition; `conflict` for one that is gone or has changed."""
        ...


class Copies(Protocol):
    """A store that can copy an object without its bytes passing through us."""

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        """Gives an object of version `at` a second key, with its metadata, if there is none of that key yet; `conflict`
        if there is, or if the version is another. `failed` if it cannot be done in this way."""
        ...


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """An upload in parts that was begun and neither completed nor aborted. Listings do not show it, and its parts are
    billed."""

    key: str
    id: str
    begun_at: datetime


class HasUploads(Protocol):
    """A store with uploads in parts."""

    async def uploads(self, prefix: str, after: str | None, limit: int) -> Page[OpenUpload]:
        """Open uploads to keys that start with `prefix`. Cursors are the store's own."""
        ...

    async def abort(self, uploads: Sequence[OpenUpload]) -> Sequence[Outcome]:
        """Deletes their parts; `conflict` for one that was completed or aborted meanwhile."""
        ...


class KeepsVersions(Protocol):
    """A store that may keep what is deleted, under a marker that hides it, until it is purged. The version named is
    that of a listing, as everywhere; whether a store keeps anything can change at any time."""

    async def keeps_deleted(self) -> bool:
        """Whether an object that is deleted now can be brought back."""
        ...

    async def deleted(self, key: str, *, at: str) -> bool:
        """Whether an object of this version was deleted and is still kept."""
        ...

    async def undelete(self, key: str, *, at: str) -> Outcome:
        """Brings it back, byte for byte, if nothing stands at its key; `conflict` if something else does, or if it is
        not kept."""
        ...

    async def purge(self, key: str, *, at: str) -> Outcome:
        """Takes away for good what was deleted and is kept; what stands at the key is never touched. `done` if it is
        not kept any more, `failed` if the store refuses."""
        ...


async def read_small(objects: Objects, key: str, bytes_max: int) -> bytes:
    """An object as a whole; TooLarge if it has more bytes than these, of which no more are read."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in objects.read(key):
        chunks.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            raise TooLarge(
                f"the object {key!r} has more than {bytes_max} bytes, which is all that is read of it",
                do="store less under this name, or read it as a stream in the handler",
            )
    return b"".join(chunks)


def check_object_key(key: str) -> None:
    """Refuses what no store could keep, before anything is sent."""
    try:
        size = len(key.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise UsageError("an object key that is no text", do="use UTF-8, or bytes in surrogateescape form") from None
    if not 1 <= size <= OBJECT_KEY_BYTES_MAX or "\0" in key:
        raise UsageError(
            f"an object key of {size} bytes", do=f"use 1 to {OBJECT_KEY_BYTES_MAX} bytes without a NUL byte"
        )


def check_deletes(deletes: Sequence[ObjectDelete]) -> None:
    """Refuses more deletes than one call takes, and keys that no store has."""
    if len(deletes) > DELETES_MAX:
        raise UsageError(f"{len(deletes)} deletes at once", do=f"delete at most {DELETES_MAX} objects in one call")
    for each in deletes:
        check_object_key(each.key)


def raw_key(key: str) -> bytes:
    """The bytes of a key, by which keys are compared."""
    return key.encode("utf-8", "surrogateescape")


def gone(key: str) -> Gone:
    """The error of a read that names an object, or a version of one, that is not there."""
    return Gone(f"the object {key!r} is not there, or not in the version asked for", do="look for it again")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuses more metadata than every store keeps."""
    if not metadata:
        return
    try:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    except UnicodeEncodeError:
        raise UsageError("metadata that is no text", do="use UTF-8") from None
    if size > METADATA_BYTES_MAX:
        raise TooLarge(f"metadata of {size} bytes", do=f"an object carries at most {METADATA_BYTES_MAX}")
