"""A daemon waits for its servers, role by role: what has its server works, the rest starts when its own answers.

Machines start in any order, and a server that is away comes back. What is wrong with a login, a certificate or a
setting does not mend itself, and ends the process at once, as does a file that cannot be opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from wrasse.errors import StoreUnavailable

T = TypeVar("T")
_PAUSE = 1.0  # seconds between two tries
_SAID_EVERY = 30  # tries between two lines that say so
_log = logging.getLogger("wrasse.daemon")


class Waiting:
    """What the parts of a process wait for."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.parts: dict[str, str] = {}  # part -> why its backend cannot be had
        self._stop = stop

    async def opened(
        self, part: str, open: Callable[[], Awaitable[T]], tried: asyncio.Event, *, served: bool
    ) -> T | None:
        """What `open` gives, as soon as its servers answer; None if the process is stopped before that. `tried` is set
        after the first try. A file is not waited for."""
        tries = 0
        try:
            while not self._stop.is_set():
                try:
                    return await self._unless_stopped(open())
                except StoreUnavailable as error:
                    if not served:
                        raise
                    self._note(part, f"{error.message}; {error.do}", tries)
                    tried.set()
                tries += 1
                await self._unless_stopped(asyncio.sleep(_PAUSE))
            return None
        finally:
            tried.set()
            self.parts.pop(part, None)

    def _note(self, part: str, error: str, tries: int) -> None:
        said = [each for other, each in self.parts.items() if other != part]
        self.parts[part] = error
        # Of parts that wait for one server only the first says so.
        if tries % _SAID_EVERY == 0 and error not in said:
            _log.warning("waiting for the backend", extra={"role": part, "error": error})

    async def _unless_stopped(self, what: Awaitable[T]) -> T | None:
        """Waits for this, or for the end of the process: a connection attempt may take long."""
        task = asyncio.ensure_future(what)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
