"""Objects on S3: raw keys, conditional writes, and a retried write of our own is no conflict.

Every write has a nonce in its metadata. If the store did not confirm a write, the object is read back: our nonce means
done. A version is the store's entity tag, which identifies the bytes: the same bytes written again may have the same
version.

Conditional deletes are sent in batches if the store has conditions for that, each with an outcome of its own. After a
delete with a lost reply the keys are checked: those that still have their tag are deleted again; for the others it is
unknown which process deleted them, and the outcome is `unknown`.

Large objects are uploaded in parts, several at a time, so that memory does not grow with them. An upload that is not
completed is aborted.

Metadata are headers, readable for other programs, plus the nonce of the write. A name that a header can have is a
header of its own, with characters that are not plain text escaped by `%`; the others share one header. Only objects
with our nonce are decoded that way; those of other programs are returned unchanged.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from asyncio import Semaphore, Task
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from urllib.parse import quote, unquote

import msgspec

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.s3.client import (
    ABSENT,
    AT_ONCE,
    PROBES,
    BucketVersions,
    Client,
    Condition,
    gather_bounded,
    together,
)
from wrasse.backends.s3.object_listing import Lister, nameable
from wrasse.backends.s3.transport import TRIES, NoAnswer, pause
from wrasse.backends.s3.xml import S3Denied, is_etag, is_xml_text
from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken, StoreUnavailable, TooLarge, UsageError, unsettled
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
    WriteResult,
    check_deletes,
    check_metadata,
    check_object_key,
    gone,
    raw_key,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, check_limit

_LOST = frozenset({"PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict", "NoSuchVersion"})
_REFUSED = frozenset({"AccessDenied", "NotImplemented", "InvalidArgument", "MethodNotAllowed"})

Delete = tuple[bytes, str]
PART_BYTES = 8 << 20
"""Bytes of a part; the store wants at least 5 MiB."""
PARTS_MAX = 10_000
"""Parts of an object that the store takes; with `PART_BYTES` the largest object, 78 GiB."""
PARTS_AT_ONCE = 4
"""Parts of one upload in flight. An upload needs memory for these and two more, one of them being filled: 48 MiB."""
Finish = Callable[[Condition], Awaitable[str | None]]
_META_PREFIX = "x-amz-meta-"
NONCE = f"{_META_PREFIX}wrasse-nonce"
_REST_HEADER = f"{_META_PREFIX}wrasse-rest"
_PLAIN_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLAIN_TEXT = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")
_Send = Callable[[], Awaitable[str | None]]
COPY_BYTES_MAX = 5 << 30
"""The largest object that is copied; beyond this, S3 copies in parts only."""
READS_MAX = 4
"""Requests for one read that is interrupted repeatedly."""


class Deletes:
    """Deletes objects of one bucket."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def delete(self, deletes: Sequence[Delete]) -> list[Outcome]:
        """The outcomes, in the order of the deletes."""
        in_batches = (await self._client.probed()).batch_delete
        outcomes: list[Outcome | None] = [None] * len(deletes)
        batch: dict[bytes, int] = {}
        single: list[int] = []
        for place, (key, etag) in enumerate(deletes):
            if not is_etag(etag):
                outcomes[place] = Outcome.CONFLICT
            elif in_batches and key not in batch and _is_xml_key(key):
                batch[key] = place
            else:
                single.append(place)
        if batch:
            found = await self._many([deletes[place] for place in batch.values()])
            for place, outcome in zip(batch.values(), found, strict=True):
                outcomes[place] = outcome
        for begin in range(0, len(single), AT_ONCE):  # a key that occurs twice is deleted in the given order
            some = single[begin : begin + AT_ONCE]
            alone = len({deletes[place][0] for place in some}) == len(some)
            for group in [some] if alone else [[place] for place in some]:
                found = await gather_bounded(self._one, [deletes[place] for place in group])
                for place, outcome in zip(group, found, strict=True):
                    outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    async def _one(self, delete: Delete) -> Outcome:
        key, etag = delete
        for attempt in range(1, TRIES + 1):
            try:
                return Outcome.DONE if await self._client.delete(key, etag) else Outcome.CONFLICT
            except S3Denied:
                return Outcome.FAILED  # this key is protected, for example by an object lock; others may not be
            except NoAnswer as unknown:
                if attempt == TRIES:
                    raise unknown.why from unknown
                if not await self._has(delete):
                    return Outcome.UNKNOWN
            await asyncio.sleep(pause(attempt))
        raise AssertionError("the last try returns or raises")

    async def _many(self, deletes: Sequence[Delete]) -> list[Outcome]:
        outcomes: dict[bytes, Outcome] = {}
        left = list(deletes)
        for attempt in range(1, TRIES + 1):
            try:
                outcomes |= await self._batch(left)
                return [outcomes[key] for key, _ in deletes]
            except NoAnswer as unknown:
                if attempt == TRIES:
                    raise unknown.why from unknown
            there = await self._which(left)
            outcomes |= {key: Outcome.UNKNOWN for key, _ in left if key not in there}
            left = [each for each in left if each[0] in there]
            if not left:
                break
            await asyncio.sleep(pause(attempt))
        return [outcomes[key] for key, _ in deletes]

    async def _batch(self, deletes: Sequence[Delete]) -> dict[bytes, Outcome]:
        outcomes = {key: Outcome.DONE for key, _ in deletes}
        for refusal in await self._client.delete_many(deletes):
            if refusal.key not in outcomes:
                raise StoreUnavailable(
                    f"{self._client.where} answered a delete with a key that was not in it", do="try again later"
                )
            if refusal.code in _LOST:
                outcomes[refusal.key] = Outcome.CONFLICT
            else:
                outcomes[refusal.key] = Outcome.FAILED if refusal.code in _REFUSED else Outcome.UNKNOWN
        return outcomes

    async def _which(self, deletes: Sequence[Delete]) -> set[bytes]:
        """The keys that still have their tag."""
        there = await gather_bounded(self._has, deletes)
        return {key for (key, _), has in zip(deletes, there, strict=True) if has}

    async def _has(self, delete: Delete) -> bool:
        key, etag = delete
        seen = await self._client.head(key)
        return seen is not None and seen.etag == etag


