"""Streams that other programs made: found by a SCAN in small steps, and registered beside our own.

A pass over all keys begins every PASS seconds at most, whoever asks; each question goes on with it for a bounded number
of steps. So a new stream is found within a minute where somebody asks once a second and there are fewer than some ten
million keys. What is not registered is never trimmed.

A stream whose key is no subject, such as one with a space, cannot be registered. Those that a pattern would match are
logged, once each, and the doctor names them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from wrasse.backends.foreign_protocol import printable
from wrasse.backends.redis.client import Link
from wrasse.backends.redis.keys import literal_glob
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.clock import Clock
from wrasse.ports.subjects import fixed_part, matches, subject_of

_log = logging.getLogger("wrasse.streams")
DO = "let its program write to a key of letters, digits, - and _ with single colons between"
PASS = 30.0  # seconds between the beginnings of two passes
_STEP = 2_000  # keys that one SCAN looks at
_STEPS_MAX = 200  # in one call
_NAMELESS_MAX = 1_000  # streams without a subject that are remembered
_START = b"0"


class Discovery:
    """Finds the streams of one Redis."""

    __slots__ = (
        "_began", "_clock", "_cursor", "_keys", "_link", "_lock", "_nameless", "_to_read", "_told", "unregistered",
    )  # fmt: skip

    def __init__(self, link: Link, keys: StreamKeys, clock: Clock, *, to_read: bool) -> None:
        self._link = link
        self._clock = clock
        self._keys = keys
        self._lock = asyncio.Lock()
        self._cursor = _START
        self._began: float | None = None
        self._nameless: set[str] = set()  # keys of other programs' streams that no subject has
        self._told: set[str] = set()
        self._to_read = to_read
        self.unregistered: set[bytes] = set()  # what a reader found

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

    def tell(self, pattern: str) -> None:
        """Logs what this pattern would match if its key were a subject; not for a pattern that matches anything."""
        for key in self._nameless - self._told if fixed_part(pattern) else ():
            if matches(pattern, subject_of(key.removeprefix(self._keys.prefix))):
                self._told.add(key)
                _log.error("the stream %r is passed over, since its key is no subject: %s", key, DO)

    async def register(self, subjects: Sequence[str]) -> None:
        """Registers those whose streams exist, and forgets those whose streams do not. A reader writes nothing."""
        if not subjects:
            return
        if self._to_read:
            types = await self._link.ask_many([("TYPE", self._keys.of(subject).log) for subject in subjects])
            self.unregistered |= {
                each.encode() for each, kind in zip(subjects, types, strict=True) if kind == b"stream"
            }
            return
        names = [self._keys.registry]
        for subject in subjects:
            keys = self._keys.of(subject)
            names += (keys.log, keys.facts)
        await self._link.run(load("stream_register"), names, list(subjects))

    async def _step(self) -> bool:
        """One step; True if the pass is over."""
        self._cursor, named = await self._scan(self._cursor)
        scores = await self._link.ask_many([("ZSCORE", self._keys.registry, subject) for _, subject in named])
        await self.register([subject for (_, subject), score in zip(named, scores, strict=True) if score is None])
        return bool(self._cursor == _START)

    async def find_nameless(self) -> Sequence[str]:
        """Keys of streams that no subject has, in order. Registers nothing, and looks at a bounded number of keys."""
        cursor = _START
        for _ in range(_STEPS_MAX):
            cursor, _ = await self._scan(cursor)
            if cursor == _START:
                break
        return sorted(self._nameless)

    async def _scan(self, cursor: bytes) -> tuple[bytes, Sequence[tuple[bytes, str]]]:
        """Streams with their subjects, and where to go on. Those without a subject are remembered, but for our own."""
        pattern = literal_glob(self._keys.prefix) + "*"
        cursor, found = await self._link.ask("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP, "TYPE", "stream")
        named = [(key, subject) for key in found if (subject := self._keys.subject(key)) is not None]
        shown = {printable(key.decode(errors="backslashreplace")) for key in {*found} - {key for key, _ in named}}
        fresh = sorted(each for each in shown - self._nameless if not each.startswith(f"{self._keys.root}:"))
        self._nameless |= set(fresh[: _NAMELESS_MAX - len(self._nameless)])
        return cursor, named
