"""The interface of a connection to Redis. Two clients implement it: ours (`connection.py`), and redis-py in
`redis_py.py`, for its credential providers and proxies. The setting `redis.client` chooses.

Replies are plain RESP2: bytes, int, None and lists of them. Errors are ours (`failure.py`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import Script
from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreUnavailable


class RedisClient(ABC):
    """One or several connections to the server that serves our keys. It serves the event loop that opened it, until
    `close`. `time` replaces the server's clock in scripts: only for tests that let hours pass."""

    __slots__ = ("_blocking_limit", "_time", "options", "replies")

    def __init__(self, options: RedisOptions, time: Clock | None = None) -> None:
        self.options = options
        self._time = time
        self._blocking_limit = asyncio.Semaphore(max(1, options.pool_size - 1))
        self.replies = 0  # grows with every reply except refusals: while it is the same, none has come

    @property
    def told(self) -> int:
        """ARGV[1] of every script: 0 for the server's own clock, or the time to use, in microseconds."""
        return 0 if self._time is None else to_micros(self._time.now())

    def time_in(self, answer: Sequence[bytes]) -> int:
        """The answer of the server to TIME, in microseconds; in tests the time that scripts use."""
        seconds, micros = answer
        return self.told or int(seconds) * 1_000_000 + int(micros)

    @property
    @abstractmethod
    def connections(self) -> int:
        """Grows with every connection: while it is the same, the same server answered."""

    @property
    def has_free_connection(self) -> bool:
        """Whether a connection for a blocking command is free."""
        return not self._blocking_limit.locked()

    @abstractmethod
    async def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word] = ()) -> Any:
        """Runs the script once: a lost answer is StoreUnavailable. ARGV[1] is `told`; `args` are ARGV[2] and on."""

    @abstractmethod
    async def together(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Runs commands atomically (MULTI), once. A refused command has its RedisRefusal among the answers; the others
        were executed all the same."""

    async def ask(self, *command: Word) -> Any:
        """A read; repeated if its answer is lost."""
        (answer,) = await self.ask_many((command,))
        return answer

    @abstractmethod
    async def ask_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several reads in one round trip; repeated if an answer is lost."""

    @abstractmethod
    async def block(self, *command: Word, timeout: float) -> Any:
        """A command that blocks at the server for at most `timeout` seconds, on a connection of its own; never
        repeated."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all connections. Callers that wait for an answer get StoreUnavailable."""

    @asynccontextmanager
    async def _require_free_connection(self, timeout: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                await self._blocking_limit.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"all {self.options.pool_size} connections to {self.options.where} are in use",
                do="raise redis.pool_size_multiplier, or run fewer workers in one process",
            ) from None
        try:
            yield
        finally:
            self._blocking_limit.release()


def sections(text: bytes) -> Mapping[str, str]:
    """The lines `name:value` of any number of INFO answers."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}
