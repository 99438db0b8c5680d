"""What is ready in each queue, as far as this process knows: signs in the order of service, listed when they run out.

A list may be out of date at any moment: whoever takes a job by its sign reads the record, and of two who take one one
wins. So a list that is wrong costs a request and nothing else. Bounded: a page of signs for each queue.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from wrasse.clock import Clock, from_micros, to_micros
from wrasse.jobs.recorded_names import Sign
from wrasse.jobs.recorded_store import RecordedStore

PAGE = 200
LISTED_FOR = 5.0  # seconds; then the list is read anew, since others may have put what goes first
SEEN_MAX = 10_000
QUEUES_MAX = 1_000


@dataclass(slots=True)
class _List:
    signs: list[tuple[str, Sign]] = field(default_factory=list)  # by name, which is their order
    last: str | None = None  # what is after this is not known; None: all was
    listed_at: float = float("-inf")


class Ready:
    """The lists of all queues."""

    def __init__(self, store: RecordedStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lists: OrderedDict[str, _List] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()  # signs whose job was taken: they never count again

    def note(self, queue: str, sign: Sign) -> None:
        """A sign that this process made: it takes its place in a list that is known."""
        known = self._lists.get(queue)
        if known is not None and (known.last is None or sign.name < known.last) and len(known.signs) < 2 * PAGE:
            insort(known.signs, (sign.name, sign), key=lambda each: each[0])

    def spent(self, sign: Sign) -> None:
        """Its job was taken: it never counts again."""
        self._over[sign.name] = None
        if len(self._over) > SEEN_MAX:
            self._over.popitem(last=False)

    def fresh(self, queue: str) -> bool:
        """Whether a list is known and new enough to be served from."""
        known = self._lists.get(queue)
        return known is not None and self._clock.monotonic() - known.listed_at < LISTED_FOR

    def pop(self, queue: str, count: int, at: datetime) -> list[Sign]:
        """The next signs whose moment has come; they leave the list."""
        known = self._lists.get(queue)
        if known is None:
            return []
        found: list[Sign] = []
        now = to_micros(at)
        while known.signs and len(found) < count:
            sign = known.signs[0][1]
            if sign.turn > 0 and sign.ready_at > now:
                break
            del known.signs[0]
            if sign.name not in self._over:
                found.append(sign)
        return found

    def ends(self, queue: str) -> bool:
        """Whether all signs of the queue were listed."""
        known = self._lists.get(queue)
        return known is None or known.last is None

    async def list(self, queue: str, *, on: bool = False) -> None:
        """Lists a queue from its beginning, or goes `on` where the last listing stopped. One request."""
        known = self._lists.get(queue)
        after = known.last if on and known is not None else None
        signs, more = await self._store.signs(self._store.names.queue(queue), after, PAGE)
        fresh = _List([(sign.name, sign) for sign in signs], listed_at=self._clock.monotonic())
        fresh.last = signs[-1].name if more and signs else None
        self._lists[queue] = fresh
        if len(self._lists) > QUEUES_MAX:
            self._lists.popitem(last=False)

    def next_at(self, queue: str) -> datetime | None:
        """When the first job that is not ready yet becomes so, if one is known."""
        known = self._lists.get(queue)
        return from_micros(known.signs[0][1].ready_at) if known is not None and known.signs else None
