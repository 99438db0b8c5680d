"""Streams that other programs made: found by a SCAN in small steps, and registered beside our own.

A pass over all keys begins every PASS seconds at most, whoever asks; each question goes on with it for a bounded number
of steps. So a new stream is found within a minute where somebody asks once a second and there are fewer than some ten
million keys. What is not registered is never trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.keys import literal_glob
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.clock import Clock

PASS = 30.0  # seconds between the beginnings of two passes
_STEP = 2_000  # keys that one SCAN looks at
_STEPS_MAX = 200  # in one call
_START = b"0"


class Discovery:
    """Finds the streams of one Redis."""

    __slots__ = ("_began", "_clock", "_cursor", "_keys", "_link", "_lock")

    def __init__(self, link: Link, keys: StreamKeys, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._keys = keys
        self._lock = asyncio.Lock()
        self._cursor = _START
        self._began: float | None = None

    async def look(self) -> None:
        """Goes on looking, if it is time to. Who asks while another looks is not kept waiting."""
        now = self._clock.monotonic()
        idle = self._cursor == _START and self._began is not None and now - self._began < PASS
        if idle or self._lock.locked():
            return
        async with self._lock:
            if self._cursor == _START:
                self._began = now
            for _ in range(_STEPS_MAX):
                if await self._step():
                    return

    async def register(self, subjects: Sequence[str]) -> None:
        """Registers those whose streams exist, and forgets those whose streams do not."""
        if not subjects:
            return
        names = [self._keys.registry]
        for subject in subjects:
            keys = self._keys.of(subject)
            names += (keys.log, keys.facts)
        await self._link.run(load("stream_register"), names, list(subjects))

    async def _step(self) -> bool:
        """One step; True if the pass is over."""
        pattern = literal_glob(self._keys.prefix) + "*"
        self._cursor, found = await self._link.ask(
            "SCAN", self._cursor, "MATCH", pattern, "COUNT", _STEP, "TYPE", "stream"
        )
        named = [(key, subject) for key in found if (subject := self._keys.subject(key)) is not None]
        scores = await self._link.ask_many([("ZSCORE", self._keys.registry, subject) for _, subject in named])
        await self.register([subject for (_, subject), score in zip(named, scores, strict=True) if score is None])
        return bool(self._cursor == _START)
