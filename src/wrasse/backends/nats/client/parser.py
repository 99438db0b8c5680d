"""Parses messages of consumers in bulk: one regular expression cuts them, and their parts stay raw bytes.

The expression only proposes. A frame counts if the sizes on its line are those of the header and the body that were
found. Where they are not, as with a body that has a line break, the frames end, and the transport reads the next one by
its sizes.

A frame is a plain tuple, as the expression returns it: an object per frame would take longer than parsing it.
"""

from __future__ import annotations

import re
from collections.abc import Container

# The start of the line; the number of the subscription; the sequence; the rest of the reply subject (number at the
# consumer, nanoseconds, how many are pending); sizes; header; the milliseconds in it if wrasse wrote it; body.
Frame = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]

# The fastest pattern: everything but a few bytes. No subject goes beyond its line.
_FRAME = re.compile(
    rb"(H?MSG [^ \r]++ ([^ \r]++) \$JS\.ACK\.[^. \r]++\.[^. \r]++\.[^. \r]++\.)"
    rb"(\d{1,20}+)\.(\d{1,20}+\.\d{1,20}+\.\d{1,20}+) ([^\r]++)\r\n"
    rb"(NATS/1\.0\r\n(?:Wrasse:([1-9]\d{0,14}+) \d++ \d++ [^\r]*+\r\n)?+(?:[^\r]++\r\n)*+\r\n)?+([^\r]*+)\r\n"
    rb"|(?s:.+)"  # anything that is no such frame is the end: the rest, whole
)
_DIGITS_MAX = 20
_BETWEEN = len(b". \r\n\r\n")


def frames_in(data: bytes, at: int, known: Container[bytes]) -> tuple[list[Frame], int]:
    """The complete frames of these subscriptions in the data from `at` on, and where they end."""
    found: list[Frame] = _FRAME.findall(data, at)
    for place, (begin, number, seq, rest, sizes, header, _, body) in enumerate(found):
        size = len(header)
        total = size + len(body)
        if sizes != (b"%d %d" % (size, total) if size else b"%d" % total) or number not in known:
            del found[place:]
            break
        at += len(begin) + len(seq) + len(rest) + len(sizes) + total + _BETWEEN
    return found, at


def frame_of(reply: bytes, header: bytes, body: bytes) -> Frame:
    """A message that was read by its sizes. Its reply subject names stream, consumer and a count, and before them, if
    it came from a domain, that and an account."""
    words = reply.split(b".")
    seq, *rest = numbers = words[5:9] if len(words) == 9 else words[7:11]
    if len(numbers) != 4 or not b"".join(numbers).isdigit() or max(map(len, numbers)) > _DIGITS_MAX:
        raise ValueError("a reply subject that is not a consumer's")
    return b"", b"", seq, b".".join(rest), b"", header, b"", body


def place_of(frame: Frame) -> tuple[int, int]:
    """Its number at the consumer, which has no gaps, and how many are pending there after it."""
    number, _, pending = frame[3].split(b".")
    return int(number), int(pending)
