"""Groups of earlier versions, which kept a ledger of commands: read once, so that they continue at their position.

A group that is joined becomes a durable (or a mark) that begins after what its ledger had settled, and only then is the
ledger removed: after a crash in between the next join removes it. Entries that the ledger does not prove to be settled
are delivered again. Workers of an earlier version that still run then fail with "there is no group".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.layout import NatsNames
from wrasse.backends.nats.page_reader import PageReader
from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken
from wrasse.ports.streams import EntryId

_PAGE = 1_000
_SNAPSHOT, _POSITIONS, _ACKS, _GONE = "S", ("j", "m"), ("a", "n"), "g"
_ACK = 0


class LedgerGroups:
    """The ledgers that are left in the stream of books."""

    def __init__(self, js: JetStream, layout: NatsNames, reader: PageReader) -> None:
        self._js = js
        self._layout = layout
        self._reader = reader

    async def floor(self, subject: str, group: str) -> EntryId | None:
        """Up to where a ledger proves all entries settled; None if there is no ledger."""
        name, bodies, after = self._layout.ledger(subject, group), list[bytes](), 0
        if await self._reader.one(self._layout.books, {"last_by_subj": name}, leader=True) is None:
            return None
        more = True
        while more:
            page, more = await self._reader.page(self._layout.books, name, after, _PAGE)
            bodies += [message.body for message in page]
            after = page[-1].seq if page else after
        return floor_of(bodies)

    async def remove(self, subject: str, group: str) -> None:
        """Deletes a ledger."""
        await self._js.call(f"STREAM.PURGE.{self._layout.books}", {"filter": self._layout.ledger(subject, group)})


def floor_of(bodies: Iterable[bytes]) -> EntryId:
    """The position up to which a ledger settled everything; lower if uncertain. Pure."""
    floor, settled = EntryId(0, 0), dict[int, int]()  # ranges: first sequence and the one behind the last
    try:
        for kind, version, _, told in map(json.loads, bodies):
            if version != 1:
                raise ValueError("another version")
            if kind == _SNAPSHOT:
                floor, settled = _snapshot(told)
            elif kind in _POSITIONS and told[1] >= floor.seq:
                floor = EntryId(told[0], told[1])
            elif kind in _ACKS:
                settled |= {answer[1]: answer[1] + answer[2] for answer in told[1] if answer[0] == _ACK}
            elif kind == _GONE:
                settled |= {seq: seq + count for seq, count in told[0]}
    except UNREADABLE as error:
        raise StoreBroken("a ledger of a group cannot be read", do="look at the stream of books") from error
    for first, end in sorted(settled.items()):
        if first <= floor.seq + 1 < end:
            floor = EntryId(floor.ms, end - 1)
    return floor


def _snapshot(told: dict[str, Any]) -> tuple[EntryId, dict[int, int]]:
    """The floor of a whole state, and what is settled between the runs that are pending above it."""
    ms, delivered = told["delivered"]
    runs = sorted((run[0], run[0] + run[1], run[2]) for run in told["runs"])
    if not runs:
        return EntryId(ms, delivered), {}
    ends = [*(first for first, _, _ in runs[1:]), delivered + 1]
    between = {end: following for (_, end, _), following in zip(runs, ends, strict=True) if end < following}
    return EntryId(runs[0][2], runs[0][0]).previous, between
