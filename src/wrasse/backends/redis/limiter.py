"""The limiter on Redis: per key one counter that lives for a second, as in the Go producer, changed by one script.

On a Cluster the key must share the slot of the root: one that begins like the root without its tag is accepted.
"""

from __future__ import annotations

from datetime import timedelta

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.options import key_slot
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.errors import ConfigError
from wrasse.ports.limiter import Allowance, check_rate


@reads_replies
class RedisLimiter:
    """Budgets of one Redis. The key of a budget is the Redis key itself."""

    __slots__ = ("_client",)

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def allow(self, key: str, count: int, *, rate: int, burst: int) -> Allowance:
        """Takes up to `count` from the budget of this key."""
        check_rate(count, rate, burst)
        granted, wait = await self._client.run(load("limiter.allow"), [self._name(key)], [count, rate, burst])
        return Allowance(int(granted), timedelta(milliseconds=int(wait)))

    async def give_back(self, key: str, count: int, *, rate: int) -> None:
        """Returns an unused part to the budget."""
        await self._client.run(load("limiter.give_back"), [self._name(key)], [count])

    def _name(self, key: str) -> str:
        options = self._client.options
        if not options.cluster or key_slot(key) == options.slot:
            return key
        bare = options.root.replace("{", "").replace("}", "")
        if key.startswith(f"{bare}:"):
            return options.root + key.removeprefix(bare)
        raise ConfigError(
            f"producer.rate_limit_key is outside the hash tag of {options.root}: on a Cluster all keys share one slot",
            do=f"begin it with {options.root}",
        )
