"""Namespaces on Redis: a sorted set that every write of a new key adds its collection to."""

from __future__ import annotations

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.replies import reads_replies
from wrasse.clock import from_micros
from wrasse.ports.namespaces import META
from wrasse.ports.page import Page


def namespaces_key(root: str) -> str:
    """The sorted set of the collections of keys."""
    return f"{root}:namespaces"


@reads_replies
class RedisNamespaces:
    """The port."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._key = namespaces_key(link.options.root)

    async def page(self, after: str | None, limit: int) -> Page[str]:
        lower = "-" if after is None else f"({after}{META}"
        asked = ("ZRANGEBYLEX", self._key, lower, "+", "LIMIT", 0, limit + 1), ("TIME",)
        members, (seconds, micros) = await self._link.ask_many(asked)
        found = [member.decode().removesuffix(META) for member in members]
        now = from_micros(self._link.told or int(seconds) * 1_000_000 + int(micros))
        shown = tuple(found[:limit])
        return Page(shown, shown, now, more=len(found) > limit)
