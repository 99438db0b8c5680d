"""Valid namespaces and keys, the object names of their parts, and ids of leases and transactions. Pure.

    <namespace>/meta/<key>.json                       the record: lease, version, current state object
    <namespace>/.lease-index/<hour>/<key>             index entry in the hour when the lease should expire
    <namespace>/state/<key>/.v/<token>-<id>           state objects; each is written once and never changed

No segment of a key begins with a dot, so user names cannot collide with internal ones.

Ids (`Xids`) have the format that lockd's clients expect: 20 characters of 0-9a-v, twelve bytes. Four bytes of seconds,
five random, three of a counter: they sort roughly by time, are unique, and cannot be predicted from others, since
knowing the id of a transaction is enough to decide it. In a marked id, two of the random bytes are a checksum of the
rest: it shows that a server generated the id.
"""

from __future__ import annotations

import re
import secrets
import threading
import zlib

from wrasse.clock import Clock
from wrasse.errors import UsageError

NAMESPACE_CHARS_MAX = 128
KEY_CHARS_MAX = 128
DEFAULT_NAMESPACE = "default"
_SEGMENT = re.compile(r"[a-z0-9._-]+")
_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]*(?:/[a-z0-9_-][a-z0-9._-]*)*")
_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [one + two for one in _ALPHABET for two in _ALPHABET]
_FORM = re.compile(r"[0-9a-v]{19}[0g]")  # 96 bits in 20 characters of five: the last four bits are unused
_COUNTS = 1 << 24


class BadName(UsageError):
    """An invalid namespace or key."""


def checked_namespace(text: str) -> str:
    """The stored form of a namespace: lower case, `default` if none is given."""
    name = text.strip().lower() or DEFAULT_NAMESPACE
    if len(name) > NAMESPACE_CHARS_MAX or not _SEGMENT.fullmatch(name):
        raise BadName(
            f"{text[:40]!r} is no namespace", do=f"use 1 to {NAMESPACE_CHARS_MAX} of a-z, 0-9, dot, dash and underscore"
        )
    if name.startswith("."):
        raise BadName(f"the namespace {name!r} is reserved", do="use a name that begins with a letter or a digit")
    return name


def checked_key(text: str, namespace: str = "") -> str:
    """The stored form of a key: lower case, without a leading slash or a leading namespace."""
    key = text.lower().removeprefix("/")
    if namespace:
        key = key.removeprefix(f"{namespace}/")
    if len(key) <= KEY_CHARS_MAX and _KEY.fullmatch(key):
        return key
    segments = key.split("/")
    if "" in segments:
        raise BadName(f"the key {text[:40]!r} has an empty segment", do="use names with one slash between them")
    if any(each.startswith(".") for each in segments):
        raise BadName(f"a segment of the key {text[:40]!r} begins with a dot", do="begin it with something else")
    raise BadName(
        f"{text[:40]!r} is no key",
        do=f"use at most {KEY_CHARS_MAX} of a-z, 0-9, dot, dash and underscore, in segments with a slash between",
    )


def spoken(namespace: str, key: str) -> str:
    """The form of a stored key in requests: prefixed with its namespace, which the server removes once. Without the
    prefix, a key that begins with its own namespace would lose that part."""
    return f"{namespace or DEFAULT_NAMESPACE}/{key}"


def state_folder(namespace: str, key: str) -> str:
    """The common prefix of a key's state objects."""
    return f"{namespace}/state/{key}/.v/"


def state_name(namespace: str, key: str, token: int, id: str) -> str:
    """The name of one state object. The token comes first, so that a listing sorts old before new."""
    return f"{state_folder(namespace, key)}{token:020d}-{id}"


def key_of_state(namespace: str, name: str) -> str | None:
    """The key that a state object belongs to; None if the name is not a valid one."""
    key, middle, _ = name.removeprefix(f"{namespace}/state/").rpartition("/.v/")
    return key if middle and key and token_of(name) is not None else None


def token_of(name: str) -> int | None:
    """The token under which a state object was written; None if the name is not a valid one."""
    number = name.rpartition("/")[2].partition("-")[0]
    return int(number) if len(number) == 20 and number.isdigit() else None


class Xids:
    """Makes ids."""

    __slots__ = ("_clock", "_count", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = secrets.randbelow(_COUNTS)
        self._lock = threading.Lock()

    def new(self) -> str:
        """The next id."""
        return _text(self._number())

    def unmarked(self) -> str:
        """The next id without a mark: for transactions that are explicit from the start."""
        while is_marked(id := self.new()):
            pass
        return id

    def marked(self) -> str:
        """The next id, with a mark."""
        number = self._number() & ~(0xFFFF << 24)
        return _text(number | _mark(number) << 24)

    def _number(self) -> int:
        with self._lock:
            self._count = (self._count + 1) % _COUNTS
            count = self._count
        return (int(self._clock.now().timestamp()) & 0xFFFFFFFF) << 64 | secrets.randbits(40) << 24 | count


def is_xid(text: str) -> bool:
    """Whether the text has the format of such an id."""
    return bool(_FORM.fullmatch(text))


def checked_transaction(text: str) -> str:
    """A transaction id from a caller."""
    if not is_xid(text):
        raise UsageError(f"{text[:40]!r} is no transaction", do="use 20 characters of 0-9 and a-v, as an acquire gives")
    return text


def is_marked(text: str) -> bool:
    """Whether an id has the mark; an id made elsewhere has it by chance once in 65,536."""
    number = 0
    for letter in text if is_xid(text) else "":
        number = number << 5 | _ALPHABET.index(letter)
    number >>= 4
    return bool(number) and number >> 24 & 0xFFFF == _mark(number & ~(0xFFFF << 24))


def _mark(number: int) -> int:
    return zlib.crc32(b"wrasse" + number.to_bytes(12)) & 0xFFFF


def _text(number: int) -> str:
    number <<= 4
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(90, -1, -10)])
