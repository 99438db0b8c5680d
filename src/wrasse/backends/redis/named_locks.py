"""Plain locks on Redis: a string key with its owner and an expiry, as `SET NX PX` makes them."""

from __future__ import annotations

from datetime import timedelta

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load

_MILLISECOND = timedelta(milliseconds=1)


@reads_replies
class RedisPlainLocks:
    """The port."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def hold(self, key: str, owner: str, ttl: timedelta) -> str:
        return await self._run(key, owner, str(ttl // _MILLISECOND))

    async def holder(self, key: str) -> str:
        return await self._run(key, "", "")  # no owner: another owner's lock is not changed

    async def release(self, key: str, owner: str) -> bool:
        return not await self._run(key, owner, "")

    async def _run(self, key: str, owner: str, lasts: str) -> str:
        where = f"{self._client.options.streams_prefix}{key}"
        holder = await self._client.run(load("plain_lock"), (where,), (owner, lasts))
        return str(holder.decode("utf-8", "backslashreplace"))
