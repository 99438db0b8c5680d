"""The calls for attachments, as the OpenAPI document tells them."""

from __future__ import annotations

from wrasse.app.leases_http.attachments import AttachAnswer, AttachmentList, AttachmentRemoved, AttachmentsRemoved
from wrasse.app.leases_http.openapi_call import HELD, NUMBER, WHERE, Call, header, query
from wrasse.app.settings_leases import Role

_NAME = query("name", {"type": "string", "maxLength": 255, "example": "scan.pdf"})
_ID = query("id", {"type": "string"})
_READ = (
    *WHERE,
    query("public", {"type": "string", "enum": ["0", "1", "true", "false"]}),
    header("X-Lease-ID", required=False),
    header("X-Fencing-Token", required=False, schema=NUMBER),
    header("X-Txn-ID", required=False),
)

ATTACHMENT_CALLS = (
    Call(
        "post", "/v1/attachments", "stage an attachment: the body is its bytes, in pieces", AttachAnswer,
        sends="application/octet-stream",
        parameters=(
            *WHERE, *HELD,
            query("name", {"type": "string", "minLength": 1, "maxLength": 255, "example": "scan.pdf"}, required=True),
            query("content_type", {"type": "string", "maxLength": 255}),
            query("max_bytes", NUMBER),
            query("prevent_overwrite", {"type": "string", "enum": ["0", "1", "true", "false"]}),
            header("X-Expected-SHA256", required=False), header("X-Expected-Bytes", required=False, schema=NUMBER),
        ),
        errors=(400, 403, 408, 409, 413, 503),
    ),
    Call(
        "get", "/v1/attachments", "attachments: with the lease's headers as staged, with public=1 as committed",
        AttachmentList, parameters=_READ, errors=(400, 403, 409, 503), role=Role.READER,
    ),
    Call(
        "get", "/v1/attachment", "the bytes of an attachment, by name or id", None, gives="*/*",
        parameters=(*_READ, _NAME, _ID), errors=(400, 403, 404, 409, 503), role=Role.READER,
    ),
    Call(
        "delete", "/v1/attachment", "stage the removal of an attachment", AttachmentRemoved,
        parameters=(*WHERE, *HELD, _NAME, _ID), errors=(400, 403, 409, 503),
    ),
    Call(
        "delete", "/v1/attachments", "stage the removal of every attachment", AttachmentsRemoved,
        parameters=(*WHERE, *HELD), errors=(400, 403, 409, 503),
    ),
)  # fmt: skip
