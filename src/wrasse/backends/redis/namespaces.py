"""Namespaces on Redis: a sorted set that every write of a new key adds its collection to."""

from __future__ import annotations

from itertools import pairwise

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.replies import reads_replies
from wrasse.clock import from_micros
from wrasse.ports.namespaces import META, namespace_of
from wrasse.ports.page import Page


def namespaces_key(root: str) -> str:
    """The sorted set of the collections of keys."""
    return f"{root}:namespaces"


@reads_replies
class RedisNamespaces:
    """The port."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._key = namespaces_key(client.options.root)

    async def page(self, after: str | None, limit: int) -> Page[str]:
        lower, found = b"" if after is None else f"{after}{META}".encode(), list[str]()
        page_loop, more = PageLoop(self._client.options.where, f"ZRANGEBYLEX {self._key}"), True
        while more and len(found) <= limit:
            page_loop.turn(lower)
            start = b"(" + lower if lower else b"-"
            asked = ("ZRANGEBYLEX", self._key, start, "+", "LIMIT", 0, limit + 1), ("TIME",)
            members, time = await self._client.ask_many(asked)
            more = len(members) > limit
            if any(each <= before for before, each in pairwise((lower, *members))):
                # Another program gave members scores, which puts them out of order: the whole set is sorted here.
                members, more = sorted(await self._client.ask("ZRANGE", self._key, 0, -1)), False
            found += [name for member in members if member > lower and (name := _namespace(member))]
            lower = members[-1] if members else lower
        return Page.of(found, limit, from_micros(self._client.time_in(time)), str)


def _namespace(member: bytes) -> str | None:
    try:
        return namespace_of(member.decode())
    except UnicodeDecodeError:
        return None