def _is_xml_key(key: bytes) -> bool:
    try:
        return is_xml_text(key.decode())
    except UnicodeDecodeError:
        return False


class Parts:
    """A stream of bytes, cut into parts of PART_BYTES; the last is shorter."""

    def __init__(self, data: AsyncIterable[bytes]) -> None:
        self._chunks = aiter(data)
        self._rest = bytearray()

    async def next(self) -> bytes:
        """The next part; shorter than PART_BYTES only at the end."""
        while len(self._rest) < PART_BYTES:
            try:
                self._rest += await anext(self._chunks)
            except StopAsyncIteration:
                break
        part = bytes(memoryview(self._rest)[:PART_BYTES])
        del self._rest[:PART_BYTES]
        return part

    async def aclose(self) -> None:
        """Closes the source."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


@asynccontextmanager
async def upload(
    client: Client, key: bytes, headers: Mapping[str, str], first: bytes, parts: Parts
) -> AsyncIterator[Finish]:
    """Sends all parts, and returns the function that completes the object under a condition."""
    begun = await client.begin_upload(key, headers)
    completed = False

    async def finish(condition: Condition) -> str | None:
        nonlocal completed
        etag = await client.complete_upload(key, begun, etags, condition)
        completed = etag is not None
        return etag

    try:
        etags = await _send(lambda number, part: client.put_part(key, begun, number, part), first, parts)
        yield finish
    finally:
        if not completed:
            # If it was completed after all, there is nothing to abort. If the store does not answer, the parts wait for
            # its lifecycle rule or for ours.
            with suppress(StoreUnavailable, TimeoutError):
                await client.abort_upload(key, begun)


async def _send(put: Callable[[int, bytes], Awaitable[str]], part: bytes, parts: Parts) -> list[str]:
    """Sends all parts, each retried by itself; their tags in order. The first that fails cancels the others."""
    room = Semaphore(PARTS_AT_ONCE)
    sending: list[Task[str]] = []

    async def one(number: int, part: bytes) -> str:
        try:
            return await put(number, part)
        finally:
            room.release()

    async with together() as tasks:
        await room.acquire()
        while part:
            if len(sending) == PARTS_MAX:
                raise TooLarge(
                    f"an object of more than {PARTS_MAX * PART_BYTES} bytes", do="write it as several objects"
                )
            sending.append(tasks.create_task(one(len(sending) + 1, part)))
            part = b""  # the task has it; sent bytes are not kept while the next part waits
            await room.acquire()
            part = await parts.next()
    return [each.result() for each in sending]


def to_headers(metadata: Mapping[str, str], nonce: str) -> dict[str, str]:
    """The headers to write an object with."""
    headers = {NONCE: nonce}
    rest = {}
    for name, value in metadata.items():
        if _PLAIN_NAME.fullmatch(name) and not name.startswith("wrasse-") and value:
            headers[_META_PREFIX + name] = quote(value, safe=_PLAIN_TEXT)
        else:
            rest[name] = value
    if rest:
        headers[_REST_HEADER] = quote(json.dumps(rest, ensure_ascii=False, separators=(",", ":")), safe=_PLAIN_TEXT)
    return headers


def from_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The metadata that an object was written with."""
    own = {name.removeprefix(_META_PREFIX): value for name, value in headers.items() if name.startswith(_META_PREFIX)}
    if own.pop("wrasse-nonce", None) is None:
        return own
    rest = own.pop("wrasse-rest", None)
    found = {name: unquote(value) for name, value in own.items()}
    return found if rest is None else found | _rest(rest)


