"""Attachments: files stored beside a key's state, staged under its lease, committed with it, then readable by all.

Each attachment is an object of its own, written once under the lease's fencing token and named by the key's record, as
the state is. A commit of state and attachments is one write, and what an expired lease left is cleaned up together with
its state objects. Bytes are streamed, never collected in memory; files of this host are read and written one chunk at a
time, in threads. Size and checksum are computed during the transfer: what is staged is what was sent, and a read that
does not match its checksum fails before the last bytes are returned.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.errors import Gone, StoreBroken, TooLarge, UsageError
from wrasse.ids import uuid7
from wrasse.leases.key_state import KeyStates
from wrasse.leases.lease import Attachment, KeyRecord, KeyRefused, Lease, Refusal, StateObject, staged_attachments
from wrasse.ports.objects import CHUNK_BYTES, Data

ATTACHMENTS_MAX = 500  # of one key: their names and checksums stand in its record
NAME_BYTES_MAX = 255
BYTES_MAX = 1 << 40
CONTENT_TYPE = "application/octet-stream"
READS_MAX = 8  # how often a reader follows a record that changes under it


class AttachmentTooLarge(TooLarge):
    """More bytes than the sender's limit. Nothing was staged."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An attachment to send: name, expected size and checksum, and what happens if the name exists."""

    name: str
    content_type: str = CONTENT_TYPE
    bytes_max: int = BYTES_MAX
    sha256: str = ""  # refused on a mismatch
    size: int | None = None  # refused on a mismatch
    keep: bool = False  # an existing attachment of this name stays unchanged


@dataclass(frozen=True, slots=True)
class Attached:
    """The attachment, the version that the key will have after a commit, and whether anything was staged."""

    attachment: Attachment
    version: int
    staged: bool = True


@dataclass(frozen=True, slots=True)
class Fetched:
    """An attachment and its bytes as a stream. A caller that does not read to the end must close it."""

    attachment: Attachment
    chunks: AsyncGenerator[bytes]


class Attachments:
    """The attachments of all keys of one store. `whose`: a holder's lease, which sees staged changes; or `public`."""

    def __init__(self, keys: Callable[[str], KeyStates], clock: Clock, traffic: Callable[[], None]) -> None:
        self._keys, self._clock, self._traffic = keys, clock, traffic

    async def attach(self, lease: Lease, sent: Sent, data: Data) -> Attached:
        """Stages an attachment. The data is read only after the lease was checked."""
        self._traffic()
        check_sent(sent)
        keys = self._keys(lease.namespace)
        record = await keys.checked(lease)
        there = seen_by_holder(record)
        old = _named(there, sent.name, "")
        if old is not None and sent.keep:
            return Attached(old, record.version if record.staged is None else record.staged.version, staged=False)
        _check_room(there, sent.name)
        meter = Meter(data, sent)
        id = uuid7(self._clock)

        def change(record: KeyRecord, state: StateObject, at: datetime) -> KeyRecord:
            before = _named(seen_by_holder(record), sent.name, "")
            made = Attachment(id, sent.name, state, meter.sha256, sent.content_type, at, at)
            if before is not None:
                made = replace(made, id=before.id, created_at=before.created_at)
            rest = [each for each in seen_by_holder(record) if each.name != sent.name]
            return staged_attachments(record, (*rest, made), at)

        writing = keys.versions.write_stream(lease.key, lease.token, meter)
        after = (await keys.stage_object(lease, writing, change)).after
        made = _named(seen_by_holder(after), sent.name, "")
        assert made is not None, "what was staged is there"
        assert after.staged is not None, "an attachment is staged"
        return Attached(made, after.staged.version)

    async def list(self, whose: Lease) -> Sequence[Attachment]:
        """All attachments, in the order of their names."""
        self._traffic()
        return sorted(await self._visible(whose), key=lambda each: each.name)

    async def fetch(self, whose: Lease, *, name: str = "", id: str = "") -> Fetched:
        """One attachment with its bytes, by its name or its id."""
        self._traffic()
        before: Attachment | None = None
        for _ in range(READS_MAX):
            found = _named(await self._visible(whose), name, id)
            if found is None:
                message = f"{whose.key!r} has no attachment {name or id!r}"
                raise KeyRefused(Refusal.ATTACHMENT_NOT_FOUND, message)
            if found == before:
                break
            chunks = checked_chunks(found, self._keys(whose.namespace).versions.stream(found.object))
            try:
                first = await anext(chunks, b"")
            except Gone:
                before = found  # replaced and deleted since the record was read: read the record again
                continue
            return Fetched(found, _chained(first, chunks))
        raise StoreBroken(
            f"the record of {whose.key!r} names an attachment whose object is not there",
            do="run `wrasse leases fsck`; restore the object from a backup, or remove the attachment",
        )

    async def remove(self, lease: Lease, *, name: str = "", id: str = "", every: bool = False) -> tuple[int, int]:
        """Stages the removal of one attachment, or of all; returns how many, and the version after a commit."""
        self._traffic()

        def goes(each: Attachment) -> bool:
            return every or (each.name == name if name else each.id == id)

        def change(record: KeyRecord, at: datetime) -> KeyRecord | None:
            there = seen_by_holder(record)
            left = tuple(each for each in there if not goes(each))
            return None if len(left) == len(there) else staged_attachments(record, left, at)

        changed = await self._keys(lease.namespace).stage_change(lease, change)
        staged = changed.after.staged
        count = len(seen_by_holder(changed.before)) - len(seen_by_holder(changed.after))
        return count, changed.after.version if staged is None else staged.version

    async def _visible(self, whose: Lease) -> Sequence[Attachment]:
        keys = self._keys(whose.namespace)
        if whose.id:
            return seen_by_holder(await keys.read_as_holder(whose))
        record = await keys.read(whose.key)
        return () if record is None else record.attachments


