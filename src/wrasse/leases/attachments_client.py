"""Attachments over HTTP: the methods of `Attachments`, called on a lease server.

Bytes are streamed both ways. An upload is retried only if its source can be read from the beginning again; otherwise
the first failure is final, and nothing was staged. A download is compared with its checksum before the last chunk is
returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from wrasse.errors import StoreUnavailable, WrasseError
from wrasse.leases.attachments import Attached, Fetched, Sent, check_sent, checked_chunks, pieces
from wrasse.leases.lease import Attachment, Lease, StateObject
from wrasse.leases.names import DEFAULT_NAMESPACE, spoken
from wrasse.ports.objects import CHUNK_BYTES, Data

SENDS_MAX = 3
ANSWER_BYTES_MAX = 16 << 20
"""Maximum bytes of a JSON answer; attachments are streamed and have no such limit."""
READ_TIMEOUT = 90.0
"""Read timeout: seconds without a byte from the lease server."""
TRANSFER_MAX = 60.0
"""Seconds that an upload or download may wait, plus what TRANSFER_RATE_MIN allows for the bytes already moved."""
TRANSFER_RATE_MIN = 32 << 10
"""Bytes per second: the slowest transfer that is not aborted after TRANSFER_MAX."""
_NUMBERS = ("Size", "Created-At", "Updated-At")
T = TypeVar("T")
_TIMEOUT = ClientTimeout(total=None, sock_connect=10.0, sock_read=READ_TIMEOUT)


class _AttachmentInfo(msgspec.Struct):
    id: str
    name: str
    size: int
    plaintext_sha256: str
    content_type: str
    created_at_unix: int = 0
    updated_at_unix: int = 0


class _Attached(msgspec.Struct):
    attachment: _AttachmentInfo
    version: int = 0
    noop: bool = False


class _AttachmentListing(msgspec.Struct):
    attachments: tuple[_AttachmentInfo, ...] | None = None


class _Removed(msgspec.Struct):
    deleted: bool | int = False
    version: int = 0


class ServerCalls(Protocol):
    """How a client calls its server: with retries while it is unavailable, and errors mapped to ours."""

    async def ask(self, method: str, path: str, params: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        """The body of a successful answer."""
        ...

    def refuse(self, status: int, body: bytes) -> None:
        """Raises the error that this answer stands for, unless it is successful."""
        ...


class RemoteAttachments:
    """The attachments of a server's keys; see `Attachments`."""

    def __init__(self, session: ClientSession, asks: ServerCalls) -> None:
        self._session, self._calls = session, asks

    async def attach(self, lease: Lease, sent: Sent, data: Data) -> Attached:
        """Stages an attachment."""
        check_sent(sent)
        params = {**_key_params(lease), "name": sent.name, "content_type": sent.content_type}
        params |= {"max_bytes": str(sent.bytes_max), "prevent_overwrite": "1" if sent.keep else "0"}
        headers = {**lease_headers(lease), "Content-Type": "application/octet-stream"}
        headers |= {"X-Expected-SHA256": sent.sha256} if sent.sha256 else {}
        headers |= {"X-Expected-Bytes": str(sent.size)} if sent.size is not None else {}
        replayable = isinstance(data, bytes) or aiter(data) is not data
        for tried in range(1, SENDS_MAX + 1):
            try:
                status, body = await self._send(params, headers, data)
                if status < 500:
                    self._calls.refuse(status, body)
                    answer = decoded(body, _Attached)
                    return Attached(_attachment(answer.attachment), answer.version, staged=not answer.noop)
                trouble = f"the lease server answered {status}"
            except (ClientError, TimeoutError, OSError) as error:
                trouble = f"the lease server does not answer: {type(error).__name__}"
            if not replayable:
                break
            await asyncio.sleep(0.2 * tried)
        raise StoreUnavailable(trouble, do="check that the server runs and can be reached; nothing was staged")

    async def list(self, whose: Lease) -> Sequence[Attachment]:
        """All attachments, in the order of their names."""
        body = await self._calls.ask("GET", "/v1/attachments", _key_params(whose), lease_headers(whose))
        return [_attachment(each) for each in decoded(body, _AttachmentListing).attachments or ()]

    async def fetch(self, whose: Lease, *, name: str = "", id: str = "") -> Fetched:
        """One attachment with its bytes, by its name or its id."""
        wanted = {"name": name} if name else {"id": id}
        chunks = self._chunks({**_key_params(whose), **wanted}, lease_headers(whose))
        head = await anext(chunks)
        assert isinstance(head, Attachment), "the metadata comes first"
        return Fetched(head, checked_chunks(head, _bytes(chunks)))

    async def remove(self, lease: Lease, *, name: str = "", id: str = "", every: bool = False) -> tuple[int, int]:
        """Stages the removal of one attachment, or of all."""
        wanted = {"name": name} if name else {"id": id}
        path, more = ("/v1/attachments", {}) if every else ("/v1/attachment", wanted)
        body = await self._calls.ask("DELETE", path, {**_key_params(lease), **more}, lease_headers(lease))
        answer = decoded(body, _Removed)
        return int(answer.deleted), answer.version

    async def _send(self, params: Mapping[str, str], headers: Mapping[str, str], data: Data) -> tuple[int, bytes]:
        async with (
            asyncio.timeout(TRANSFER_MAX) as limit,
            self._session.post(
                "/v1/attachments",
                params=params,
                headers=headers,
                data=_upload(data, limit),
                timeout=_TIMEOUT,
                allow_redirects=False,
            ) as got,
        ):
            return got.status, await read_whole(got, ANSWER_BYTES_MAX)

    async def _chunks(
        self, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Attachment | bytes]:
        """The attachment's metadata, then its bytes."""
        try:
            async with self._session.get(
                "/v1/attachment", params=params, headers=headers, timeout=_TIMEOUT, allow_redirects=False
            ) as got:
                if got.status != 200:
                    self._calls.refuse(got.status, await read_whole(got, ANSWER_BYTES_MAX))
                head = _head(got)
                yield head
                left = head.object.size
                async for chunk in _download(got):
                    left -= len(chunk)
                    if left < 0:
                        raise no_lease_api(got.status)
                    yield chunk
        except (ClientError, TimeoutError, OSError) as error:
            raise StoreUnavailable(
                f"the transfer of the attachment failed: {type(error).__name__}", do="fetch it again"
            ) from error


