"""Namespaces: which ones a store holds keys of, asked of the store itself, so that a restart forgets nothing.

Promise. A namespace that has a key is listed; one that had some may be, and in a bucket any other folder at its top.
Names that begin with a dot are reserved and never listed. Costs. One round trip per page,
which follows the number of namespaces, not of keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from wrasse.ports.page import Page

META = "/meta"  # a namespace is what has this collection


class Namespaces(Protocol):
    """The port."""

    async def page(self, after: str | None, limit: int) -> Page[str]:
        """Names of namespaces, in the byte order that they have with a slash behind: `a.b` comes before `a`."""
        ...


def in_order(name: str) -> str:
    """What namespaces are sorted by: how stores list folders."""
    return f"{name}/"


def page_of(names: Iterable[str], after: str | None, limit: int, at: datetime) -> Page[str]:
    """The page of these names after a cursor."""
    start = "" if after is None else in_order(after)
    left = sorted((name for name in names if in_order(name) > start), key=in_order)
    return Page.of(left, limit, at, str)


def namespace_of(collection: str) -> str | None:
    """The namespace that a collection's data belongs to, if it is one of keys."""
    name, meta, rest = collection.partition(META)
    return name if meta and not rest and name and not name.startswith(".") and "/" not in name else None
