"""Whether a stream is still the one that its cursor is about, or was set back: by a failover that lost entries, or by a
backup that was restored.

Entries that are appended after that may get ids at or below the cursor, and would never be read. So this is asked
before anything is read or marked. A stream that ends before its archives, or ever held less than they do, was set back.
After the backend became another (`StreamState.history`) it may have grown past both already, and then the entries are
counted: as many as were archived must stand up to the cursor, and its own entry must be there unless it was trimmed.
Where all of them were trimmed, as many must have been: a server that lost its disk has trimmed nothing.
"""

from __future__ import annotations

from dataclasses import replace

from wrasse.archives.cursor import Cursor
from wrasse.archives.facts import Facts
from wrasse.errors import Refused, StoreUnavailable
from wrasse.ports.streams import START, Streams, StreamState

_PAGE = 1_000


async def check_continuity(streams: Streams, cursor: Cursor, state: StreamState, group: str) -> None:
    """Raises Refused if the stream was set back."""
    last = state.last or START
    if last < cursor.after or (cursor.passed is not None and state.appended < cursor.passed):
        raise set_back(cursor, f"it ends at {last} and ever held {state.appended} entries")
    if cursor.history and not state.history:
        raise StoreUnavailable(
            f"it cannot be told which server holds {cursor.subject!r}: connections come and go",
            do="look at the servers of the streams",
        )
    if cursor.history in ("", state.history):
        return
    gone = state.appended - state.length
    if state.first is None or state.first > cursor.after:
        if cursor.passed is not None and gone < cursor.passed:
            raise set_back(cursor, f"it begins anew at {state.first}, and only {gone} entries before that were trimmed")
    elif cursor.after > START:
        found = await streams.read(cursor.subject, cursor.after.previous, 1)
        if not found.items or found.items[0].id != cursor.after:
            raise set_back(cursor, f"after a failover or a restart it has no entry {cursor.after} any more")
    beyond = await _beyond(streams, cursor, state, group)
    if beyond is not None and cursor.passed is not None and state.appended - beyond != cursor.passed:
        raise set_back(
            cursor,
            f"after a failover or a restart it held {state.appended - beyond} entries up to {cursor.after},"
            f" and {cursor.passed} were archived",
        )


async def check_archive(streams: Streams, subject: str, facts: Facts, state: StreamState, group: str) -> Cursor:
    """The cursor that the newest archive of a stream would have left; Refused if it is not about the stream as it is
    now. Asked where nothing else says how far it is archived."""
    cursor = Cursor(subject, facts.last, facts.passed, history="of whoever wrote it")
    await check_continuity(streams, cursor, replace(state, history=state.history or "of this one"), group)
    return cursor


async def _beyond(streams: Streams, cursor: Cursor, state: StreamState, group: str) -> int | None:
    """How many entries follow the cursor; None where the backend cannot count."""
    mine = next((each for each in state.groups if each.name == group), None)
    if mine is None or mine.lag is None or mine.delivered > cursor.after:
        return None
    count, at = mine.lag, mine.delivered
    while at < cursor.after:
        stretch = await streams.stretch(cursor.subject, at, _PAGE)
        for place in range(len(stretch)):
            at = stretch.id(place)
            if at > cursor.after:
                break
            count -= 1
        if not stretch.more:
            break
    return count


def set_back(cursor: Cursor, why: str) -> Refused:
    """The alarm, with the way on."""
    return Refused(
        f"the stream {cursor.subject!r} was set back: {why}, and archives go on to {cursor.after}",
        do=f"see what was lost; then `wrasse archives restart {cursor.subject}` archives what is new in it",
    )
