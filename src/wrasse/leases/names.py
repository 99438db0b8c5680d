"""Valid namespaces and keys, and the object names of their parts. Pure.

    <namespace>/meta/<key>.json                       the record: lease, version, current state object
    <namespace>/.lease-index/<hour>/<key>             index entry in the hour when the lease should expire
    <namespace>/state/<key>/.v/<token>-<id>           state objects; each is written once and never changed

No segment of a key begins with a dot, so user names cannot collide with internal ones.
"""

from __future__ import annotations

import re

from wrasse.errors import UsageError

NAMESPACE_CHARS_MAX = 128
KEY_CHARS_MAX = 128
DEFAULT_NAMESPACE = "default"
_SEGMENT = re.compile(r"[a-z0-9._-]+")
_KEY = re.compile(r"[a-z0-9_-][a-z0-9._-]*(?:/[a-z0-9_-][a-z0-9._-]*)*")


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
