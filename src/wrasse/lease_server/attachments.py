"""API calls for attachments: bytes are streamed in both directions, never collected in memory."""

from __future__ import annotations

import logging
import re
from contextlib import aclosing

from aiohttp import web

from wrasse.errors import WrasseError
from wrasse.lease_server import request_parsing
from wrasse.lease_server.responses import WireError, Wrap, answered
from wrasse.lease_server.wire import (
    AttachAnswer,
    AttachmentInfo,
    AttachmentList,
    AttachmentRemoved,
    AttachmentsRemoved,
)
from wrasse.leases.attachments import BYTES_MAX, CONTENT_TYPE, AttachmentTooLarge, Fetched, Sent
from wrasse.leases.lease import Attachment, Lease, public
from wrasse.leases.leases import Leases

_TRUE = ("1", "true")
_log = logging.getLogger("wrasse.leases")


class AttachmentApi:
    """The calls, over one `Leases`."""

    def __init__(self, leases: Leases) -> None:
        self._attachments = leases.attachments

    def routes(self, call: Wrap) -> list[web.RouteDef]:
        """The routes; `call` maps errors to answers."""
        return [
            web.post("/v1/attachments", call(self._attach)),
            web.get("/v1/attachments", call(self._list)),
            web.delete("/v1/attachments", call(self._remove_all)),
            web.get("/v1/attachment", call(self._fetch), allow_head=False),
            web.delete("/v1/attachment", call(self._remove)),
        ]

    async def _attach(self, request: web.Request, name: str) -> web.Response:
        lease = request_parsing.held(request)
        request_parsing.plain(request)
        sent = _sent_attachment(request)
        if request.content_length is not None and request.content_length > sent.bytes_max:
            raise AttachmentTooLarge(f"the attachment has {request.content_length} bytes", do="allow more")
        attached = await self._attachments.attach(lease, sent, request_parsing.pieces(request))
        info = _info(attached.attachment)
        answer = AttachAnswer(info, attached.version, noop=not attached.staged)
        headers = {"X-Attachment-ID": info.id, "X-Key-Version": str(attached.version)}
        return answered(answer, headers)

    async def _list(self, request: web.Request, name: str) -> web.Response:
        whose = _whose(request)
        found = await self._attachments.list(whose)
        infos = tuple(_info(each) for each in found) or None
        return answered(AttachmentList(whose.namespace, request.query["key"], infos))

    async def _fetch(self, request: web.Request, name: str) -> web.StreamResponse:
        whose = _whose(request)
        wanted, id = _name_and_id(request)
        fetched = await self._attachments.fetch(whose, name=wanted, id=id)
        return await _stream(request, fetched)

    async def _remove(self, request: web.Request, name: str) -> web.Response:
        request_parsing.named(request)
        wanted, id = _name_and_id(request)
        count, version = await self._attachments.remove(request_parsing.held(request), name=wanted, id=id)
        return answered(AttachmentRemoved(bool(count), version if count else 0))

    async def _remove_all(self, request: web.Request, name: str) -> web.Response:
        count, version = await self._attachments.remove(request_parsing.held(request), every=True)
        return answered(AttachmentsRemoved(count, version if count else 0))


async def _stream(request: web.Request, fetched: Fetched) -> web.StreamResponse:
    """Sends the bytes. An error after the first byte can only be signalled by closing the connection."""
    attachment = fetched.attachment
    response = web.StreamResponse(headers=_headers(attachment))
    response.content_length = attachment.object.size
    async with aclosing(fetched.chunks) as chunks:
        await response.prepare(request)
        try:
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except WrasseError as error:
            _log.warning("the transfer of an attachment failed: %s", type(error).__name__)
            if request.transport is not None:
                request.transport.abort()
    return response


def _headers(attachment: Attachment) -> dict[str, str]:
    info = _info(attachment)
    return {
        "Content-Type": info.content_type,
        "Content-Disposition": "attachment",  # so that a browser does not display it
        "X-Content-Type-Options": "nosniff",
        "X-Attachment-ID": info.id,
        "X-Attachment-Name": info.name,
        "X-Attachment-Size": str(info.size),
        "X-Attachment-SHA256": info.plaintext_sha256,
        "X-Attachment-Created-At": str(info.created_at_unix),
        "X-Attachment-Updated-At": str(info.updated_at_unix),
    }


def _sent_attachment(request: web.Request) -> Sent:
    name = request.query.get("name", "").strip()
    if not name:
        raise WireError("missing_attachment", "the parameter name is missing")
    most = request.query.get("max_bytes", "")
    if most and not re.fullmatch(r"[0-9]{1,18}", most):
        raise WireError("invalid_max_bytes", "max_bytes is not a whole number")
    sha256, size = request_parsing.expected(request)
    return Sent(
        name,
        request.query.get("content_type", "").strip() or request.headers.get("Content-Type", "") or CONTENT_TYPE,
        min(int(most), BYTES_MAX) if most and int(most) else BYTES_MAX,
        sha256,
        request.content_length if size is None else size,
        request.query.get("prevent_overwrite", "").lower() in _TRUE,
    )


def _whose(request: web.Request) -> Lease:
    return (
        public(*request_parsing.named(request))
        if request.query.get("public") in _TRUE
        else request_parsing.held(request)
    )


def _name_and_id(request: web.Request) -> tuple[str, str]:
    name, id = request.query.get("name", "").strip(), request.query.get("id", "").strip()
    if not name and not id:
        raise WireError("missing_attachment", "the parameter name or id is missing")
    return name, id


def _info(attachment: Attachment) -> AttachmentInfo:
    return AttachmentInfo(
        attachment.id,
        attachment.name,
        attachment.object.size,
        attachment.sha256,
        attachment.content_type,
        int(attachment.created_at.timestamp()),
        int(attachment.updated_at.timestamp()),
    )