def _rest(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(unquote(text), type=dict[str, str])
    except UNREADABLE:
        raise StoreBroken(
            f"the header {_REST_HEADER} of an object is not what wrasse wrote", do="write the object's metadata again"
        ) from None


class S3Objects:
    """The objects below one prefix of a bucket."""

    def __init__(self, client: Client, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix
        self._lister = Lister(client)
        self._deletes = Deletes(client)
        self._versions = BucketVersions(client)
        self.keeps_deleted = self._versions.keeps_deleted
        self.copies: Copies = self
        self.multipart: HasUploads = self
        self.versions: KeepsVersions = self

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        raw = await self._to_write(key)
        check_metadata(metadata)
        return await self._store(raw, data, ABSENT, metadata)

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        raw = await self._to_write(key)
        check_metadata(metadata)
        if not is_etag(at):
            return self._stored(Outcome.CONFLICT)
        return await self._store(raw, data, Condition(at), metadata)

    async def head(self, key: str) -> ObjectHead | None:
        seen = await self._client.head(self._raw(key))
        if seen is None:
            return None
        return ObjectHead(ObjectInfo(key, seen.size, seen.etag, seen.modified_at), from_headers(seen.headers))

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        raw, etag, offset, broken = self._raw(key), at, 0, 0
        if at is not None and not is_etag(at):
            raise gone(key)
        while True:
            try:
                async with self._client.reading(raw, etag, offset) as found:
                    if found is None:
                        raise gone(key)
                    seen, body = found
                    if etag is not None and seen.etag != etag:
                        raise gone(key)
                    etag = seen.etag
                    while offset < seen.size:
                        chunk = await body.next(CHUNK_BYTES)
                        if not chunk:
                            raise StoreUnavailable(
                                f"{self._client.where} sent {offset} of the {seen.size} bytes of an object",
                                do="try again later",
                            )
                        offset += len(chunk)
                        yield chunk
                    return
            except StoreUnavailable:
                # The bytes so far are of this version; the rest is requested under the same condition.
                broken += 1
                if broken == READS_MAX:
                    raise
            await asyncio.sleep(pause(broken))

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        check_limit(limit, "objects")
        start = None if after is None else self._prefix + raw_key(after)
        page_loop = PageLoop(self._client.where, "a listing")
        while True:
            page_loop.turn(start)
            found, more = await self._lister.page(self._prefix + raw_key(prefix), start, limit)
            probes, begin = self._prefix + PROBES, len(self._prefix)
            shown = [each for each in found if not each.key.startswith(probes)]
            keys = tuple([each.key[begin:].decode("utf-8", "surrogateescape") for each in shown])
            infos = tuple([ObjectInfo(key, o.size, o.etag, o.modified_at) for key, o in zip(keys, shown, strict=True)])
            if infos or not more:
                return Page(infos, keys, self._client.wire.time.now(), more)
            start = found[-1].key

    async def copy(self, key: str, to: str, *, at: str) -> Outcome:
        raw, target = self._raw(key), await self._to_write(to)
        seen = await self._client.head(raw) if is_etag(at) else None
        if seen is None or seen.etag != at:
            return Outcome.CONFLICT
        if seen.size > COPY_BYTES_MAX:
            return Outcome.FAILED
        try:
            done = await self._client.copy(raw, at, target, ABSENT)
        except NoAnswer:
            there = await self._client.head(target)
            # The copy has the nonce of its source.
            mine = there is not None and there.headers.get(NONCE) == seen.headers.get(NONCE)
            return Outcome.DONE if mine and there is not None and there.size == seen.size else Outcome.UNKNOWN
        return Outcome.CONFLICT if done is None else Outcome.DONE

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        check_deletes(deletes)
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
        found, more = await self._client.uploads(self._prefix + raw_key(prefix), markers, min(limit, DELETES_MAX))
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
                ends.append(Outcome.CONFLICT)
                continue
            await self._client.abort_upload(self._raw(each.key), each.id)
            ends.append(Outcome.DONE)
        return ends

    async def _store(self, raw: bytes, data: Data, condition: Condition, metadata: Mapping[str, str]) -> WriteResult:
        nonce = secrets.token_hex(8)
        headers = to_headers(metadata, nonce)
        if isinstance(data, bytes):
            return await self._put(raw, data, condition, headers)
        async with aclosing(Parts(data)) as parts:
            first = await parts.next()
            if len(first) < PART_BYTES:
                return await self._put(raw, first, condition, headers)
            self._client.conditions.check_large(self._client.where)
            async with upload(self._client, raw, headers, first, parts) as finish:
                return await self._settled(raw, condition, nonce, lambda: finish(condition))

    async def _put(self, raw: bytes, data: bytes, condition: Condition, headers: Mapping[str, str]) -> WriteResult:
        return await self._settled(
            raw, condition, headers[NONCE], lambda: self._client.put(raw, data, condition, headers)
        )

    async def _settled(self, raw: bytes, condition: Condition, nonce: str, send: _Send) -> WriteResult:
        """Sends until the outcome is known."""
        outcome, why = Outcome.CONFLICT, unsettled(self._client.where)
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
                # Another writer's. Unless the store refused ours, it may have been stored before that one.
                return self._stored(outcome)
            await self._check_folder(raw)
            await asyncio.sleep(pause(attempt))
        raise why

    async def _check_folder(self, raw: bytes) -> None:
        """Raises if a store refuses a name because it has a folder of that name."""
        if not self._client.conditions.raw_keys and (await self._lister.page(raw + b"/", None, 1))[0]:
            raise UsageError(
                f"{self._client.where} keeps folders, and there is one of this name",
                do="use another key, or write the object before those below it",
            )

    async def _to_write(self, key: str) -> bytes:
        check_object_key(key)
        await self._client.probed()
        return self._raw(key)

    def _raw(self, key: str) -> bytes:
        check_object_key(key)
        raw = raw_key(key)
        if raw.startswith(PROBES):
            raise UsageError(f"the key begins with {PROBES.decode()}", do="use another: this is reserved for probes")
        if not self._client.conditions.raw_keys and not nameable(raw):
            raise UsageError(
                f"{self._client.where} does not keep keys like this one unchanged",
                do="use UTF-8 without backslashes, empty parts, '.' or '..' between slashes, each at most 255 bytes",
            )
        return self._prefix + raw

    def _stored(self, outcome: Outcome, version: str | None = None) -> WriteResult:
        return WriteResult(outcome, version, self._client.wire.time.now())
