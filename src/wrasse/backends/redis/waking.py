"""Waking takers that wait: one listener per process hears of our own puts at once.

A put leaves tokens in the wake list of its queue; the listener blocks on the lists of all who wait, on a connection of
its own. Whoever waits also looks by himself every POLL seconds, so that a job pushed by another program, one that
became due, and one whose token somebody else got, are found soon all the same; and so that a listener that cannot
listen costs some milliseconds, never a job. It asks again after any error, for as long as somebody waits, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from wrasse.backends.bell import Bell, hung
from wrasse.backends.redis.client import Link
from wrasse.backends.redis.replies import not_its_answer
from wrasse.errors import WrasseError

POLL = 0.04  # seconds: foreign pushes are to be found within 50 ms
_BLOCK = 1  # seconds one blocking command lasts at most
_PAUSE = 0.2  # seconds after an error

_log = logging.getLogger("wrasse.jobs")


class Bells:
    """Whoever waits in this process, and the task that listens for them."""

    __slots__ = ("_link", "_task", "_waiting")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self._waiting: set[Bell] = set()

    @contextmanager
    def waiting(self, keys: Iterable[str], wait: timedelta) -> Iterator[Bell]:
        """A bell for these wake lists, which rings at the latest after `wait`."""
        with hung(self._waiting, keys, wait) as bell:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen(), name="redis wake-ups")
            yield bell

    async def close(self) -> None:
        """Stops listening, and wakes everybody."""
        for bell in self._waiting:
            bell.expire()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        deaf = False
        while keys := list(dict.fromkeys(key for bell in self._waiting for key in bell.names)):
            try:
                heard = await self._link.block("BLPOP", *keys, _BLOCK, timeout=_BLOCK)
                key = None if heard is None else _key_in(heard, self._link)
            except WrasseError as error:
                if not deaf:
                    _log.warning("wake-ups are not heard, so jobs are looked for instead: %s", error.message)
                deaf = True
                await asyncio.sleep(_PAUSE)
                continue
            if deaf:
                _log.info("wake-ups are heard again")
            deaf = False
            if key is not None:
                self._ring(key)
                await asyncio.sleep(0)  # who was woken takes the job before this listens again

    def _ring(self, key: str) -> None:
        for bell in self._waiting:
            if key in bell.names:
                bell.ring()


def _key_in(heard: object, link: Link) -> str:
    """The list that BLPOP took a token from."""
    match heard:
        case [bytes(key), _]:
            return key.decode(errors="replace")
    raise not_its_answer(link, "BLPOP")
