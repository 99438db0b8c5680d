"""Finds waiting jobs by their ids. No index names them, so that a queued job costs no more than its bytes: a script
scans the lists, a bounded number of entries and bytes per call.

A job that does not move cannot be missed. A due job moves from a delayed set to a list, and both are scanned in that
order; a list is scanned from the end where jobs are pushed, so that concurrent pushes and claims skip no entry. Before
that, one call scans the entries that are served next: a delete of a page of a listing finds them there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.jobs.job_json import decode
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.replies import usable_queues
from wrasse.backends.redis.scripts import load
from wrasse.bounded import clamped_ms

ENTRIES_MAX, BYTES_MAX = 5_000, 32 << 20  # scanned per call, so that a script ends within milliseconds


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """An entry of a queue in its list, or in its delayed set with its due time (ms). `at` is its position when it was
    found, from the end that moves less."""

    queue: str
    entry: bytes
    due: int | None = None
    at: int = 0

    @property
    def kind(self) -> str:
        """The kind of its entry."""
        return "list" if self.due is None else "set"

    @property
    def bytes(self) -> bytes:
        """The job's own bytes: a scheduled entry begins with a number that keeps equal bytes apart."""
        return self.entry if self.due is None else self.entry.partition(b":")[2]


async def find_waiting(client: RedisClient, keys: RedisKeys, ids: Collection[str]) -> dict[str, WaitingJob]:
    """The waiting jobs with these ids. Ends once all are found."""
    queues = await usable_queues(client, keys)
    found: dict[str, WaitingJob] = {}
    async for each in _scans(client, keys, ids, queues):
        for waiting in each:
            wire = decode(waiting.bytes)
            if wire is not None and wire.id in ids:
                found.setdefault(wire.id, waiting)
        if len(found) == len(ids):
            break
    return found


async def _scans(
    client: RedisClient, keys: RedisKeys, ids: Collection[str], queues: Sequence[str]
) -> AsyncIterator[list[WaitingJob]]:
    """Possible matches, call by call; the same entry may come twice."""
    needles = [needle for id in ids for needle in _spelled(id)]
    most = min(BYTES_MAX, client.options.reply_bytes_max // 3)

    async def scan(queue: str, kind: str, first: int, last: int) -> tuple[int, list[WaitingJob]]:
        """The number of entries scanned, 0 at the end; and the matches."""
        names = keys.queue(queue)
        key = names.list if kind == "list" else names.delayed
        count, more, *rest = await client.run(load("find"), [key], [kind, first, last, most, *needles])
        return count if more else 0, list(_entries(queue, rest))

    for queue in queues:
        yield (await scan(queue, "list", -ENTRIES_MAX, -1))[1]
    for kind, queue in [(kind, queue) for kind in ("set", "list") for queue in queues]:
        seen, count, page_loop = 0, 1, PageLoop(client.options.where, "a search for waiting jobs")
        while count > 0:
            page_loop.turn(seen)
            count, found = await scan(queue, kind, seen, seen + ENTRIES_MAX - 1)
            seen += count
            yield found


def _entries(queue: str, reply: Sequence[Any]) -> Iterator[WaitingJob]:
    for entry, score, at in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
        yield WaitingJob(queue, entry, clamped_ms(score) if score else None, at)


def _spelled(id: str) -> set[str]:
    """The spellings of this id in JSON: unchanged, in ASCII, and with the escapes of Go."""
    plain = json.dumps(id, ensure_ascii=False)[1:-1]
    escaped = json.dumps(id)[1:-1]
    go = plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    go = go.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return {plain, escaped, go}