class Meter:
    """Counts and hashes bytes on their way into the store. A mismatch raises before the last chunk, so that the store
    never creates the object."""

    def __init__(self, data: Data, sent: Sent) -> None:
        self._data, self._sent = data, sent
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """The checksum of the bytes so far."""
        return self._hash.hexdigest()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._hash, self.size = hashlib.sha256(), 0
        async for chunk in pieces(self._data):
            self.size += len(chunk)
            if self.size > self._sent.bytes_max:
                raise AttachmentTooLarge(
                    f"the attachment {self._sent.name!r} has more than {self._sent.bytes_max} bytes",
                    do="send less, or allow more",
                )
            self._hash.update(chunk)
            yield chunk
        check_whole(self._sent, self.size, self.sha256)


def check_whole(sent: Sent, size: int, sha256: str) -> None:
    """Refuses bytes whose size or checksum is not the expected one."""
    if sent.size is not None and size != sent.size:
        raise KeyRefused(Refusal.BYTES_MISMATCH, f"the attachment has {size} bytes, not {sent.size}")
    if sent.sha256 and sha256 != sent.sha256:
        raise KeyRefused(Refusal.SHA256_MISMATCH, "the checksum of the attachment is not the expected one")


def check_sent(sent: Sent) -> None:
    """Refuses invalid names and content types before anything is sent."""
    size = len(sent.name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= NAME_BYTES_MAX or not sent.name.isprintable():
        raise UsageError(
            f"the name of an attachment is {size} bytes of {sent.name[:40]!r}",
            do=f"use 1 to {NAME_BYTES_MAX} bytes of printable characters",
        )
    kind = sent.content_type
    if not kind or len(kind) > NAME_BYTES_MAX or not kind.isascii() or not kind.isprintable():
        raise UsageError(f"{kind[:40]!r} is no content type", do="send one such as text/plain")


async def pieces(data: Data) -> AsyncIterator[bytes]:
    """The same bytes in chunks."""
    if isinstance(data, bytes):
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]
        return
    async for chunk in data:
        yield chunk


async def checked_chunks(attachment: Attachment, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The bytes of an attachment. The last chunk is returned only after size and checksum matched."""
    summed, size, last = hashlib.sha256(), 0, b""
    async for chunk in chunks:
        if last:
            yield last
        size, last = size + len(chunk), chunk
        summed.update(chunk)
    if size != attachment.object.size or summed.hexdigest() != attachment.sha256:
        raise StoreBroken(
            f"the attachment {attachment.name!r} is not what was stored", do="restore its object from a backup"
        )
    if last:
        yield last


def seen_by_holder(record: KeyRecord) -> tuple[Attachment, ...]:
    """The attachments as the holder sees them: the staged ones if there are any, else the committed ones."""
    staged = record.staged
    return record.attachments if staged is None or staged.attachments is None else staged.attachments


async def _chained(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        if first:
            yield first
        async for chunk in rest:
            yield chunk


def _named(attachments: Sequence[Attachment], name: str, id: str) -> Attachment | None:
    return next((each for each in attachments if (each.name == name if name else each.id == id)), None)


def _check_room(there: Sequence[Attachment], name: str) -> None:
    if len(there) >= ATTACHMENTS_MAX and _named(there, name, "") is None:
        raise AttachmentTooLarge(
            f"a key has at most {ATTACHMENTS_MAX} attachments", do="use several keys, or put many files into one"
        )


class FilePieces:
    """A file's bytes; iterating again reads from the beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            file = await asyncio.to_thread(self._path.open, "rb")
        except OSError as error:
            raise UsageError(
                f"{self._path.name} cannot be read: {error.strerror}", do="check the name of the file"
            ) from None
        try:
            while piece := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield piece
        finally:
            file.close()


async def write_file(path: Path, chunks: AsyncGenerator[bytes]) -> int:
    """Writes a temporary file and renames it over `path`, so that the file is complete or absent; returns its size."""
    size = 0
    file, name = _temp_file(path)
    try:
        with file:
            async with aclosing(chunks):
                async for chunk in chunks:
                    size += await asyncio.to_thread(file.write, chunk)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return size


def _temp_file(path: Path) -> tuple[BinaryIO, str]:
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    except OSError as error:
        raise UsageError(f"{path.name} cannot be written: {error.strerror}", do="check the folder") from None
    return os.fdopen(number, "wb"), name
