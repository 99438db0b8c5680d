"""The path of each key: keys to paths and back, total and without collisions.

A key keeps its natural path: `archive/audit/x.jsonl.gz` is that file. What a file system cannot name is escaped. A `%`
in a name of ours is followed by two capital hex digits, for a byte of the key, or by one of our letters, which no key
can produce:

    %z   an empty segment: `a//b` is a/%z/b, `a/` is a/%z
    %l   at the end of a name: the name was cut here and goes on in the next one
    %o   the object whose name is also a directory: `a` beside `a/b` is a/%o
    %m   the metadata of an object, beside it; its name ends in `.meta`
    %w   what is not data at all: temporary files, locks; only at the root

Only a name that `path_of` can produce is an object; a listing skips every other name.
"""

from __future__ import annotations

import re
from functools import lru_cache

NAME_MAX = 200
OBJECT = b"%o"
SIDECAR = b"%m"
WORKPLACE = b"%w"
RECORD_SUFFIX = b".json"
_EMPTY = b"%z"
_CUT = b"%l"

_UNNAMEABLE = re.compile(rb"[\x00-\x1f\x7f%]")
_UNSTORABLE = re.compile(rb"[\x00-\x1f\x7f]")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")
_STORED_ESCAPE = re.compile(rb"%([01][0-9A-F]|7F|2E)")  # not %25 and %2F, which belong to the stored name itself
_DOTS = (b".", b"..")
_SEGMENT = rb"(?!\.\.?(?:/|\Z))[^\x00-\x1f\x7f%%/]{1,%d}" % NAME_MAX
_NATURAL = re.compile(rb"%s(?:/%s)*" % (_SEGMENT, _SEGMENT))


def path_of(key: bytes) -> bytes:
    """The path of the object with this key, relative to the root."""
    if _NATURAL.fullmatch(key):
        return key  # nothing to escape or cut, as with most keys
    return b"/".join(part for segment in key.split(b"/") for part in _cut(_escaped(segment), NAME_MAX))


def prefix_path(prefix: bytes) -> tuple[bytes, bytes]:
    """The deepest directory that holds every key with this prefix, and the part of the prefix it stands for."""
    above, slash, _ = prefix.rpartition(b"/")
    return (path_of(above), above + slash) if slash else (b"", b"")


def segment_of(name: bytes) -> tuple[bytes, bool] | None:
    """The bytes of a key that a name stands for, and whether the name was cut; None if it stands for none."""
    if b"%" not in name:
        return name, False
    if name == _EMPTY:
        return b"", False
    cut = name.endswith(_CUT)
    raw = _ESCAPE.sub(_byte, name[: -len(_CUT)] if cut else name)
    return None if b"/" in raw or _reserved(name) else (raw, cut)


@lru_cache(maxsize=4_096)
def record_path(stored: bytes) -> bytes:
    """The path of a record below its collection's directory, without its suffix."""
    name = stored.replace(b".", b"%2E") if stored in _DOTS else _UNSTORABLE.sub(_percent, stored)
    return b"/".join(_cut(name, NAME_MAX - len(RECORD_SUFFIX)))


def stored_part(name: bytes) -> tuple[bytes, bool] | None:
    """The bytes of a stored name that a file name stands for, and whether the name was cut; None if for none."""
    cut = name.endswith(_CUT)
    return None if _reserved(name) else (_STORED_ESCAPE.sub(_byte, name[: -len(_CUT)] if cut else name), cut)


def folder_path(prefix: str) -> bytes:
    """The directory of a collection's prefix, by the same rules as keys."""
    return path_of(prefix.strip("/").encode())


def _escaped(segment: bytes) -> bytes:
    if segment in _DOTS:
        return segment.replace(b".", b"%2E")
    return _UNNAMEABLE.sub(_percent, segment) or _EMPTY


def _cut(name: bytes, size: int) -> list[bytes]:
    """Pieces of at most `size` bytes, each but the last marked as cut."""
    pieces = []
    while len(name) > size:
        end = _boundary(name, size - len(_CUT))
        pieces.append(name[:end] + _CUT)
        name = name[end:]
    return [*pieces, name]


def _boundary(name: bytes, end: int) -> int:
    """The last position up to `end` that splits neither an escape nor, where it is UTF-8, a character."""
    for back in (1, 2):
        if name[end - back : end - back + 1] == b"%":
            return end - back
    for _ in range(3):
        if name[end] & 0xC0 != 0x80 or name[end - 1] < 0x80:
            break
        end -= 1
    return end


def _reserved(name: bytes) -> bool:
    return name[:1] == b"%" and not _ESCAPE.match(name)


def _percent(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found[0][0]


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])
