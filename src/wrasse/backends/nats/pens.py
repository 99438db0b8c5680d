"""Pens: who alone writes to a stream, so that long batches may be sent as chains (`steps.py`).

The holder's name is in the note about the stream. Everybody believes what he read for at most a second, and whoever
wants it otherwise says so in the note and waits for longer than that: the one who takes a pen before he relies on it,
the one who finds another's before he writes. A stream that two have written to is shared for good. Programs that know
nothing of pens are noticed when their entries come between ours.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

from wrasse.backends.nats.lanes import NOTE_SECONDS, Lane, Lanes, Note
from wrasse.clock import Clock

SHARED = "*"
CHAIN_MIN = 64  # shorter batches are not worth a pen
_OTHERS_KNOW = NOTE_SECONDS * 1.5


class Pens:
    """The pens of one process."""

    def __init__(self, lanes: Lanes, clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        self._name = secrets.token_hex(8)
        self._taken: dict[str, float] = {}  # by subject: when others may still have believed otherwise

    async def mine(self, subject: str, lane: Lane, count: int) -> bool:
        """Whether nobody else writes to it now; takes the pen for a long batch if it is free."""
        if not lane.own or count < CHAIN_MIN:
            return False
        pen = (await self._lanes.note(subject, lane)).pen
        if not pen:
            pen = (await self._lanes.change(subject, lane, self._take)).pen
            self._taken[subject] = self._clock.monotonic()
        if pen != self._name:
            return False
        return self._clock.monotonic() - self._taken.get(subject, self._clock.monotonic()) > _OTHERS_KNOW

    async def respect(self, subject: str, lane: Lane) -> None:
        """Before anything is written: takes the pen from another, and waits until he knows."""
        pen = (await self._lanes.note(subject, lane)).pen
        if pen not in ("", SHARED, self._name):
            await self.share(subject, lane)
            await asyncio.sleep(_OTHERS_KNOW)
            lane.tip = None

    def _take(self, note: Note) -> Note:
        return note if note.pen else replace(note, pen=self._name)

    async def share(self, subject: str, lane: Lane) -> None:
        """From now on it has several writers."""
        await self._lanes.change(subject, lane, lambda note: replace(note, pen=SHARED))
