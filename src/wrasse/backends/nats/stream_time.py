"""The server's time, as well as we know it: asked now and then, and reckoned on with our own monotonic clock.

It is behind the server's by at most a round trip and what two clocks drift apart in a minute, and never goes back by
itself.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from wrasse.backends.nats.js import JetStream
from wrasse.backends.nats.layout import Layout
from wrasse.backends.nats.stored import moment
from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreBroken

_FRESH_SECONDS = 60.0


class ServerTime:
    """What the time is there. `told` is what to believe in instead: only for tests that let hours pass."""

    __slots__ = ("_at", "_clock", "_connection", "_js", "_layout", "_lock", "_mark", "told")

    def __init__(self, js: JetStream, layout: Layout, clock: Clock, told: Clock | None = None) -> None:
        self._js = js
        self._layout = layout
        self._clock = clock
        self._at: datetime | None = None
        self._mark = 0.0
        self._connection = 0
        self._lock = asyncio.Lock()
        self.told = told

    async def now(self) -> datetime:
        """The server's clock; asks the server where the last answer is too old."""
        if self.told is not None:
            return self.told.now()
        if self._at is None or self._clock.monotonic() - self._mark > _FRESH_SECONDS:
            async with self._lock:
                if self._at is None or self._clock.monotonic() - self._mark > _FRESH_SECONDS:
                    await self._ask()
        return self.reckoned()

    def reckoned_millis(self) -> int:
        """What `reckoned` says, in whole milliseconds since 1970."""
        return to_micros(self.reckoned()) // 1_000

    async def millis(self) -> int:
        """The same in whole milliseconds since 1970."""
        return to_micros(await self.now()) // 1_000

    def heard(self, timestamp: str) -> datetime:
        """Takes the server's own word for it, as part of an answer that just came."""
        if self.told is not None:
            return self.told.now()
        at = moment(timestamp)
        before = None if self._at is None else self.reckoned()
        self._at = at if before is None else max(at, min(before, at + timedelta(seconds=1)))
        self._mark = self._clock.monotonic()
        return at

    def reckoned(self) -> datetime:
        """The last answer and what has passed since."""
        if self.told is not None:
            return self.told.now()
        assert self._at is not None, "the server was asked"
        return self._at + timedelta(seconds=self._clock.monotonic() - self._mark)

    async def _ask(self) -> None:
        answer = await self._js.call(f"STREAM.INFO.{self._layout.books}")
        if "ts" in answer:
            self.heard(str(answer["ts"]))
            return
        # Servers before 2.10: a message on our own subject, and when it was stored. Not by its number: another process
        # that asks for the time may have followed, and its message says what is later and yet not after this answer.
        await self._js.store(self._layout.clock, b"", {"Nats-Rollup": "sub"})
        read = await self._js.call(f"STREAM.MSG.GET.{self._layout.books}", {"last_by_subj": self._layout.clock})
        if "message" not in read:
            raise StoreBroken("the clock of NATS cannot be read", do=f"look at the stream {self._layout.books}")
        self.heard(str(read["message"]["time"]))
