"""The parts of a multipart body: read back as written, and any bytes are parts or refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from wrasse.lease_server.queues import PART_HEAD_BYTES_MAX, PARTS_MAX, NoParts, Part, parts_of

RELATED = "multipart/related; boundary=B"
PIECES = st.sampled_from(
    [b"--B", b"--", b"B", b"\r\n", b"\r", b"\n", b" ", b"\r\n\r\n", b"Content-Disposition: form-data; name=", b'"a"',
     b"name*=x'y'%ff", b"Content-Type: \xff", b"\x00", b"\xff\xfe", b":", b";"]
)  # fmt: skip


@given(st.lists(st.binary().filter(lambda data: b"--B" not in data), min_size=1, max_size=PARTS_MAX), st.booleans())
def test_parts_are_read_as_they_were_written(datas: list[bytes], preamble: bool) -> None:
    body = b"for eyes\r\n" if preamble else b""
    for number, data in enumerate(datas):
        body += b'--B \r\nContent-Disposition: form-data; name="n%d"\r\nContent-Type: a/b\r\n\r\n' % number
        body += data + b"\r\n"
    expected = [Part(f"n{number}", "a/b", data) for number, data in enumerate(datas)]
    assert parts_of('multipart/form-data; boundary="B"', body + b"--B--") == expected


@given(st.lists(PIECES | st.binary(max_size=3)))
def test_any_bytes_are_parts_or_refused(pieces: list[bytes]) -> None:
    for body in (b"".join(pieces), b"--B\r\n" + b"".join(pieces) + b"\r\n--B--"):
        with suppress(NoParts):
            assert all(isinstance(each.name + each.kind, str) for each in parts_of(RELATED, body))


@given(st.text(st.characters(exclude_characters="\r\n")))
def test_any_content_type_names_a_boundary_or_none(text: str) -> None:
    with pytest.raises(NoParts):
        parts_of(f"multipart/related; {text}", b"")


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"--B--", []),
        (b"--B\r\n--B--", [Part("", "", b"")]),
        (b"--B\r\n\r\n--B--", [Part("", "", b"")]),
        (b"--B\r\n\r\nx\r\n\r\ny\r\n--B--", [Part("", "", b"x\r\n\r\ny")]),
        (b"--B\r\nContent-Type: a\r\n--B--", [Part("", "a", b"")]),
        (b"--B\r\n\r\nx\r\n" * 1_000 + b"--B--", [Part("", "", b"x")] * PARTS_MAX),
    ],
)
def test_parts_without_much_in_them(body: bytes, parts: list[Part]) -> None:
    assert parts_of(RELATED, body) == parts


@pytest.mark.parametrize(
    "body", [b"", b"--B", b"--B\r\n\r\nx", b"--B\r\n\r\nx\r\n--A--", b"--B x\r\n\r\n\r\n--B--",
             b"--B\r\nX: " + b"y" * PART_HEAD_BYTES_MAX + b"\r\n\r\n\r\n--B--"],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_a_body_without_parts_is_refused(body: bytes) -> None:
    with pytest.raises(NoParts):
        parts_of(RELATED, body)
