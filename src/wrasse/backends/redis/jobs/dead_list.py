"""The dead letter list, to which other programs also push and from which they purge: what they push is adopted into the
index of dead jobs, what they remove is dropped from the index.

The list is the truth. It is compared with the index only if their lengths differ, which two commands find out: its new
end first, where others push, and completely only if that does not explain the difference. The script that changes the
index checks each difference again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import TypeVar

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import ReplyTooLarge, WrongType
from wrasse.backends.redis.jobs.claim_codec import FinishedText, dead_text, pack_finished, read_finished
from wrasse.backends.redis.jobs.enqueue import in_ms
from wrasse.backends.redis.jobs.job_json import decode, flaw, history_json, payload_of, reason_of
from wrasse.backends.redis.jobs.list_pages import ServedList
from wrasse.backends.redis.jobs.queue_guess import Router, known_queues
from wrasse.backends.redis.jobs.sorted_pages import SLICE_MAX, ScoreRange, slice_of, slices
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.scripts import load
from wrasse.clock import to_micros
from wrasse.ports.jobs import IDS_KEPT, Reason

T = TypeVar("T")
_BATCH = 500  # differences settled by one script
_NEW_MAX = 500  # entries looked for at the new end alone
_BESIDE = 100  # entries of the list read beyond those that are missing
COMPARED_MAX = 2_000_000
"""Dead jobs up to which the list of a Redis is compared with its index as a whole; of a longer one only the new end is,
until `wrasse jobs fsck` is run."""
_GROWN = 10_000  # entries that may be added while twice the counted number is read
_BEHIND = 1_000  # entries of the index read beyond those of the list: jobs that died at one moment have no order


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
        await _adopt(client, keys, unknown)
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
    router = Router(client.options, await known_queues(client, keys))
    new: list[DeadListEntry] = []
    for place, raw in enumerate(raws):
        if unknown[raw] > 0:
            unknown[raw] -= 1
            new.append(DeadListEntry(listed - place, raw))
    await _settle(client, keys, [], list(_adoptions(new, router)))
    return True


async def _adopt(client: RedisClient, keys: RedisKeys, unknown: Counter[bytes]) -> None:
    router = Router(client.options, await known_queues(client, keys))
    batch: list[DeadListEntry] = []
    place = 0
    async for raw in dead_letters(client, keys):
        digest, place = _digest(raw), place + 1
        if unknown[digest] <= 0:
            continue
        unknown[digest] -= 1
        batch.append(DeadListEntry(place, raw))
        if len(batch) == _BATCH:
            await _settle(client, keys, [], list(_adoptions(batch, router)))
            batch = []
    if batch:
        await _settle(client, keys, [], list(_adoptions(batch, router)))


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
