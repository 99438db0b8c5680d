"""Reads whole structures page by page while others change them: what exists all the while is read at least once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import blake2b

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.key_types import workers_among
from wrasse.backends.redis.keys import RedisKeys, pattern_glob
from wrasse.backends.redis.reply_limit import fitting, scanned

_SMALL, _LARGE = 1_000, 100  # a page of short values, a page of texts with payloads
Seen = Callable[[int], None]


async def pairs(
    client: RedisClient, key: str, seen: Seen, *, large: bool = False
) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Names and values of a hash, or members and scores of a sorted set."""
    command = "ZSCAN" if await client.ask("TYPE", key) in (b"zset", "zset") else "HSCAN"
    async for found in scanned(client, (command, key), _LARGE if large else _SMALL):
        rows = list(zip(found[::2], found[1::2], strict=True))
        seen(len(rows))
        yield rows


async def keys_like(client: RedisClient, glob: str, kind: str) -> AsyncIterator[list[bytes]]:
    """Keys of one type whose names match."""
    async for names in scanned(client, ("SCAN",), _SMALL, ("MATCH", glob, "TYPE", kind)):
        yield names


async def workers_with(client: RedisClient, pattern: str, kind: str) -> list[str]:
    """Every worker that has a key by this pattern."""
    return await workers_among(client, keys_like(client, pattern_glob(pattern), kind), pattern)


async def entries(client: RedisClient, key: str, seen: Seen) -> AsyncIterator[bytes]:
    """A list from the end where jobs are pushed."""
    start, page_loop = 0, PageLoop(client.options.where, f"LRANGE {key}")
    while True:
        page_loop.turn(start)
        asked = await fitting(_LARGE, lambda count: client.ask("LRANGE", key, start, start + count - 1))  # noqa: B023
        found: list[bytes] = asked[0]
        seen(len(found))
        for raw in found:
            yield raw
        if len(found) < asked[1]:
            return
        start += asked[1]


async def scores(client: RedisClient, sets: Sequence[str], members: Sequence[Word]) -> list[list[bytes | None]]:
    """For each sorted set the scores of the same members."""
    return await client.ask_many([("ZMSCORE", key, *members) for key in sets])


async def there(client: RedisClient, key: str, names: Sequence[Word]) -> list[bool]:
    """Which of these fields a hash has; without reading their values."""
    return [found == 1 for found in await client.ask_many([("HEXISTS", key, name) for name in names])]


async def claim_keys_of(client: RedisClient, keys: RedisKeys, ids: Sequence[str | bytes]) -> list[bytes | None]:
    """The newest claim of each id."""
    if not ids:
        return []
    found: list[bytes | None] = await client.ask("HMGET", keys.where, *ids)
    return found


def digest(raw: bytes) -> bytes:
    """A short name for these bytes."""
    return blake2b(raw, digest_size=16).digest()
