"""Waking takers that wait: one listener per process hears of our own puts at once.

A put leaves tokens in the wake list of its queue; the listener blocks on the lists of all who wait, on a connection of
its own. Whoever waits also looks by himself every POLL seconds, so that a job pushed by another program, one that
became due, and one whose token somebody else got, are found soon all the same; and so that a listener that cannot
listen costs some milliseconds, never a job. It asks again after any error, for as long as somebody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from wrasse.backends.redis.connection import Link
from wrasse.errors import WrasseError

POLL = 0.04  # seconds: foreign pushes are to be found within 50 ms
_BLOCK = 1  # seconds one blocking command lasts at most
_PAUSE = 0.2  # seconds after an error


class Bells:
    """Whoever waits in this process, and the task that listens for them."""

    __slots__ = ("_link", "_task", "_waiting")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Event, tuple[str, ...]] = {}

    @contextmanager
    def waiting(self, keys: Sequence[str]) -> Iterator[asyncio.Event]:
        """A bell that is rung when one of these wake lists gets a token."""
        bell = asyncio.Event()
        self._waiting[bell] = tuple(keys)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="redis wake-ups")
        try:
            yield bell
        finally:
            del self._waiting[bell]

    async def close(self) -> None:
        """Stops listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        while keys := list(dict.fromkeys(key for each in self._waiting.values() for key in each)):
            try:
                heard = await self._link.block("BLPOP", *keys, _BLOCK, timeout=_BLOCK)
            except WrasseError:
                await asyncio.sleep(_PAUSE)  # who waits looks by himself meanwhile, and says what is wrong
                continue
            if heard is not None:
                self._ring(heard[0].decode())

    def _ring(self, key: str) -> None:
        for bell, keys in self._waiting.items():
            if key in keys:
                bell.set()


async def rung(bell: asyncio.Event, longest: float) -> None:
    """Waits for the bell, or until it is time to look."""
    with suppress(TimeoutError):
        async with asyncio.timeout(min(POLL, longest)):
            await bell.wait()
    bell.clear()
