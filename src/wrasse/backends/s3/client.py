"""The S3 calls that wrasse needs, each with its condition and nothing else. Keys are raw bytes in the bucket.

A failed condition is an answer (`None` or `False`). A change that may not be made twice raises `NoAnswer` when its
reply was lost; the caller reads the object back. Which conditions a store honours is found out by the probe in
`connect.py`.

BucketVersions finds deleted objects of a versioned bucket by their tag, restores them, or deletes them for good. A
delete leaves a marker, and the bytes stay as an older version. The current object of a key is never changed: a version
is removed by its own id, and only while it is not the latest or hidden by a marker. A marker is removed only if that
restores the requested version, or nothing at all.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from wrasse.backends.s3.transport import Body, NoAnswer, Reply, S3Request, S3Transport
from wrasse.backends.s3.xml import (
    DeleteRefusal,
    KeptVersion,
    ListedPage,
    S3Denied,
    Upload,
    completion,
    copy_source,
    deletion,
    etag_of,
    failure_in,
    is_etag,
    parse_date,
    parse_listing,
    parse_refusals,
    parse_size,
    parse_text,
    parse_uploads,
    parse_versioning,
    parse_versions,
)
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, WrasseError, first_error
from wrasse.ports.outcome import Outcome

PROBES = b".wrasse-probe/"  # below the prefix: reserved, hidden from listings; emptied at each probe
PAGE_MAX = 1_000
VERSION_PAGES_MAX = 20
"""Pages of versions of one key that are read."""
AT_ONCE = 16
"""Requests of one call in flight."""
_MISSING = (404, 412, 304)
_VERSIONING_KEPT = timedelta(minutes=1)  # how long the status of a bucket is cached
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Each field is one kind of condition, or another property of the store."""

    create: bool = True  # a second create at a key is refused
    replace: bool = True  # a write that names an old version is refused
    delete: bool = True  # a delete that names an old version is refused
    batch_delete: bool = True  # and so is each key of a batch of deletes
    multipart: bool = True  # a large object is completed under a condition
    ordered: bool = True  # listings are in the byte order of the keys
    raw_keys: bool = True  # keys are stored unchanged, also `a//b`

    def check(self, where: str) -> None:
        """Refuses a store without the necessary conditions."""
        missing = [name for name in ("create", "replace", "delete") if not getattr(self, name)]
        if missing:
            raise Refused(
                f"{where} ignores the condition of a {' and of a '.join(missing)}, so two writers would both win",
                do="use a store that honours If-None-Match and If-Match: AWS S3, SeaweedFS, MinIO, Ceph, R2",
            )

    def check_large(self, where: str) -> None:
        """Refuses a large object that could overwrite another's."""
        if not self.multipart:
            raise Refused(
                f"{where} ignores conditions when a large object is completed", do="write smaller objects to this store"
            )

    def __str__(self) -> str:
        listing = "ordered" if self.ordered else "by folder"
        batches = "in batches" if self.batch_delete else "one by one"
        keys = "raw keys" if self.raw_keys else "plain keys only"
        large = "large objects" if self.multipart else "no large objects"
        return f"conditional create, replace and delete ({batches}), {large}, listing {listing}, {keys}"


ALL = Conditions()


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a change: the key has no object, or one with this tag."""

    etag: str | None

    def headers(self) -> dict[str, str]:
        """The headers of the condition."""
        return {"if-none-match": "*"} if self.etag is None else {"if-match": f'"{self.etag}"'}


ABSENT = Condition(None)


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object in the store, without its bytes."""

    etag: str
    size: int
    modified_at: datetime
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Got:
    """A small object with its bytes."""

    etag: str
    data: bytes
    at: datetime


