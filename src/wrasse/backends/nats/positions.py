"""Where in a stream a moment is: the last entry before it, found by halving, since ids only grow."""

from __future__ import annotations

from wrasse.backends.nats.lanes import Lane, Lanes
from wrasse.ports.streams import EntryId


async def last_upto(lanes: Lanes, lane: Lane, upto: EntryId, first: int, last: int) -> EntryId | None:
    """The newest entry from sequence `first` to `last` whose id is not above `upto`; None if there is none. Where the
    subject shares its stream, `first` and `last` need not be its own."""
    found: EntryId | None = None
    while first <= last:
        middle = (first + last + 1) // 2
        message = await lanes.reader.one(lane.stream, {"seq": middle, "next_by_subj": lane.subject})
        if message is None or message.seq > last:
            last = middle - 1
        elif message.id <= upto:
            found = message.id
            first = message.seq + 1
        else:
            last = middle - 1
    return found
