"""A client on which another process is faster: an action happens just before the next run of one script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.scripts import Script


class InterleavedClient(OwnRedisClient):
    """The client of an open backend, with an action before one script."""

    __slots__ = ("_act", "_client", "_script")

    def __init__(self, client: OwnRedisClient, script: str, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(client.options)
        self._client, self._script = client, script
        self._act: Callable[[], Awaitable[object]] | None = act

    @property
    def told(self) -> int:
        return self._client.told

    @property
    def happened(self) -> bool:
        """Whether it came to that."""
        return self._act is None

    async def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Any] = ()) -> Any:
        if script.name == self._script and self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._client.run(script, keys, args)

    async def ask_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._client.ask_many(commands)
