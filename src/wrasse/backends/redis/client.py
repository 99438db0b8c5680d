"""What this backend needs of a connection to Redis. Two clients have it: ours (`connection.py`), and redis-py behind
`redis_py.py`, for its credential providers and proxies. `redis.client` chooses.

Replies are RESP2 as it comes: bytes, int, None and lists of them. Errors are ours (`failure.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import Script
from wrasse.backends.redis.wire import Word


class Link(Protocol):
    """A connection, or several, to the server that serves our keys."""

    @property
    def options(self) -> RedisOptions:
        """How it was opened."""

    @property
    def told(self) -> int:
        """ARGV[1] of every script: 0 for the server's own clock, or the time to believe in, in microseconds."""

    @property
    def connections(self) -> int:
        """Grows with every connection: while it is the same, it was the same server that answered."""

    @property
    def replies(self) -> int:
        """Grows with every reply, refusals aside: while it is the same, none has come."""

    @property
    def has_seat(self) -> bool:
        """Whether a connection for waiting is free."""

    async def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word] = ()) -> Any:
        """Runs the script once: a lost answer is StoreUnavailable. ARGV[1] is `told`."""

    async def together(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Runs commands as one step (MULTI), once. A command that was refused has its Refusal among the answers."""

    async def ask(self, *command: Word) -> Any:
        """A read; repeated if its answer is lost."""

    async def ask_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several reads in one round trip; repeated if an answer is lost."""

    async def block(self, *command: Word, timeout: float) -> Any:
        """A command that waits at the server for at most `timeout` seconds; never repeated."""

    async def close(self) -> None:
        """Ends all connections."""
