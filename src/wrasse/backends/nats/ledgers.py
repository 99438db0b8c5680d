"""The ledgers that this process has met, and the groups that a stream has."""

from __future__ import annotations

from collections import OrderedDict

from wrasse.backends.nats.js import JetStream
from wrasse.backends.nats.layout import Layout, text_of
from wrasse.backends.nats.ledger import Ledger
from wrasse.backends.nats.reading import Reader
from wrasse.backends.rounds import Rounds

_KEPT = 20_000


class Ledgers:
    """All ledgers of one backend."""

    def __init__(self, js: JetStream, layout: Layout, reader: Reader) -> None:
        self._js = js
        self._layout = layout
        self._reader = reader
        self._met: OrderedDict[tuple[str, str], Ledger] = OrderedDict()

    def of(self, subject: str, group: str) -> Ledger:
        """The ledger of a group, read or not."""
        ledger = self._met.get((subject, group))
        if ledger is None:
            name = self._layout.ledger(subject, group)
            ledger = self._met[subject, group] = Ledger(self._js, self._reader, self._layout.books, name)
            if len(self._met) > _KEPT:
                self._met.popitem(last=False)
        return ledger

    async def groups(self, subject: str) -> list[str]:
        """The names of the groups of a stream, in order."""
        asked = {"subjects_filter": self._layout.ledgers(subject)}
        found: dict[str, int] = {}
        rounds = Rounds(self._js.link.options.where, f"STREAM.INFO.{self._layout.books}")
        while True:
            rounds.turn(len(found))
            told = await self._js.call(f"STREAM.INFO.{self._layout.books}", {**asked, "offset": len(found)})
            found |= told["state"].get("subjects") or {}
            if len(found) >= int(told.get("total", 0)) or not told["state"].get("subjects"):
                break
        return sorted(text_of(name.rpartition(".")[2]) for name in found)
