"""Where in a stream a moment is: the last entry before it, found by halving, since ids only grow. And the id of a
sequence, which the entry that follows it tells."""

from __future__ import annotations

from wrasse.backends.nats.lanes import Lane, Lanes
from wrasse.ports.streams import START, EntryId


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


async def place_after(lanes: Lanes, lane: Lane, seq: int, tip: EntryId | None = None) -> EntryId:
    """The highest id that everything up to this sequence has or is below of, also where that is not stored any more:
    the one before the entry that follows; of the last entry its own."""
    if not seq:
        return START
    if tip is None:
        last = await lanes.reader.one(lane.stream, {"last_by_subj": lane.subject}, leader=True)
        tip = START if last is None else last.id
    if seq < tip.seq:
        following = await lanes.reader.one(lane.stream, {"seq": seq + 1, "next_by_subj": lane.subject}, leader=True)
        if following is not None:
            return following.id.previous
    return EntryId(tip.ms, max(tip.seq, seq))
