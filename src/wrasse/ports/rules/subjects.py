"""Subjects: the names of streams, and the patterns that match them. The same rules for callers and every backend.

Promise. A subject is one or more tokens with dots between: 1 to 255 bytes of printable characters, without spaces,
`:`, `*` and `>`. A pattern may have `*` for exactly one token, and `>` as its last token for one or more. Dots become
`:` in a Redis key and come back as they were, which is why a subject has no colon.

Costs. None: everything here is pure, and the results are cached.
"""

from __future__ import annotations

from functools import lru_cache

from wrasse.errors import UsageError

SUBJECT_BYTES_MAX = 255
_REMEMBERED = 4_096
_ANY = "*"
_REST = ">"


@lru_cache(_REMEMBERED)
def check_subject(subject: str) -> None:
    """Refuses what is not a subject, with the reason."""
    _refuse(subject, "subject", ":*>")


@lru_cache(_REMEMBERED)
def is_subject(name: str) -> bool:
    """Whether a name is valid for a stream; other programs choose names of their own."""
    try:
        check_subject(name)
    except UsageError:
        return False
    return True


@lru_cache(_REMEMBERED)
def check_pattern(pattern: str) -> None:
    """Refuses what is not a pattern, with the reason. Every subject is one."""
    _refuse(pattern, "pattern", ":")
    tokens = pattern.split(".")
    if any(_REST in token and (token != _REST or place < len(tokens) - 1) for place, token in enumerate(tokens)):
        raise UsageError(f"the pattern {pattern!r} has a > that is not its last token", do="write it as in orders.>")
    if any(_ANY in token and token != _ANY for token in tokens):
        raise UsageError(f"the pattern {pattern!r} has a * inside a token", do="write it as in orders.*.paid")


def is_wild(pattern: str) -> bool:
    """Whether a pattern may match more than the subject it spells."""
    return _ANY in pattern or _REST in pattern


def fixed_part(pattern: str) -> str:
    """The prefix of every subject that matches: where an index is read from."""
    tokens = pattern.split(".")
    wild = next((place for place, token in enumerate(tokens) if token in (_ANY, _REST)), len(tokens))
    return pattern if wild == len(tokens) else "".join(f"{token}." for token in tokens[:wild])


@lru_cache(_REMEMBERED)
def matches(pattern: str, subject: str) -> bool:
    """Whether the pattern matches the subject, as in NATS."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == _REST:
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(token in (_ANY, given) for token, given in zip(wanted, tokens, strict=False))


def redis_key(subject: str) -> str:
    """The key that a stream has in Redis."""
    return subject.replace(".", ":")


def subject_of(key: str) -> str:
    """The subject whose stream has this key in Redis."""
    return key.replace(":", ".")


def _refuse(text: str, what: str, banned: str) -> None:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    size = len(text.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= SUBJECT_BYTES_MAX:
        raise UsageError(f"a {what} of {size} bytes: {shown!r}", do=f"use 1 to {SUBJECT_BYTES_MAX} bytes")
    found = next((c for c in text if c in banned or c.isspace() or not c.isprintable()), None)
    if found is not None:
        raise UsageError(f"the {what} {shown!r} has {found!r} in it", do="use letters, digits, - and _, dots between")
    if "" in text.split("."):
        raise UsageError(f"the {what} {shown!r} has an empty token", do="write one dot between two tokens")
