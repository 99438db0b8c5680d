"""Strays on Redis: entries of processing lists without a claim.

Other programs move jobs into a list of their own and keep no claims; they only have a heartbeat key. A search scans for
such lists by the configured pattern, a page at a time. An entry whose worker has no heartbeat, and one under a live
worker of ours without a claim (left by a fault), gets a claim whose deadline is one heartbeat timeout away; entries of
another program's live worker are left alone. The rescue later checks the heartbeat again.

A full scan of a large database takes many searches. Workers of other programs that were seen once are remembered, so
that every search checks their lists first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.jobs.claim_codec import Flag, read_claim
from wrasse.backends.redis.jobs.enqueue import CallKeys, in_ms
from wrasse.backends.redis.jobs.job_json import decode
from wrasse.backends.redis.jobs.queue_guess import Router, known_queues
from wrasse.backends.redis.jobs.states import text_of
from wrasse.backends.redis.keys import RedisKeys, pattern_glob, workers_in
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.reply_limit import scanned
from wrasse.backends.redis.scripts import load
from wrasse.errors import UsageError
from wrasse.ports.strays import StrayScan

_ENTRIES_MAX = 1_000  # of one list, per search
_REMEMBERED_MAX = 1_000
_REMEMBERED = 24 * 3_600_000  # ms since a worker's list was last seen with an entry
_START = "0"


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """An entry without a claim. `ours`: its worker is one of ours, and lives."""

    worker: str
    raw: bytes
    ours: bool


@dataclass(frozen=True, slots=True)
class _StrayScan:
    """The result of one search: entries without a claim, and workers that may be another program's."""

    entries: tuple[Unclaimed, ...]
    strangers: tuple[str, ...]
    now: int
    holders: int = 0


@reads_replies
class RedisStrays:
    """The strays of one root."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._keys = RedisKeys(client.options)

    async def look(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        if limit < 1:
            raise UsageError(f"a search through {limit} names", do="ask for at least one")
        cursor, remembered = (after, []) if after is not None else await self._saved()
        glob = pattern_glob(self._client.options.processing_list_pattern)
        scanned, names = await self._client.ask("SCAN", cursor, "MATCH", glob, "COUNT", limit, "TYPE", "list")
        found_here = workers_in(names, self._client.options.processing_list_pattern)
        workers = list(dict.fromkeys([*remembered, *found_here]))
        scan = await self._scanned(workers) if workers else _StrayScan((), (), 0)
        found = await self._without_ours(scan.entries)
        adopted = 0 if dry or not found else await adopt(self._client, self._keys, found, heartbeat_timeout)
        cursor = text_of(scanned)
        if not dry:
            await self._save(cursor, scan)
        return StrayScan(scan.holders, len(found), adopted, cursor, ended=cursor == _START)

    async def _saved(self) -> tuple[str, list[str]]:
        """The cursor of the last search, and the workers whose lists are checked in any case."""
        asked = ("GET", self._keys.strays), ("ZRANGE", self._keys.strangers, 0, _REMEMBERED_MAX - 1)
        try:
            saved, workers = await self._client.ask_many(asked)
        except WrongType:  # a scan from the start finds them too; `jobs fsck` names the key
            return _START, []
        # SCAN refuses a cursor that is not a number of 64 bits: after another program's text the scan starts again.
        right = saved is not None and saved.isdigit() and len(saved) <= 20 and int(saved) < 1 << 64
        return text_of(saved) if right else _START, [text_of(worker) for worker in workers]

    async def _save(self, cursor: str, scan: _StrayScan) -> None:
        key = self._keys.strangers
        commands: list[Sequence[Word]] = [("SET", self._keys.strays, cursor)]
        if scan.strangers:
            rows: list[Word] = [word for worker in scan.strangers for word in (scan.now, worker)]
            commands.append(("ZADD", key, *rows))
            commands.append(("ZREMRANGEBYRANK", key, 0, -_REMEMBERED_MAX - 1))
        commands.append(("ZREMRANGEBYSCORE", key, "-inf", scan.now - _REMEMBERED))
        with suppress(WrongType):  # the remembered workers only save time
            await self._client.ask_many(commands)

    async def _scanned(self, workers: Sequence[str]) -> _StrayScan:
        keys = [self._keys.where, self._keys.held, self._keys.holds, self._keys.workers]
        for worker in workers:
            keys += (self._keys.processing(worker), self._keys.heartbeat(worker))
        reply = iter(await self._client.run(load("strays"), keys, [_ENTRIES_MAX, *workers]))
        now, entries, strangers, holders = next(reply), [], [], 0
        for worker in workers:
            state, count = next(reply), next(reply)
            entries += [Unclaimed(worker, next(reply), state == b"ours") for _ in range(count)]
            holders += state != b"none"
            if state in (b"live", b"silent"):
                strangers.append(worker)
        return _StrayScan(tuple(entries), tuple(strangers), now, holders)

    async def _without_ours(self, found: Sequence[Unclaimed]) -> list[Unclaimed]:
        """Without those that an older claim of the same id has. The claims of a live worker of ours are consistent
        except after a fault, so all of them are read only then; for a worker without a heartbeat a second claim does no
        harm."""
        doubtful = [(each.worker.encode(), each.raw) for each in found if each.ours]
        if not doubtful:
            return list(found)
        async for texts in scanned(self._client, ("HSCAN", self._keys.holds), 500):
            for text in texts[1::2]:
                hold = read_claim(text)
                if (hold.worker, hold.bytes) in doubtful:
                    doubtful.remove((hold.worker, hold.bytes))
            if not doubtful:
                break
        left = set(doubtful)
        return [each for each in found if not each.ours or (each.worker.encode(), each.raw) in left]


async def adopt(client: RedisClient, keys: RedisKeys, found: Sequence[Unclaimed], heartbeat_timeout: timedelta) -> int:
    """Adds claims for these entries; returns how many got one."""
    router = Router(client.options, await known_queues(client, keys))
    call_keys = CallKeys(keys, keys.shared)
    args: list[Word] = [in_ms(heartbeat_timeout)]
    for each in found:
        args += _adoption(each, router, call_keys)
    adopted: int = await client.run(load("adopt"), call_keys.keys, args)
    return adopted


def _adoption(each: Unclaimed, router: Router, call_keys: CallKeys) -> tuple[Word, ...]:
    wire = decode(each.raw)
    route = router.route(wire)
    flags = (Flag.LEFT if each.ours else Flag.FOREIGN) | (Flag(0) if route.right else Flag.UNROUTABLE)
    token, id = (1, "") if wire is None else (wire.token + 1, wire.id)
    mark = sha1(each.worker.encode() + b"\0" + each.raw, usedforsecurity=False).hexdigest()[:16]
    where = call_keys.worker(each.worker)
    return where, int(not each.ours), f"{token}-{mark}", each.worker, route.queue, id, int(flags), each.raw
