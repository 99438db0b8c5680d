"""Waiting jobs by their ids. No index names them, so that a queued job costs no more than its bytes: a script looks
through the lists, so many entries a call.

Nothing that stays where it is can be missed. What is due moves from a delayed set to a list, and is looked for in that
order; a list is read from the end where jobs are pushed, so that what is pushed or taken meanwhile moves no entry
out of the way. Before that, one call looks at those that are served next: who deletes a page of a listing finds them
there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from wrasse.backends.redis.connection import Link
from wrasse.backends.redis.job_json import decode
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.routing import known_queues
from wrasse.backends.redis.scripts import load

ENTRIES_MAX = 20_000  # looked at per call, so that a script is over within milliseconds


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry of a queue, as it stands in its list, or in its delayed set with when it is due (ms)."""

    queue: str
    entry: bytes
    due: int | None = None

    @property
    def bytes(self) -> bytes:
        """The job's own bytes: a delayed entry begins with a number that keeps equal bytes apart."""
        return self.entry if self.due is None else self.entry.partition(b":")[2]


async def find_waiting(link: Link, keys: Keys, ids: Collection[str]) -> dict[str, Waiting]:
    """Of these ids, the jobs that wait, each where it is."""
    queues = await known_queues(link, keys)
    found: dict[str, Waiting] = {}
    for look in (Finder.served_next, Finder.entries):
        missing = [id for id in ids if id not in found]
        if missing:
            for each in await look(Finder(link, keys, missing), queues):
                wire = decode(each.bytes)
                if wire is not None and wire.id in missing:
                    found.setdefault(wire.id, each)
    return found


class Finder:
    """Looks for entries that may have one of these ids; the caller reads them and says which it was."""

    def __init__(self, link: Link, keys: Keys, ids: Collection[str]) -> None:
        self._link = link
        self._keys = keys
        self._needles = [needle for id in ids for needle in _spelled(id)]

    async def entries(self, queues: Sequence[str]) -> list[Waiting]:
        """All that may be meant, in the order they were found; one of them may be there twice."""
        found: list[Waiting] = []
        for queue in queues:
            found += await self._walk(queue, "set")
        for queue in queues:
            found += await self._walk(queue, "list")
        return found

    async def served_next(self, queues: Sequence[str]) -> list[Waiting]:
        """Those among the entries that are served next, or due next."""
        found: list[Waiting] = []
        for queue in queues:
            found += (await self._look(queue, "list", -ENTRIES_MAX, -1))[1]
            found += (await self._look(queue, "set", 0, ENTRIES_MAX - 1))[1]
        return found

    async def _walk(self, queue: str, kind: str) -> list[Waiting]:
        found: list[Waiting] = []
        seen = 0
        while True:
            count, more = await self._look(queue, kind, seen, seen + ENTRIES_MAX - 1)
            found += more
            seen += count
            if count < ENTRIES_MAX:
                return found

    async def _look(self, queue: str, kind: str, first: int, last: int) -> tuple[int, list[Waiting]]:
        names = self._keys.queue(queue)
        key = names.list if kind == "list" else names.delayed
        count, *rest = await self._link.run(load("find"), [key], [kind, first, last, *self._needles])
        return count, list(_entries(queue, rest))


def _entries(queue: str, reply: Sequence[bytes]) -> Iterator[Waiting]:
    for entry, score in zip(reply[::2], reply[1::2], strict=True):
        yield Waiting(queue, entry, int(float(score)) if score else None)


def _spelled(id: str) -> set[str]:
    """How JSON may spell this id: as it is, in ASCII, and with the escapes of Go."""
    plain = json.dumps(id, ensure_ascii=False)[1:-1]
    escaped = json.dumps(id)[1:-1]
    go = plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    go = go.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return {plain, escaped, go}
