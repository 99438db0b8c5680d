"""An S3 in this process that does exactly what AWS documents, for what no real server on this machine does.

Raw keys of any bytes, listings in byte order, every condition, multipart uploads. It can be told to answer 503, to
carry a request out and then say nothing, or to cut it off before. It checks no signatures: SeaweedFS does.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from html import escape, unescape
from urllib.parse import parse_qsl, quote_from_bytes, unquote_to_bytes

from aiohttp import web

from wrasse.clock import Clock

BUSY, BUSY_AFTER, CUT_BEFORE, CUT_AFTER, DENIED = "busy", "busy after", "cut before", "cut after", "denied"
Plan = Callable[[str, bytes], str | None]  # of a method and a raw path: what goes wrong


def all_well(method: str, path: bytes) -> None:
    return None


@dataclass
class Thing:
    """One object."""

    data: bytes
    etag: str
    at: datetime
    headers: dict[str, str]


@dataclass
class Pending:
    """An upload that is not complete."""

    key: bytes
    headers: dict[str, str]
    at: datetime
    parts: dict[int, bytes] = field(default_factory=dict)


class StrictS3:
    """One bucket named `bucket`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.things: dict[bytes, Thing] = {}
        self.keys: list[bytes] = []
        self.uploads: dict[str, Pending] = {}
        self.plan: Plan = all_well
        self.requests: list[tuple[str, str]] = []
        self._runner: web.ServerRunner | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Serves, if it does not already; after a close on the same port with the same objects."""
        if self._runner is not None:
            return
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        path, _, query = request.raw_path.partition("?")
        self.requests.append((request.method, request.raw_path))
        fault = self.plan(request.method, unquote_to_bytes(path))
        if fault == CUT_BEFORE:
            return _cut(request)
        if fault == DENIED:
            return self._dated(self._error(403, "AccessDenied"))
        if fault == BUSY:
            return self._dated(self._error(503, "SlowDown"))
        answer = self._answer(request, path, dict(parse_qsl(query, True, errors="surrogateescape")), body)
        if fault == CUT_AFTER:
            return _cut(request)
        return self._dated(self._error(503, "SlowDown") if fault == BUSY_AFTER else answer)

    def _dated(self, answer: web.Response) -> web.Response:
        answer.headers["Date"] = format_datetime(self.clock.now(), usegmt=True)
        return answer

    def _answer(self, request: web.BaseRequest, path: str, query: Mapping[str, str], body: bytes) -> web.Response:
        bucket, slash, rest = path[1:].partition("/")
        key = unquote_to_bytes(rest)
        sent_at = datetime.strptime(request.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
        if abs(sent_at - self.clock.now()) > timedelta(minutes=15):
            return self._error(403, "RequestTimeTooSkewed")
        if bucket != "bucket":
            return self._error(404, "NoSuchBucket")
        if not slash:
            return self._bucket(request.method, query, body)
        if len(key) > 1024:
            return self._error(400, "KeyTooLongError")
        if request.method == "PUT" and "partNumber" in query:
            return self._part(query, body)
        if request.method == "PUT" and "x-amz-copy-source" in request.headers:
            return self._copy(request, key)
        if request.method == "PUT":
            return self._put(request.headers, key, body, _md5(body), _meta(request.headers))
        if request.method in ("GET", "HEAD"):
            return self._get(request, key)
        if request.method == "POST":
            return self._upload(request, key, query, body)
        return self._abort(query) if "uploadId" in query else self._delete(request, key)

    def _bucket(self, method: str, query: Mapping[str, str], body: bytes) -> web.Response:
        if method == "HEAD":
            return web.Response()
        if "delete" in query:
            return self._delete_many(body)
        return self._list_uploads(query) if "uploads" in query else self._list(query)

    def _refused(self, headers: Mapping[str, str], key: bytes) -> web.Response | None:
        there = self.things.get(key)
        if headers.get("If-None-Match") == "*" and there is not None:
            return self._error(412, "PreconditionFailed")
        wanted = headers.get("If-Match")
        if wanted is not None and there is None:
            return self._error(404, "NoSuchKey")
        if wanted is not None and there is not None and wanted.strip('"') != there.etag:
            return self._error(412, "PreconditionFailed")
        return None

    def _put(
        self, headers: Mapping[str, str], key: bytes, data: bytes, etag: str, meta: dict[str, str]
    ) -> web.Response:
        if (refused := self._refused(headers, key)) is not None:
            return refused
        if key not in self.things:
            insort(self.keys, key)
        self.things[key] = Thing(data, etag, self.clock.now(), meta)
        return web.Response(headers={"ETag": f'"{etag}"'})

    def _get(self, request: web.BaseRequest, key: bytes) -> web.Response:
        if (refused := self._refused(request.headers, key)) is not None:
            return refused
        there = self.things.get(key)
        if there is None:
            return self._error(404, "NoSuchKey")
        headers = {"ETag": f'"{there.etag}"', "Last-Modified": format_datetime(there.at, usegmt=True), **there.headers}
        found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(len(there.data))})
        if found is None:
            return web.Response(body=there.data, headers=headers)
        begin = int(found[1])
        if begin >= len(there.data):
            return self._error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {begin}-{len(there.data) - 1}/{len(there.data)}"
        return web.Response(status=206, body=there.data[begin:], headers=headers)

    def _copy(self, request: web.BaseRequest, key: bytes) -> web.Response:
        source = self.things.get(unquote_to_bytes(request.headers["x-amz-copy-source"]).removeprefix(b"/bucket/"))
        if source is None:
            return self._error(404, "NoSuchKey")
        if request.headers.get("x-amz-copy-source-if-match", "").strip('"') not in ("", source.etag):
            return self._error(412, "PreconditionFailed")
        answer = self._put(request.headers, key, source.data, source.etag, source.headers)
        text = f"<CopyObjectResult><ETag>{escape(source.etag)}</ETag></CopyObjectResult>"
        return answer if answer.status != 200 else web.Response(text=text)

    def _delete(self, request: web.BaseRequest, key: bytes) -> web.Response:
        if (refused := self._refused(request.headers, key)) is not None:
            return refused
        self._drop(key)
        return web.Response(status=204)

    def _drop(self, key: bytes) -> None:
        if self.things.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def _delete_many(self, body: bytes) -> web.Response:
        errors = ""
        for found in re.finditer(r"<Key>(.*?)</Key>(?:<ETag>(.*?)</ETag>)?", body.decode(), re.S):
            key, etag = unescape(found[1]).encode(), unescape(found[2] or "").strip('"')
            there = self.things.get(key)
            code = "NoSuchKey" if there is None else "" if etag in ("", there.etag) else "PreconditionFailed"
            if code:
                errors += f"<Error><Key>{escape(key.decode())}</Key><Code>{code}</Code></Error>"
            else:
                self._drop(key)
        return web.Response(text=f"<DeleteResult>{errors}</DeleteResult>")

    def _list(self, query: Mapping[str, str]) -> web.Response:
        prefix = query.get("prefix", "").encode("utf-8", "surrogateescape")
        after = query.get("start-after", "").encode("utf-8", "surrogateescape")
        if "continuation-token" in query:
            after = bytes.fromhex(query["continuation-token"])
        limit = min(int(query.get("max-keys", "1000")), 1000)
        begin = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after) if after else 0)
        shown: list[str] = []
        folders: list[bytes] = []
        last, more = b"", False
        for key in self.keys[begin:]:
            if not key.startswith(prefix):
                break
            head, slash, _ = key[len(prefix) :].partition(b"/")
            folder = prefix + head + slash if "delimiter" in query and slash else None
            if folder is not None and (folder in folders or after.startswith(folder)):
                last = key
                continue
            if len(shown) + len(folders) == limit:
                more = True
                break
            last = key
            if folder is not None:
                folders.append(folder)
                continue
            thing = self.things[key]
            shown.append(
                f"<Contents><Key>{_url(key)}</Key><LastModified>{_iso(thing.at)}</LastModified>"
                f"<ETag>&quot;{thing.etag}&quot;</ETag><Size>{len(thing.data)}</Size></Contents>"
            )
        token = f"<NextContinuationToken>{last.hex()}</NextContinuationToken>" * more
        common = "".join(f"<CommonPrefixes><Prefix>{_url(each)}</Prefix></CommonPrefixes>" for each in folders)
        text = "".join(shown)
        return web.Response(
            text=f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{text}{common}</ListBucketResult>"
        )

    def _upload(self, request: web.BaseRequest, key: bytes, query: Mapping[str, str], body: bytes) -> web.Response:
        if "uploads" in query:
            id = f"u{len(self.requests)}"
            self.uploads[id] = Pending(key, _meta(request.headers), self.clock.now())
            text = f"<UploadId>{id}</UploadId>"
            return web.Response(text=f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>")
        pending = self.uploads.get(query["uploadId"])
        if pending is None:
            return self._error(404, "NoSuchUpload")
        parts = [pending.parts[int(number)] for number in re.findall(rb"<PartNumber>(\d+)<", body)]
        if any(len(part) < 5 << 20 for part in parts[:-1]):
            return self._error(400, "EntityTooSmall")
        etag = f"{_md5(b''.join(hashlib.md5(part).digest() for part in parts))}-{len(parts)}"
        answer = self._put(request.headers, key, b"".join(parts), etag, pending.headers)
        if answer.status != 200:
            return answer
        del self.uploads[query["uploadId"]]
        text = f"<ETag>&quot;{etag}&quot;</ETag>"
        return web.Response(text=f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>")

    def _part(self, query: Mapping[str, str], body: bytes) -> web.Response:
        pending = self.uploads.get(query["uploadId"])
        if pending is None:
            return self._error(404, "NoSuchUpload")
        pending.parts[int(query["partNumber"])] = body
        return web.Response(headers={"ETag": f'"{_md5(body)}"'})

    def _abort(self, query: Mapping[str, str]) -> web.Response:
        gone = self.uploads.pop(query["uploadId"], None)
        return web.Response(status=204) if gone is not None else self._error(404, "NoSuchUpload")

    def _list_uploads(self, query: Mapping[str, str]) -> web.Response:
        prefix = query.get("prefix", "").encode("utf-8", "surrogateescape")
        marker = (query.get("key-marker", "").encode("utf-8", "surrogateescape"), query.get("upload-id-marker", ""))
        limit = int(query.get("max-uploads", "1000"))
        found = sorted((each.key, id) for id, each in self.uploads.items() if each.key.startswith(prefix))
        rest = [each for each in found if each > marker]
        shown = "".join(
            f"<Upload><Key>{_url(key)}</Key><UploadId>{id}</UploadId>"
            f"<Initiated>{_iso(self.uploads[id].at)}</Initiated></Upload>"
            for key, id in rest[:limit]
        )
        more, last = len(rest) > limit, rest[:limit][-1] if rest[:limit] else (b"", "")
        return web.Response(
            text=f"<ListMultipartUploadsResult><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated><NextKeyMarker>{_url(last[0])}</NextKeyMarker>"
            f"<NextUploadIdMarker>{last[1]}</NextUploadIdMarker>{shown}</ListMultipartUploadsResult>"
        )

    def _error(self, status: int, code: str) -> web.Response:
        return web.Response(status=status, text=f"<Error><Code>{code}</Code><Message>no</Message></Error>")


def _cut(request: web.BaseRequest) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def _md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _meta(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-amz-meta-")}


def _url(key: bytes) -> str:
    return quote_from_bytes(key, safe="/-_.~").replace("%20", "+")


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
