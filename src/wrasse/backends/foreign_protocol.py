"""Guesses the protocol of a server that does not speak ours, by the first bytes it sent. Pure."""

from __future__ import annotations

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # alert, handshake
_KINDS = (
    (b"HTTP/", "an HTTP server answers there"),
    (b"INFO {", "a NATS server answers there"),
    (b"SSH-", "an SSH server answers there"),
    (b"-ERR Protocol error", "a Redis answers there"),
    (b"-ERR unknown command", "a Redis answers there"),
)


def named(first: bytes) -> str:
    """The protocol that seems to answer, or an empty text if the bytes do not tell."""
    if first.startswith(_TLS_RECORDS):
        return "it answers in TLS"
    return next((kind for begins, kind in _KINDS if first.startswith(begins)), "")


def printable(text: str, longest: int = 512) -> str:
    """A server's message without control characters, cut to a length."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:longest])