class Client:
    """One bucket, and which conditions it honours. With a `probe` it was opened to read: before the first change, the
    probe finds out what the store honours, or refuses it."""

    def __init__(
        self, wire: S3Transport, conditions: Conditions = ALL, probe: Callable[[], Awaitable[Conditions]] | None = None
    ) -> None:
        self.wire = wire
        self.where = str(wire.address)
        self.conditions = conditions
        self._probe = probe
        self._probing = asyncio.Lock()

    @property
    def only_reads(self) -> bool:
        """Whether nothing was changed through it so far; changes may be forbidden."""
        return self._probe is not None

    async def probed(self) -> Conditions:
        """What the store honours. Called before a change."""
        async with self._probing:
            if self._probe is not None:
                self.conditions, self._probe = await self._probe(), None
        return self.conditions

    async def put(
        self, key: bytes, data: bytes, condition: Condition | None, headers: Mapping[str, str] = {}
    ) -> str | None:
        """Writes an object; the new tag, or None if the condition failed."""
        wanted = {**headers, **(condition.headers() if condition is not None else {})}
        reply = await self._change(S3Request("PUT", key, headers=wanted, body=data, twice=condition is None))
        return None if reply.status in (*_MISSING, 409) else _etag(reply, self.where)

    async def get(self, key: bytes) -> Got | None:
        """All bytes of an object that is known to be small."""
        reply = await self.wire.ask(S3Request("GET", key))
        return None if reply.status in _MISSING else Got(_etag(reply, self.where), reply.body, reply.at)

    async def head(self, key: bytes) -> S3Object | None:
        """The object without its bytes."""
        reply = await self.wire.ask(S3Request("HEAD", key))
        return None if reply.status in _MISSING else _seen(reply, self.where)

    @asynccontextmanager
    async def reading(self, key: bytes, etag: str | None, offset: int) -> AsyncIterator[tuple[S3Object, Body] | None]:
        """The bytes from an offset on, streamed; None if there is no such object, or not with this tag."""
        headers = {} if etag is None else {"if-match": f'"{etag}"'}
        if offset:
            headers["range"] = f"bytes={offset}-"
        async with self.wire.stream(S3Request("GET", key, headers=headers)) as (reply, body):
            if reply.status in (*_MISSING, 416):
                yield None
                return
            seen = _seen(reply, self.where)
            if offset and not reply.headers.get("content-range", "").startswith(f"bytes {offset}-"):
                raise StoreBroken(f"{self.where} sent other bytes than requested", do="check that it is an S3")
            body.limit = seen.size - offset
            yield seen, body

    async def delete(self, key: bytes, etag: str) -> bool:
        """Deletes, if the object has this tag."""
        headers = {"if-match": f'"{etag}"'}
        reply = await self._change(S3Request("DELETE", key, headers=headers, twice=False))
        return reply.status not in (*_MISSING, 409)

    async def remove(self, key: bytes) -> None:
        """Deletes an object unconditionally."""
        await self._change(S3Request("DELETE", key))

    async def delete_many(self, keys: Sequence[tuple[bytes, str]]) -> tuple[DeleteRefusal, ...]:
        """Deletes each key that has its tag; returns the refusals. ValueError for a key that XML cannot contain."""
        body = deletion(keys)
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"content-md5": digest, "content-type": "application/xml"}
        reply = await self._change(S3Request("POST", None, (("delete", ""),), headers, body, twice=False))
        return parse_refusals(reply.body, self.where)

    async def list(
        self,
        prefix: bytes,
        *,
        after: bytes | None = None,
        token: str | None = None,
        limit: int = PAGE_MAX,
        by_folder: bool = False,
    ) -> ListedPage:
        """One page of the keys with the prefix; `by_folder` shows one level only."""
        query: list[tuple[str, str | bytes]] = [
            ("list-type", "2"), ("encoding-type", "url"), ("max-keys", str(min(limit, PAGE_MAX))), ("prefix", prefix)
        ]  # fmt: skip
        if by_folder:
            query.append(("delimiter", "/"))
        if token is not None:
            query.append(("continuation-token", token))
        elif after is not None:
            query.append(("start-after", after))
        reply = await self.wire.ask(S3Request("GET", None, tuple(query)))
        return parse_listing(reply.body, self.where, bucket=self.wire.address.bucket, prefix=prefix)

    async def copy(
        self, source: bytes, etag: str, target: bytes, condition: Condition, *, version: str = ""
    ) -> str | None:
        """Copies an object that has this tag, with its metadata; the copy's tag, or None if a condition failed."""
        headers = {
            "x-amz-copy-source": copy_source(self.wire.address.bucket, source, version),
            "x-amz-copy-source-if-match": f'"{etag}"',
            **condition.headers(),
        }
        reply = await self._change(S3Request("PUT", target, headers=headers, twice=False))
        if reply.status in (*_MISSING, 409):
            return None
        self._check_late(reply)
        return etag_of(parse_text(reply.body, "CopyObjectResult", "ETag", self.where))

    async def begin_upload(self, key: bytes, headers: Mapping[str, str]) -> str:
        """Begins a multipart upload; its id."""
        reply = await self._change(S3Request("POST", key, (("uploads", ""),), headers))
        return parse_text(reply.body, "InitiateMultipartUploadResult", "UploadId", self.where)

    async def put_part(self, key: bytes, upload: str, number: int, data: bytes) -> str:
        """Sends one part; its tag. The same part may be sent again."""
        query = (("partNumber", str(number)), ("uploadId", upload))
        return _etag(await self.wire.ask(S3Request("PUT", key, query, body=data)), self.where)

    async def complete_upload(self, key: bytes, upload: str, etags: Sequence[str], condition: Condition) -> str | None:
        """Makes an object of the parts; its tag, or None if the condition failed or the upload does not exist."""
        headers = {"content-type": "application/xml", **condition.headers()}
        query = (("uploadId", upload),)
        reply = await self.wire.ask(S3Request("POST", key, query, headers, completion(etags), twice=False))
        if reply.status in (*_MISSING, 409):
            return None
        self._check_late(reply)
        return etag_of(parse_text(reply.body, "CompleteMultipartUploadResult", "ETag", self.where))

    async def abort_upload(self, key: bytes, upload: str) -> None:
        """Deletes the parts of an upload."""
        async with asyncio.timeout(60):
            await self._change(S3Request("DELETE", key, (("uploadId", upload),)))

    async def uploads(
        self, prefix: bytes, markers: tuple[str, str] | None, limit: int = PAGE_MAX
    ) -> tuple[tuple[Upload, ...], tuple[str, str] | None]:
        """A page of open uploads, and the markers of the next one."""
        query: list[tuple[str, str | bytes]] = [
            ("uploads", ""), ("prefix", prefix), ("encoding-type", "url"), ("max-uploads", str(limit))
        ]  # fmt: skip
        if markers is not None:
            query += [("key-marker", markers[0].encode("utf-8", "surrogateescape")), ("upload-id-marker", markers[1])]
        return parse_uploads((await self.wire.ask(S3Request("GET", None, tuple(query)))).body, self.where)

    async def versioning(self) -> str:
        """Whether the bucket keeps versions, as the store's status; empty if it never did."""
        reply = await self.wire.ask(S3Request("GET", None, (("versioning", ""),)))
        return parse_versioning(reply.body, self.where)

    async def versions(
        self, key: bytes, markers: tuple[str, str] | None
    ) -> tuple[tuple[KeptVersion, ...], tuple[str, str] | None]:
        """A page of the versions of the keys with this prefix, and the markers of the next one."""
        query: list[tuple[str, str | bytes]] = [("versions", ""), ("prefix", key), ("encoding-type", "url")]
        if markers is not None:
            query += [("key-marker", markers[0].encode("utf-8", "surrogateescape")), ("version-id-marker", markers[1])]
        return parse_versions((await self.wire.ask(S3Request("GET", None, tuple(query)))).body, self.where)

    async def remove_version(self, key: bytes, version: str) -> None:
        """Deletes one version for good, or one marker."""
        await self._change(S3Request("DELETE", key, (("versionId", version),)))

    async def bucket_is_there(self) -> datetime:
        """The store's time, if the bucket answers."""
        return (await self.wire.ask(S3Request("HEAD", None))).at

    async def _change(self, ask: S3Request) -> Reply:
        await self.probed()
        return await self.wire.ask(ask)

    def _check_late(self, reply: Reply) -> None:
        # These calls answer 200 before they are done, and may still report a failure.
        failure = failure_in(reply.body)
        if failure is not None:
            raise NoAnswer(StoreBroken(f"{self.where} failed half way ({failure.code})", do="it is read back"))


