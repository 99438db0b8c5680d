"""Damages on Redis: the looks in their order, as often as a repair needs.

A repair may uncover what it hid: an index entry of which nothing is known is dropped, and then its job's entry has no
hold. So a check that repairs looks again until it finds nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.damage.finished import FinishedJobs
from wrasse.backends.redis.damage.holds import HeldJobs
from wrasse.backends.redis.damage.kinds import Kind
from wrasse.backends.redis.damage.names import Names
from wrasse.backends.redis.damage.surroundings import recount, surroundings
from wrasse.backends.redis.damage.suspects import Judge, Suspect
from wrasse.backends.redis.key_types import KeyTypes
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.replies import reads_replies
from wrasse.ports.damage import NAMES_MAX, Damage

_ROUNDS_MAX = 5


@reads_replies
class RedisDamages:
    """The damage of one root."""

    def __init__(self, link: Link) -> None:
        self._link, self._keys = link, Keys(link.options)

    async def check(
        self, *, repair: bool, silence: timedelta, seen: Callable[[int], None] = lambda count: None
    ) -> Sequence[Damage]:
        """See the port."""
        found: dict[str, Damage] = {}
        misfits = await KeyTypes(self._link, self._keys).everywhere()
        if misfits:
            kind, names = Kind.WRONG_TYPE, tuple(map(str, misfits))
            about = kind.value.about, kind.value.repair
            found[kind.shown] = Damage(kind.shown, *about, len(misfits), 0, names[:NAMES_MAX])
        rounds = 0 if {each.key for each in misfits} & {*KeyTypes(self._link, self._keys).shared} else _ROUNDS_MAX
        for _ in range(rounds):
            judge = Judge(self._link, self._keys, repair=repair, silence=silence)
            await self._look(judge, seen, every_queue=not misfits)
            for each in judge.report():
                found[each.kind] = _sum(found[each.kind], each) if each.kind in found else each
            if not repair or not judge.found():
                break
        order = [kind.shown for kind in Kind]
        return tuple(sorted(found.values(), key=lambda each: order.index(each.kind)))

    async def _look(self, judge: Judge, seen: Callable[[int], None], *, every_queue: bool) -> None:
        # A job that is not found may be where nothing can be read.
        await judge.hear(surroundings(self._link, self._keys, seen))
        held = HeldJobs(self._link, self._keys, judge, seen)
        await judge.hear(held.suspects())
        if every_queue:
            await judge.hear(held.without_entry())
        finished = FinishedJobs(self._link, self._keys, judge, seen)
        await judge.hear(finished.suspects())
        await judge.hear(finished.letters())
        await judge.hear(finished.ways())
        names = Names(self._link, self._keys, seen)
        # Whether a job waits can be said only once all queues are known; and what a way led past looks as if it were
        # nowhere until the next look has found it.
        unknown = Kind.WHERE_LEFT_OVER if judge.repair else Kind.QUEUE_NOT_LISTED
        if every_queue and not judge.found(unknown):
            await judge.hear(names.suspects())
        await judge.hear(_tokens(max(held.token, finished.token, names.token)))
        await recount(self._link, self._keys, judge, seen)


async def _tokens(highest: int) -> AsyncIterator[Suspect]:
    if highest:
        yield Suspect(Kind.TOKEN_BEHIND, str(highest), (highest,))


def _sum(first: Damage, then: Damage) -> Damage:
    names = tuple(dict.fromkeys((*first.names, *then.names)))[:NAMES_MAX]
    return replace(first, count=first.count + then.count, repaired=first.repaired + then.repaired, names=names)
