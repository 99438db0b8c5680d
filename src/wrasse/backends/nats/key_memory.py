"""Idempotency keys: the server remembers them for two minutes (`Nats-Msg-Id`), and this says which entry they mean.

The window is counted by the same clock as everything else. Where the server still knows a key whose window is over, it
is used once more under a name of its own, which is the sequence of the entry it stood for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar
from urllib.parse import quote

from wrasse.backends.nats.js import JsError
from wrasse.backends.nats.lanes import Lane, Lanes
from wrasse.backends.nats.stream_config import DEDUP_SECONDS
from wrasse.backends.nats.stream_time import ServerTime
from wrasse.ports.streams import EntryId

T = TypeVar("T")
_REMEMBERED = 20_000
_NEVER = str(1 << 62)


class KeyMemory:
    """What this process knows of keys."""

    def __init__(self, lanes: Lanes, time: ServerTime) -> None:
        self._lanes = lanes
        self._time = time
        self._ids: OrderedDict[tuple[str, str], EntryId] = OrderedDict()
        self._again: OrderedDict[tuple[str, str], int] = OrderedDict()  # a key whose window is over: of which entry

    def header(self, subject: str, lane: Lane, key: str) -> bytes:
        """The header that names it to the server."""
        return b"Nats-Msg-Id:%b\r\n" % self._name(subject, lane, key).encode()

    def note(self, subject: str, key: str, id: EntryId) -> None:
        """It stands for this entry now."""
        _put(self._ids, (subject, key), id)

    async def known(self, subject: str, lane: Lane, key: str, *, probe: bool = True) -> EntryId | None:
        """The entry that a key stands for, asked without storing anything: the server looks at keys first, and the
        condition of this question never holds."""
        id = self._ids.get((subject, key))
        if id is not None and not self._over(id, await self._time.millis()):
            return id
        if not probe:
            return None
        headers = {"Nats-Msg-Id": self._name(subject, lane, key), "Nats-Expected-Last-Sequence": _NEVER}
        try:
            seq = await self._lanes.js.store(lane.subject, b"", headers)
        except JsError as refused:
            if refused.wrong_sequence:
                return None
            raise
        return await self.first(subject, lane, key, seq)

    async def first(self, subject: str, lane: Lane, key: str, seq: int) -> EntryId | None:
        """The entry at this sequence, as the one that the key stands for; None if its window is over."""
        id = self._ids.get((subject, key))
        if id is None or id.seq != seq:
            message = await self._lanes.reader.one(lane.stream, {"seq": seq}, leader=True)
            # Trimmed meanwhile: the key is known all the same.
            id = EntryId((await self._time.millis()) if message is None else message.ms, seq)
        if self._over(id, await self._time.millis()):
            _put(self._again, (subject, key), seq)
            return None
        self.note(subject, key, id)
        return id

    def _name(self, subject: str, lane: Lane, key: str) -> str:
        again = self._again.get((subject, key))
        named = quote(key, safe="") if lane.own else quote(f"{subject} {key}", safe="")
        return named if again is None else f"{named}@{again}"

    def _over(self, id: EntryId, ms: int) -> bool:
        return ms - id.ms >= DEDUP_SECONDS * 1_000


def _put(kept: OrderedDict[tuple[str, str], T], key: tuple[str, str], value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)
