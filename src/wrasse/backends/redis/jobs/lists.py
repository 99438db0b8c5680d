"""The lists that other programs see: as their own admin commands show and purge them, entries of processing lists
without a claim (strays), and the dead letter list beside its index.

Strays: other programs move jobs into a list of their own and keep no claims; they only have a heartbeat key. A search
scans for such lists by the configured pattern, a page at a time. An entry whose worker has no heartbeat, and one under
a live worker of ours without a claim (left by a fault), gets a claim whose deadline is one heartbeat timeout away;
entries of another program's live worker are left alone. The rescue later checks the heartbeat again. A full scan of a
large database takes many searches. Workers of other programs that were seen once are remembered, so that every search
checks their lists first.

Dead letters: what other programs push to the list is adopted into the index of dead jobs, what they purge from it is
dropped from the index. The list is the truth. It is compared with the index only if their lengths differ, which two
commands find out: its new end first, where others push, and completely only if that does not explain the difference.
The script that changes the index checks each difference again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1
from typing import TypeVar

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import ReplyTooLarge, WrongType
from wrasse.backends.redis.jobs.enqueue import CallKeys, in_ms
from wrasse.backends.redis.jobs.job_json import Router, decode, flaw, history_json, known_queues, payload_of, reason_of
from wrasse.backends.redis.jobs.pages import SLICE_MAX, ScoreRange, ServedList, slice_of, slices, workers_with
from wrasse.backends.redis.jobs.states import (
    FinishedText,
    Flag,
    dead_text,
    pack_finished,
    read_claim,
    read_finished,
    text_of,
)
from wrasse.backends.redis.keys import RedisKeys, pattern_glob, workers_in
from wrasse.backends.redis.replies import fitting, reads_replies, scanned
from wrasse.backends.redis.scripts import load
from wrasse.clock import to_micros
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.inconsistency import StrayScan
from wrasse.ports.job_lists import ListLengths, Purged
from wrasse.ports.jobs import IDS_KEPT, Reason

COMPARED_MAX = 2_000_000
"""Dead jobs up to which the list of a Redis is compared with its index as a whole; of a longer one only the new end is,
until `wrasse jobs fsck` is run."""
_STRAYS_MAX = 1_000  # of one list, per search
_WORKERS_REMEMBERED_MAX = 1_000
_WORKERS_REMEMBERED = 24 * 3_600_000  # ms since a worker's list was last seen with an entry
_SCAN_START = "0"
_BATCH = 500  # differences settled by one script
_NEW_MAX = 500  # entries searched for at the new end alone
_BESIDE = 100  # entries of the list read beyond those that are missing
_GROWN = 10_000  # entries that may be added while twice the counted number is read
_BEHIND = 1_000  # entries of the index read beyond those of the list: jobs that died at one moment have no order
T = TypeVar("T")


@reads_replies
class RedisLists:
    """The lists of one root."""

    def __init__(self, client: RedisClient) -> None:
        self._client, self._keys = client, RedisKeys(client.options)

    @property
    def names(self) -> Mapping[str, str]:
        """The key of each list that has a name."""
        queues = {name: self._keys.queue(queue).list for name, queue in self._client.options.queues.items()}
        return {**queues, "completed": self._keys.completed, "dead_letter": self._keys.dead_letter}

    async def lengths(self, limiter: str) -> ListLengths:
        """The current length of each list."""
        options, names = self._client.options, self.names
        holding = await workers_with(self._client, options.processing_list_pattern, "list")
        processing = [self._keys.processing(worker) for worker in holding]
        beating = await workers_with(self._client, options.heartbeat_key_pattern, "string")
        told = await self._client.ask_many([("LLEN", key) for key in (*names.values(), *processing)])
        ends = await self._client.ask("PTTL", limiter)
        return ListLengths(
            {f"{name}({key})": length for (name, key), length in zip(names.items(), told, strict=False)},
            {key: length for key, length in zip(processing, told[len(names) :], strict=True) if length},
            len(beating),
            timedelta(milliseconds=ends) if ends > 0 else None,
        )

    async def peek(self, key: str, count: int) -> Sequence[bytes]:
        """The right end of the list, the next one first."""
        found: list[bytes] = []
        step = count
        while len(found) < count:
            behind = len(found)
            some, step = await fitting(
                min(step, count - behind),
                lambda few: self._client.ask("LRANGE", key, -behind - few, -behind - 1),  # noqa: B023
            )
            found += some[::-1]
            if len(some) < step:
                break
        return found

    async def purge(self, limiter: str, *, force: bool, dry: bool) -> Purged:
        """Runs one script. The counter of tokens stays, since a token is never issued twice; so do remembered
        answers."""
        options, keys = self._client.options, self._keys
        beating = await workers_with(self._client, options.heartbeat_key_pattern, "string")
        holding = await workers_with(self._client, options.processing_list_pattern, "list")
        names = [*map(keys.heartbeat, beating), *map(keys.processing, holding), limiter]
        for queue in await known_queues(self._client, keys):
            own = keys.queue(queue)
            names += (own.list, own.delayed, own.wake, own.rate)
        names += (key for key in keys.shared if key not in (keys.token, *keys.requests))
        names = list(dict.fromkeys(names))
        what = "look" if dry else "force" if force else "ask"
        alive, *told = await self._client.run(load("purge"), names, [what, len(beating)])
        if alive and not (dry or force):
            return Purged({}, tuple(map(text_of, told)))
        if len(told) != len(names):
            raise StoreUnavailable("only a part of the purge was answered", do="ask again with --dry-run")
        sizes = {name: size for name, size in zip(names, told, strict=True) if size}
        return Purged(sizes, tuple(names[: len(beating)]) if alive else ())


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

    async def scan(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
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
        return StrayScan(scan.holders, len(found), adopted, cursor, ended=cursor == _SCAN_START)

    async def _saved(self) -> tuple[str, list[str]]:
        """The cursor of the last search, and the workers whose lists are checked in any case."""
        asked = ("GET", self._keys.strays), ("ZRANGE", self._keys.strangers, 0, _WORKERS_REMEMBERED_MAX - 1)
        try:
            saved, workers = await self._client.ask_many(asked)
        except WrongType:  # a scan from the start finds them too; `jobs fsck` names the key
            return _SCAN_START, []
        # SCAN refuses a cursor that is not a number of 64 bits: after another program's text the scan starts again.
        right = saved is not None and saved.isdigit() and len(saved) <= 20 and int(saved) < 1 << 64
        return text_of(saved) if right else _SCAN_START, [text_of(worker) for worker in workers]

    async def _save(self, cursor: str, scan: _StrayScan) -> None:
        key = self._keys.strangers
        commands: list[Sequence[Word]] = [("SET", self._keys.strays, cursor)]
        if scan.strangers:
            rows: list[Word] = [word for worker in scan.strangers for word in (scan.now, worker)]
            commands.append(("ZADD", key, *rows))
            commands.append(("ZREMRANGEBYRANK", key, 0, -_WORKERS_REMEMBERED_MAX - 1))
        commands.append(("ZREMRANGEBYSCORE", key, "-inf", scan.now - _WORKERS_REMEMBERED))
        with suppress(WrongType):  # the remembered workers only save time
            await self._client.ask_many(commands)

    async def _scanned(self, workers: Sequence[str]) -> _StrayScan:
        keys = [self._keys.where, self._keys.held, self._keys.holds, self._keys.workers]
        for worker in workers:
            keys += (self._keys.processing(worker), self._keys.heartbeat(worker))
        reply = iter(await self._client.run(load("strays"), keys, [_STRAYS_MAX, *workers]))
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


@dataclass(frozen=True, slots=True)
class DeadListEntry:
    """An entry of the list, and its position counted from the old end."""

    place: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Indexed:
    claim_key: bytes
    raw: bytes


async def compare_dead(client: RedisClient, keys: RedisKeys) -> bool:
    """Synchronises the index with the list if their lengths differ; returns whether they did."""
    try:
        listed, indexed = await client.ask_many([("LLEN", keys.dead_letter), ("ZCARD", keys.dead)])
    except WrongType:  # nothing to compare; `jobs fsck` names the key
        return False
    if listed == indexed:
        return False
    if 0 < listed - indexed <= _NEW_MAX and await _adopt_newest(client, keys, listed, listed - indexed):
        return True
    # The list first: jobs dead-lettered meanwhile are then in the index, and only seem to be missing from the list.
    if max(listed, indexed) > COMPARED_MAX:
        return False
    here: Counter[bytes] = Counter()
    async for raw in _as_many(client, keys.dead_letter, dead_letters(client, keys), listed):
        here[_digest(raw)] += 1
    gone: list[_Indexed] = []
    async for each in _as_many(client, keys.dead, _indexed(client, keys), indexed):
        digest = _digest(each.raw)
        if here[digest] > 0:
            here[digest] -= 1
        else:
            gone.append(each)
    unknown = +here  # only those that are left over
    for start in range(0, len(gone), _BATCH):
        await _settle(client, keys, gone[start : start + _BATCH], [])
    if unknown:
        await _adopt_unknown(client, keys, unknown)
    return True


async def _as_many(client: RedisClient, key: str, found: AsyncIterator[T], counted: int) -> AsyncIterator[T]:
    """Limits `found`, which is kept in memory: if a server sends more than it counted, the loop ends."""
    left = 2 * counted + _GROWN
    async for each in found:
        left -= 1
        if left < 0:
            raise PageLoop(client.options.where, f"the entries of {key}").endless(f"it counted {counted}")
        yield each


async def _adopt_newest(client: RedisClient, keys: RedisKeys, listed: int, missing: int) -> bool:
    """Adopts the new end of the list, if that is all that is missing: other programs push there, and a long list need
    not be read for it."""
    try:
        raws: list[bytes] = await client.ask("LRANGE", keys.dead_letter, 0, missing + _BESIDE - 1)
    except ReplyTooLarge:
        return False  # the whole list is read in pages of a safe size
    newest = await slice_of(client, keys.dead, keys.finished, ScoreRange(newest=True), None, len(raws) + _BEHIND)
    known = Counter(read_finished(each.text).bytes for each in newest.found if each.text is not None)
    unknown = Counter(raws) - known
    if unknown.total() != missing:
        return False
    new: list[DeadListEntry] = []
    for place, raw in enumerate(raws):
        if unknown[raw] > 0:
            unknown[raw] -= 1
            new.append(DeadListEntry(listed - place, raw))
    await adopt_dead(client, keys, new)
    return True


async def _adopt_unknown(client: RedisClient, keys: RedisKeys, unknown: Counter[bytes]) -> None:
    batch: list[DeadListEntry] = []
    place = 0
    async for raw in dead_letters(client, keys):
        digest, place = _digest(raw), place + 1
        if unknown[digest] <= 0:
            continue
        unknown[digest] -= 1
        batch.append(DeadListEntry(place, raw))
        if len(batch) == _BATCH:
            await adopt_dead(client, keys, batch)
            batch = []
    if batch:
        await adopt_dead(client, keys, batch)


async def adopt_dead(client: RedisClient, keys: RedisKeys, letters: Sequence[DeadListEntry]) -> None:
    """Adds these entries of the list to the index, as far as it has fewer than the list."""
    router = Router(client.options, await known_queues(client, keys))
    for start in range(0, len(letters), _BATCH):
        await _settle(client, keys, [], list(_adoptions(letters[start : start + _BATCH], router)))


async def _settle(
    client: RedisClient, keys: RedisKeys, gone: Sequence[_Indexed], new: Sequence[Sequence[Word]]
) -> None:
    args: list[Word] = [in_ms(IDS_KEPT), len(gone)]
    for each in gone:
        args += (each.claim_key, each.raw)
    for words in new:
        args += words
    await client.run(load("dead_list"), keys.shared, args)


def _adoptions(letters: Sequence[DeadListEntry], router: Router) -> Iterator[tuple[Word, ...]]:
    """Claim keys begin with the position in the list, so that jobs adopted at one moment keep their order."""
    for letter in letters:
        raw = letter.raw
        wire = decode(raw)
        route = router.route(wire)
        id, mark = "" if wire is None else wire.id, f"{letter.place:08x}{_digest(raw).hex()[:8]}"
        died = 0 if wire is None or wire.failed_at is None else to_micros(wire.failed_at) // 1_000
        claim_key = f"{0 if wire is None else wire.token}-{mark}"
        yield claim_key, died, route.queue, pack_finished(_text(raw, route.queue)), id, raw, letter.place


def _text(raw: bytes, queue: str) -> FinishedText:
    """The text of a job that another program dead-lettered. Without a reason it counts as failed."""
    wire = decode(raw)
    if wire is None:
        reason, error, id, counts, history = Reason.INVALID_PAYLOAD, flaw(raw), "", (0, 0, 0, 0), b""
    else:
        unsaid = Reason.FAILED if payload_of(wire) is not None else Reason.INVALID_PAYLOAD
        reason, error, id = reason_of(wire.reason) or unsaid, wire.error, wire.id
        counts = (wire.attempts, wire.retries, wire.rescues, wire.interruptions)
        history = history_json(wire.history) if wire.history else b""
    return dead_text(raw, queue, id, counts, reason.value, error, history)


async def dead_letters(client: RedisClient, keys: RedisKeys) -> AsyncIterator[bytes]:
    """The list from its old end, where concurrent pushes shift nothing."""
    async for entry in ServedList(client, keys.dead_letter, newest=False).entries(None, SLICE_MAX):
        yield entry.raw


async def _indexed(client: RedisClient, keys: RedisKeys) -> AsyncIterator[_Indexed]:
    async for each in slices(client, keys.dead, keys.finished, ScoreRange(), None):
        # An entry without a text matches no entry of the list.
        yield _Indexed(each.member, b"" if each.text is None else read_finished(each.text).bytes)


def _digest(raw: bytes) -> bytes:
    return sha1(raw, usedforsecurity=False).digest()