async def _upload(data: Data, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
    """The bytes to send. The timeout counts only while the server accepts bytes, not while their source is read."""
    now, left = asyncio.get_running_loop().time, TRANSFER_MAX
    with suppress(RuntimeError):  # the server answered early: the timeout has ended
        limit.reschedule(None)
        async for piece in pieces(data):
            began = now()
            limit.reschedule(began + left)
            yield piece
            left += len(piece) / TRANSFER_RATE_MIN - (now() - began)
            limit.reschedule(None)
        limit.reschedule(now() + left)


async def _download(got: ClientResponse) -> AsyncIterator[bytes]:
    """The bytes of an answer. The timeout counts only while bytes are awaited, not while the caller uses them."""
    now, left = asyncio.get_running_loop().time, TRANSFER_MAX
    while True:
        began = now()
        async with asyncio.timeout(left):
            chunk = await got.content.read(CHUNK_BYTES)
        if not chunk:
            return
        left += len(chunk) / TRANSFER_RATE_MIN - (now() - began)
        yield chunk


async def read_whole(got: ClientResponse, limit: int) -> bytes:
    """The body of an answer requested without compression; WrasseError beyond `limit` bytes."""
    pieces: list[bytes] = []
    async for piece in got.content.iter_any():
        pieces.append(piece)
        limit -= len(piece)
        if limit < 0:
            got.close()
            raise no_lease_api(got.status)
    if got.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise no_lease_api(got.status)
    return b"".join(pieces)


def no_lease_api(status: int) -> WrasseError:
    """The server that answered does not speak the lease API."""
    return WrasseError(f"the server answered {status} with something that is not the lease API", do="check the address")


def decoded(body: bytes, type: type[T]) -> T:
    """An answer decoded into one of our structs."""
    try:
        return msgspec.json.decode(body, type=type)
    except (ValueError, RecursionError):  # a DecodeError is a ValueError
        raise no_lease_api(200) from None


async def _bytes(chunks: AsyncGenerator[Attachment | bytes]) -> AsyncIterator[bytes]:
    async with aclosing(chunks):
        async for chunk in chunks:
            assert isinstance(chunk, bytes), "bytes follow the metadata"
            yield chunk


def _head(got: ClientResponse) -> Attachment:
    headers = got.headers
    try:
        size, created, updated = (int(headers.get(f"X-Attachment-{name}", "0")) for name in _NUMBERS)
    except ValueError:
        raise no_lease_api(got.status) from None
    id, name, sha256 = (headers.get(f"X-Attachment-{name}", "") for name in ("ID", "Name", "SHA256"))
    return _attachment(_AttachmentInfo(id, name, size, sha256, got.content_type, created, updated))


def _attachment(info: _AttachmentInfo) -> Attachment:
    try:
        created, updated = (datetime.fromtimestamp(each, UTC) for each in (info.created_at_unix, info.updated_at_unix))
    except (ValueError, OverflowError, OSError):
        raise no_lease_api(200) from None
    state = StateObject("", "", "", info.size)
    return Attachment(info.id, info.name, state, info.plaintext_sha256, info.content_type, created, updated)


def _key_params(whose: Lease) -> dict[str, str]:
    where = {"key": spoken(whose.namespace, whose.key), "namespace": whose.namespace or DEFAULT_NAMESPACE}
    return where if whose.id else {**where, "public": "1"}


def lease_headers(whose: Lease) -> dict[str, str]:
    """The headers by which a holder identifies its lease."""
    if not whose.id:
        return {}
    return {"X-Lease-ID": whose.id, "X-Fencing-Token": str(whose.token), "X-Txn-ID": whose.transaction}
