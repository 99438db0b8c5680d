"""Deletes of jobs that nobody holds. What waits is looked for first; the script removes it by its very bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.finding import Waiting, find_waiting
from wrasse.backends.redis.job_json import decode
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.moves import SCRIPT_BYTES_MAX
from wrasse.backends.redis.puts import Ring, in_ms
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.settles import outcomes, take_of
from wrasse.backends.redis.wire import Word
from wrasse.ports.jobs import Delete, Place
from wrasse.ports.outcome import Outcome

_FINISHED = {Place.DONE: "D", Place.DEAD: "X"}


async def delete(link: Link, keys: Keys, deletes: Sequence[Delete], ids_kept: timedelta) -> tuple[Outcome, ...]:
    """Deletes each that is still in its place under its token."""
    ids = list(dict.fromkeys(each.hold.id for each in deletes if each.place is Place.READY))
    waiting = await find_waiting(link, keys, ids) if ids else {}
    ring = Ring(keys, keys.shared)
    items = [_item(each, ring, waiting) for each in deletes]
    left = [item for item in items if item]
    ends: list[Outcome] = []
    while left:
        sent = left[: _fitting(left)]
        args = [in_ms(ids_kept), SCRIPT_BYTES_MAX, len(sent), *(word for item in sent for word in item)]
        some = outcomes(await link.run(load("delete"), ring.keys, args))
        if not 0 < len(some) <= len(sent):
            raise ValueError(f"{len(some)} outcomes of {len(sent)} deletes")
        ends += some
        del left[: len(some)]  # the script ends early where finished jobs are large
    answer = iter(ends)
    return tuple(next(answer) if item else Outcome.LOST for item in items)


def _fitting(items: Sequence[Sequence[Word]]) -> int:
    """How many of these one script deletes."""
    size = 0
    for count, item in enumerate(items):
        if size > SCRIPT_BYTES_MAX:
            return count
        size += sum(len(word) for word in item if isinstance(word, bytes))
    return len(items)


def _item(each: Delete, ring: Ring, waiting: Mapping[str, Waiting]) -> tuple[Word, ...]:
    """The arguments of one delete; none if there is nothing to delete."""
    if each.place in _FINISHED:
        return _FINISHED[each.place], take_of(each.hold)
    found = waiting.get(each.hold.id) if each.place is Place.READY else None
    wire = None if found is None else decode(found.bytes)
    if found is None or wire is None or (wire.token, wire.nonce) != (each.hold.token, each.hold.nonce):
        return ()
    group = "" if wire.counted else wire.group
    return "W", ring.queue(found.queue), found.kind, found.entry, found.at, wire.id, group, wire.unique
