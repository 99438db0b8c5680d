"""A link on which somebody else is quicker: what is given happens just before the next run of one script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.scripts import Script


class Between(OwnRedisClient):
    """The link of an open backend, with something in between."""

    __slots__ = ("_act", "_client", "_script")

    def __init__(self, link: OwnRedisClient, script: str, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(link.options)
        self._client, self._script = link, script
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
