"""The S3 calls that wrasse needs, each with its condition and nothing else. Keys are raw bytes in the bucket.

A failed condition is an answer (`None` or `False`). A change that may not be made twice raises `NoAnswer` when its
reply was lost; the caller reads the object back.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from wrasse.backends.s3.conditions import ALL, Conditions
from wrasse.backends.s3.failures import failure_in
from wrasse.backends.s3.transport import Body, NoAnswer, Reply, S3Request, S3Transport
from wrasse.backends.s3.xml import (
    DeleteRefusal,
    KeptVersion,
    ListedPage,
    Upload,
    completion,
    copy_source,
    deletion,
    etag_of,
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
from wrasse.errors import StoreBroken, first_error

PAGE_MAX = 1_000
_MISSING = (404, 412, 304)


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


AT_ONCE = 16
"""Requests of one call in flight."""
T = TypeVar("T")
A = TypeVar("A")


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
