"""Reads whose reply may exceed `redis.reply_bytes_max`: repeated for less until the reply fits.

The size of entries is not known before they are read, and other programs write them too. A reply beyond the limit costs
its connection (`ReplyTooLarge`), so a page shrinks fast; a single entry beyond it cannot be read at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.failure import ReplyTooLarge

T = TypeVar("T")
Item = TypeVar("Item")
_SHRINK = 8


async def fitting(count: int, ask: Callable[[int], Awaitable[T]]) -> tuple[T, int]:
    """The answer of `ask` for `count`, or for as many fewer as fit; and for how many it was asked."""
    while True:
        try:
            return await ask(count), count
        except ReplyTooLarge:
            if count <= 1:
                raise
            count = max(1, count // _SHRINK)


async def in_pieces(items: Sequence[Item], ask: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> list[T]:
    """One answer for each item, in one request or in as many as it takes."""
    found: list[T] = []
    count = len(items)
    while len(found) < len(items):
        rest = items[len(found) :]
        answers, count = await fitting(min(count, len(rest)), partial(_first, ask, rest))
        if len(answers) != count:
            raise ValueError(f"{len(answers)} answers for {count} items")
        found += answers
    return found


async def _first(
    ask: Callable[[Sequence[Item]], Awaitable[Sequence[T]]], items: Sequence[Item], count: int
) -> Sequence[T]:
    return await ask(items[:count])


async def scanned(
    client: RedisClient, command: tuple[str, ...], count: int, options: tuple[str, ...] = ()
) -> AsyncIterator[list[bytes]]:
    """The results of SCAN, HSCAN or ZSCAN, in steps that fit into a reply."""
    cursor, page_loop = b"0", PageLoop(client.options.where, " ".join(command))
    while True:
        page_loop.turn(cursor)
        (cursor, found), _ = await fitting(
            count,
            lambda fewer: client.ask(*command, cursor, *options, "COUNT", fewer),  # noqa: B023
        )
        if found:
            yield found
        if cursor == b"0":
            return
