"""Answers on their way to the backend: those that are ready at the same time go in one call.

Promise. Whoever hands in an answer is told what the backend said, or that it could not be asked. One answer that the
backend refuses does not spoil the others. Sending an answer twice after a lost reply is harmless: an ack or a dead
letter that was made is `lost` the second time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from wrasse.errors import StoreFull, StoreUnavailable, WrasseError
from wrasse.ports.groups import Answer, Groups
from wrasse.ports.outcome import Outcome

BATCH_MAX = 1_000
_PAUSE_MIN, _PAUSE_MAX = 0.05, 2.0


class Outbox:
    """The answers of one consumer."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._waiting: deque[tuple[Answer, asyncio.Future[Outcome]]] = deque()
        self._sending: list[tuple[Answer, asyncio.Future[Outcome]]] = []
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, answer: Answer) -> asyncio.Future[Outcome]:
        """Hands in an answer; the future has what became of it, or the error if it could not be sent."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, future))
        self._filled.set()
        self._empty.clear()
        return future

    async def empty(self, seconds: float) -> bool:
        """Waits until all that was handed in was sent, or failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        return self._empty.is_set()

    async def run(self) -> None:
        """Sends until cancelled; after a failure it pauses, longer each time."""
        pause = _PAUSE_MIN
        while True:
            await self._filled.wait()
            if await self._send():
                pause = _PAUSE_MIN
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)

    async def flush(self) -> None:
        """Sends what is left, once."""
        self._waiting.extendleft(reversed(self._sending))
        while self._waiting:
            await self._send()

    async def _send(self) -> bool:
        self._sending = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_MAX))]
        if not self._waiting:
            self._filled.clear()
        sent = await self._try(self._sending)
        self._sending = []
        if not self._waiting:
            self._empty.set()
        return sent

    async def _try(self, batch: list[tuple[Answer, asyncio.Future[Outcome]]]) -> bool:
        try:
            outcomes: list[Outcome | WrasseError] = [*await self._groups.answer([answer for answer, _ in batch])]
        except WrasseError as error:
            if len(batch) > 1 and not _nobody_home(error):
                # One of them is at fault, such as a dead letter that finds no room.
                return all([await self._try([one]) for one in batch])
            outcomes = [error] * len(batch)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            _tell(future, outcome)
        return not isinstance(outcomes[0], WrasseError)


def _nobody_home(error: WrasseError) -> bool:
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull)


def _tell(future: asyncio.Future[Outcome], what: Outcome | WrasseError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(what, WrasseError):
        future.set_exception(what)
    else:
        future.set_result(what)
