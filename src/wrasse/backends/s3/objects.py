"""Objects in a bucket: raw keys, conditional writes, and no lost race reported for a write of our own.

Every write carries a nonce in its metadata. Whenever the store did not say that it was made, the object is read back:
our nonce means done. A version is the store's entity tag, which names the bytes: the same bytes written again may have
the same version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from wrasse.backends.rounds import Rounds
from wrasse.backends.s3.client import ABSENT, Client, Condition
from wrasse.backends.s3.conditions import PROBES, Conditions
from wrasse.backends.s3.deletes import Deletes
from wrasse.backends.s3.listing import Lister, nameable
from wrasse.backends.s3.metadata import NONCE, from_headers, new_nonce, to_headers
from wrasse.backends.s3.replies import is_etag
from wrasse.backends.s3.uploads import PART_BYTES, Parts, upload
from wrasse.backends.s3.versions import Versions
from wrasse.backends.s3.wire import TRIES, NoAnswer, pause
from wrasse.errors import Gone, StoreBroken, StoreUnavailable, UsageError, WrasseError
from wrasse.ports.objects import (
    CHUNK_BYTES,
    DELETES_MAX,
    NO_METADATA,
    Copies,
    Data,
    HasUploads,
    KeepsVersions,
    ObjectDelete,
    ObjectHead,
    ObjectInfo,
    OpenUpload,
    Stored,
    check_metadata,
    check_object_key,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit

_Send = Callable[[], Awaitable[str | None]]
COPY_BYTES_MAX = 5 << 30
"""Bytes of an object that is copied; beyond this, S3 copies in parts only."""
READS_MAX = 4
"""Requests for one read that keeps breaking off."""


class S3Objects:
    """The port."""

    def __init__(self, client: Client, conditions: Conditions, prefix: bytes) -> None:
        self._client = client
        self._conditions = conditions
        self._prefix = prefix
        self._lister = Lister(client, ordered=conditions.ordered)
        self._deletes = Deletes(client, in_batches=conditions.batch_delete)
        self._versions = Versions(client)
        self.keeps_deleted = self._versions.keeps_deleted
        self.copies: Copies = self
        self.multipart: HasUploads = self
        self.versions: KeepsVersions = self

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> Stored:
        raw = self._raw(key)
        check_metadata(metadata)
        return await self._store(raw, data, ABSENT, metadata)

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> Stored:
        raw = self._raw(key)
        check_metadata(metadata)
        if not is_etag(at):
            return self._stored(Outcome.LOST)
        return await self._store(raw, data, Condition(at), metadata)

    async def head(self, key: str) -> ObjectHead | None:
        seen = await self._client.head(self._raw(key))
        if seen is None:
            return None
        return ObjectHead(ObjectInfo(key, seen.size, seen.etag, seen.modified_at), from_headers(seen.headers))

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        raw, etag, offset, broken = self._raw(key), at, 0, 0
        if at is not None and not is_etag(at):
            raise _gone(key)
        while True:
            try:
                async with self._client.reading(raw, etag, offset) as found:
                    if found is None:
                        raise _gone(key)
                    seen, body = found
                    if etag is not None and seen.etag != etag:
                        raise _gone(key)
                    etag = seen.etag
                    while offset < seen.size:
                        chunk = await body.next(CHUNK_BYTES)
                        if not chunk:
                            raise _cut_short(self._client.where, offset, seen.size)
                        offset += len(chunk)
                        yield chunk
                    return
            except StoreUnavailable:
                # What came so far is of this version; the rest is asked for under the same condition.
                broken += 1
                if broken == READS_MAX:
                    raise
            await asyncio.sleep(pause(broken))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        check_limit(limit, "objects")
        start = None if after is None else self._prefix + _bytes(after)
        rounds = Rounds(self._client.where, "a listing")
        while True:
            rounds.turn(start)
            found, more = await self._lister.page(self._prefix + _bytes(prefix), start, limit)
            probes, begin = self._prefix + PROBES, len(self._prefix)
            shown = [each for each in found if not each.key.startswith(probes)]
            keys = tuple([each.key[begin:].decode("utf-8", "surrogateescape") for each in shown])
            infos = tuple(
                [ObjectInfo(key, o.size, o.etag, o.modified_at) for key, o in zip(keys, shown, strict=True)]
            )
            if infos or not more:
                return Page(infos, keys, self._client.wire.time.now(), more)
            start = found[-1].key

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        raw, target = self._raw(key), self._raw(to)
        seen = await self._client.head(raw) if is_etag(at) else None
        if seen is None or seen.etag != at:
            return Outcome.LOST
        if seen.size > COPY_BYTES_MAX:
            return Outcome.FAILED
        try:
            done = await self._client.copy(raw, at, target, ABSENT)
        except NoAnswer:
            there = await self._client.head(target)
            # The copy has the nonce of what it was copied from.
            mine = there is not None and there.headers.get(NONCE) == seen.headers.get(NONCE)
            return Outcome.DONE if mine and there is not None and there.size == seen.size else Outcome.UNKNOWN
        return Outcome.LOST if done is None else Outcome.DONE

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        if len(deletes) > DELETES_MAX:
            raise UsageError(f"{len(deletes)} deletes at once", do=f"delete at most {DELETES_MAX} objects in one call")
        return await self._deletes.delete([(self._raw(each.key), each.version) for each in deletes])

    async def deleted(self, key: str, *, at: str) -> bool:
        return await self._versions.deleted(self._raw(key), at)

    async def undelete(self, key: str, *, at: str) -> Outcome:
        return await self._versions.undelete(self._raw(key), at)

    async def purge(self, key: str, *, at: str) -> Outcome:
        return await self._versions.purge(self._raw(key), at)

    async def uploads(self, prefix: str, after: str | None, limit: int) -> Page[OpenUpload]:
        markers: tuple[str, str] | None = None
        if after is not None:
            key, _, id = after.rpartition("\n")
            markers = (key, id)
        found, more = await self._client.uploads(self._prefix + _bytes(prefix), markers, min(limit, DELETES_MAX))
        if more is not None and (not found or more == markers):
            raise StoreBroken(
                f"{self._client.where} lists the same uploads for ever", do="check that the endpoint is an S3"
            )
        begin = len(self._prefix)
        shown = tuple(
            OpenUpload(each.key[begin:].decode("utf-8", "surrogateescape"), each.id, each.begun_at) for each in found
        )
        cursors = tuple(f"{each.key.decode('utf-8', 'surrogateescape')}\n{each.id}" for each in found)
        if more is not None and cursors:
            cursors = (*cursors[:-1], "\n".join(more))
        return Page(shown, cursors, self._client.wire.time.now(), more is not None)

    async def abort(self, uploads: Sequence[OpenUpload]) -> Sequence[Outcome]:
        ends = []
        for each in uploads:
            there = await self.uploads(each.key, None, DELETES_MAX)
            if each not in there.items:
                ends.append(Outcome.LOST)
                continue
            await self._client.abort_upload(self._raw(each.key), each.id)
            ends.append(Outcome.DONE)
        return ends

    async def _store(self, raw: bytes, data: Data, condition: Condition, metadata: Mapping[str, str]) -> Stored:
        nonce = new_nonce()
        headers = to_headers(metadata, nonce)
        if isinstance(data, bytes):
            return await self._put(raw, data, condition, headers)
        async with aclosing(Parts(data)) as parts:
            first = await parts.next()
            if len(first) < PART_BYTES:
                return await self._put(raw, first, condition, headers)
            self._conditions.check_large(self._client.where)
            async with upload(self._client, raw, headers, first, parts) as finish:
                return await self._settled(raw, condition, nonce, lambda: finish(condition))

    async def _put(self, raw: bytes, data: bytes, condition: Condition, headers: Mapping[str, str]) -> Stored:
        return await self._settled(
            raw, condition, headers[NONCE], lambda: self._client.put(raw, data, condition, headers)
        )

    async def _settled(self, raw: bytes, condition: Condition, nonce: str, send: _Send) -> Stored:
        """Sends until it is known what became of it."""
        outcome, why = Outcome.LOST, _unsettled(self._client.where)
        for attempt in range(1, TRIES + 1):
            try:
                etag = await send()
                if etag is not None:
                    return self._stored(Outcome.DONE, etag)
            except NoAnswer as unknown:
                outcome, why = Outcome.UNKNOWN, unknown.why
            seen = await self._client.head(raw)
            if seen is not None and seen.headers.get(NONCE) == nonce:
                return self._stored(Outcome.DONE, seen.etag)
            if (None if seen is None else seen.etag) != condition.etag:
                # Somebody else's. If we were not told so, ours may have been there before it.
                return self._stored(outcome)
            await self._check_folder(raw)
            await asyncio.sleep(pause(attempt))
        raise why

    async def _check_folder(self, raw: bytes) -> None:
        """Says so where a store refuses a name because it has a folder of that name."""
        if not self._conditions.raw_keys and (await self._lister.page(raw + b"/", None, 1))[0]:
            raise UsageError(
                f"{self._client.where} keeps folders, and there is one of this name",
                do="use another key, or write the object before those below it",
            )

    def _raw(self, key: str) -> bytes:
        check_object_key(key)
        raw = _bytes(key)
        if raw.startswith(PROBES):
            raise UsageError(f"the key begins with {PROBES.decode()}", do="use another: there stores are probed")
        if not self._conditions.raw_keys and not nameable(raw):
            raise UsageError(
                f"{self._client.where} does not keep keys like this one as they are",
                do="use UTF-8 without backslashes, empty parts, '.' or '..' between slashes, each at most 255 bytes",
            )
        return self._prefix + raw

    def _stored(self, outcome: Outcome, version: str | None = None) -> Stored:
        return Stored(outcome, version, self._client.wire.time.now())


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _gone(key: str) -> Gone:
    return Gone(f"the object {key!r} is not there, or not in the version asked for", do="look for it again")


def _cut_short(where: str, offset: int, size: int) -> StoreUnavailable:
    return StoreUnavailable(f"{where} sent {offset} of the {size} bytes of an object", do="try again later")


def _unsettled(where: str) -> WrasseError:
    return StoreUnavailable(f"{where} refuses a write although its condition holds", do="try again later")
