"""The parts of a multipart body. Pure, over a complete body of bounded size.

Each part is found by one search, and there are at most PARTS_MAX parts: lines before or inside a part add no cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser

PARTS_MAX = 8
"""Maximum number of parts of a multipart body that are read."""
PART_HEAD_BYTES_MAX = 8 << 10
"""Maximum bytes of the headers of one part of a multipart body."""


class NoParts(ValueError):
    """The body is not valid multipart; the message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its name or an empty text, its content type, and its bytes."""

    name: str
    kind: str
    data: bytes


def parts_of(content_type: str, body: bytes) -> list[Part]:
    """The first parts of a body with this Content-Type. Raises NoParts."""
    mark = b"--" + _boundary(content_type)
    at = 0 if body.startswith(mark) else _found(body, b"\r\n" + mark, 0) + 2
    parts: list[Part] = []
    while len(parts) < PARTS_MAX:
        at += len(mark)
        if body.startswith(b"--", at):
            break
        begin = _found(body, b"\r\n", at) + 2
        if body[at:begin].strip():
            raise NoParts("a boundary has more behind it")
        end = _found(body, b"\r\n" + mark, begin - 2)  # the line of one boundary may end where that of the next begins
        parts.append(_part(body, begin, max(begin, end)))
        at = end + 2
    return parts


def _boundary(content_type: str) -> bytes:
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary()
    if not boundary:
        raise NoParts("the content type names no boundary")
    return boundary.encode("utf-8", "surrogateescape")


def _found(body: bytes, what: bytes, start: int) -> int:
    at = body.find(what, start)
    if at < 0:
        raise NoParts("the last part does not end")
    return at


def _part(body: bytes, begin: int, end: int) -> Part:
    if body.startswith(b"\r\n", begin):
        return Part("", "", body[begin + 2 : end])
    blank = body.find(b"\r\n\r\n", begin, min(end, begin + PART_HEAD_BYTES_MAX))
    if blank < 0 and end - begin > PART_HEAD_BYTES_MAX:
        raise NoParts("the headers of a part are too long")
    head = BytesHeaderParser().parsebytes(body[begin : end if blank < 0 else blank + 2])
    name = head.get_param("name", "", "content-disposition")
    said = name if isinstance(name, str) else name[2]
    return Part(said, str(head.get("Content-Type", "")), b"" if blank < 0 else body[blank + 4 : end])