def _etag(reply: Reply, where: str) -> str:
    found = etag_of(reply.headers.get("etag", ""))
    if not is_etag(found):
        raise StoreBroken(f"{where} gave no entity tag", do="check that the endpoint is an S3")
    return found


def _seen(reply: Reply, where: str) -> S3Object:
    try:
        size = reply.headers.get("content-range", "").rpartition("/")[2] or reply.headers["content-length"]
        return S3Object(
            _etag(reply, where), parse_size(size), parse_date(reply.headers["last-modified"]), reply.headers
        )
    except (KeyError, ValueError):
        raise StoreBroken(f"{where} answered without size or time", do="check that the endpoint is an S3") from None


class BucketVersions:
    """The versions of one bucket."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ever: tuple[bool, datetime] | None = None  # whether it ever kept versions, and when that was read

    async def keeps_deleted(self) -> bool:
        """Whether deleted objects are kept now. Read again each time: objects that were written before versioning was
        enabled are lost once it is suspended."""
        try:
            return await self._client.versioning() == "Enabled"
        except WrasseError:
            return False  # an unknown status counts as no versioning

    async def deleted(self, key: bytes, etag: str) -> bool:
        """Whether this object is kept as a deleted version, and is not the current one."""
        return any(each.etag == etag and not each.latest for each in await self._versions(key))

    async def undelete(self, key: bytes, etag: str) -> Outcome:
        """Restores an object: by removing its marker if the key has nothing else, else by a copy."""
        found = await self._versions(key)
        latest = next((each for each in found if each.latest), None)
        if latest is not None and not latest.marker:
            return Outcome.DONE if latest.etag == etag else Outcome.CONFLICT
        kept = [each for each in found if not each.marker]
        mine = next((each for each in kept if each.etag == etag), None)
        if mine is None:
            return Outcome.CONFLICT
        if len(kept) == 1:
            for each in found:
                if each.marker:
                    await self._client.remove_version(key, each.id)
            return Outcome.DONE if await self._stands(key, etag) else Outcome.CONFLICT
        try:
            copied = await self._client.copy(key, etag, key, ABSENT, version=mine.id)
        except NoAnswer:
            return Outcome.DONE if await self._stands(key, etag) else Outcome.UNKNOWN
        return Outcome.CONFLICT if copied is None else Outcome.DONE

    async def purge(self, key: bytes, etag: str) -> Outcome:
        """Deletes a deleted version for good, and the markers once they hide nothing."""
        try:
            for each in await self._versions(key):
                if each.etag == etag and not each.marker and not each.latest:
                    await self._client.remove_version(key, each.id)
            left = await self._versions(key)
            if all(each.marker for each in left):
                for each in left:
                    await self._client.remove_version(key, each.id)
        except S3Denied:
            return Outcome.FAILED
        return Outcome.DONE

    async def wipe(self, key: bytes) -> None:
        """Deletes all versions of a key. For keys of our own that no other program uses."""
        for each in await self._versions(key):
            await self._client.remove_version(key, each.id)

    async def _versions(self, key: bytes) -> list[KeptVersion]:
        """All versions of one key; none if the bucket never kept any."""
        if not await self._ever_kept():
            return []
        found: list[KeptVersion] = []
        markers: tuple[str, str] | None = None
        for _ in range(VERSION_PAGES_MAX):
            page, markers = await self._client.versions(key, markers)
            found += [each for each in page if each.key == key]
            # Keys come in order: longer keys with this prefix come after it.
            if markers is None or (page and page[-1].key != key):
                return found
        raise StoreUnavailable(
            f"{self._client.where} has more versions of one key than are read",
            do="let a lifecycle rule expire old ones",
        )

    async def _ever_kept(self) -> bool:
        now = self._client.wire.time.now()
        if self._ever is None or abs(now - self._ever[1]) > _VERSIONING_KEPT:
            try:
                self._ever = (bool(await self._client.versioning()), now)
            except (S3Denied, StoreBroken):
                self._ever = (False, now)  # a store without versioning, or without permission to read it
        return self._ever[0]

    async def _stands(self, key: bytes, etag: str) -> bool:
        seen = await self._client.head(key)
        return seen is not None and seen.etag == etag


async def gather_bounded(ask: Callable[[A], Awaitable[T]], items: Sequence[A]) -> list[T]:
    """Calls `ask` for each; the first error is raised as it is."""

    async def one(each: A) -> T:
        return await ask(each)

    answers: list[T] = []
    for begin in range(0, len(items), AT_ONCE):
        async with together() as tasks:
            running = [tasks.create_task(one(each)) for each in items[begin : begin + AT_ONCE]]
        answers += [task.result() for task in running]
    return answers


@asynccontextmanager
async def together() -> AsyncIterator[TaskGroup]:
    """A TaskGroup that raises its first error alone: the caller sees one request, not a group."""
    try:
        async with TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise first_error(group) from None
