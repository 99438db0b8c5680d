"""The consistency check on Redis: its passes in their order, as often as a repair needs.

A repair may reveal another inconsistency: an index entry without a claim is dropped, and then its job's entry has no
claim. So a check that repairs runs again until it finds nothing.

The passes read everything but what is remembered by a job's id (`fsck_suspects`): running jobs (the index of claims,
the claims, and the entries of the processing lists); finished jobs (their texts, the two indexes, the dead letter list,
and the index of jobs by id); then heartbeats, workers, remembered answers, the names of queues, the counts of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.fsck_suspects import GROUP_MAX, FsckSuspect, Judge, Kind, NamesFound
from wrasse.backends.redis.jobs.job_json import decode, known_queues
from wrasse.backends.redis.jobs.lists import dead_letters
from wrasse.backends.redis.jobs.pages import (
    Seen,
    claim_keys_of,
    digest,
    entries,
    find_waiting,
    keys_like,
    pairs,
    scores,
    there,
    workers_with,
)
from wrasse.backends.redis.jobs.states import ClaimKey, read_claim, read_finished, text_of
from wrasse.backends.redis.keys import RedisKeys, pattern_glob, workers_in
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.replies import KeyTypes, reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.ports.inconsistency import NAMES_MAX, Inconsistency
from wrasse.ports.jobs import JobState

_ROUNDS_MAX = 5  # of a check that repairs
_BESIDE = (":delayed", ":wake", ":rate")  # the suffixes of a queue's other keys
_COUNTED_MAX = 20_000  # in one script, which then ends within some 20 ms
_KINDS_OF_STATE = {
    "held": (
        Kind.UNREADABLE,
        Kind.INDEX_WITHOUT_CLAIM,
        Kind.CLAIM_WITHOUT_INDEX,
        Kind.CLAIM_LEFT_OVER,
        Kind.ENTRY_WITHOUT_CLAIM,
    ),
    "done": (Kind.FINISHED_WITHOUT_INDEX, Kind.INDEX_WITHOUT_FINISHED),
    "dead": (
        Kind.FINISHED_WITHOUT_INDEX,
        Kind.INDEX_WITHOUT_FINISHED,
        Kind.DEAD_WITHOUT_ENTRY,
        Kind.DEAD_ENTRY_WITHOUT_INDEX,
    ),
}
_Place = tuple[str, bytes]  # a worker, and the digest of an entry in its list


@reads_replies
class RedisFsck:
    """The consistency check of one root."""

    def __init__(self, client: RedisClient) -> None:
        self._client, self._keys = client, RedisKeys(client.options)

    async def check(
        self, *, repair: bool, heartbeat_timeout: timedelta, seen: Callable[[int], None] = lambda count: None
    ) -> Sequence[Inconsistency]:
        found: dict[str, Inconsistency] = {}
        misfits = await KeyTypes(self._client, self._keys).everywhere()
        if misfits:
            kind, names = Kind.WRONG_TYPE, tuple(map(str, misfits))
            about = kind.value.about, kind.value.repair
            found[kind.shown] = Inconsistency(kind.shown, *about, len(misfits), 0, names[:NAMES_MAX])
        passes = 0 if {each.key for each in misfits} & {*KeyTypes(self._client, self._keys).shared} else _ROUNDS_MAX
        for _ in range(passes):
            judge = Judge(self._client, self._keys, repair=repair, heartbeat_timeout=heartbeat_timeout)
            await self._pass(judge, seen, every_queue=not misfits)
            for each in judge.report():
                found[each.kind] = _sum(found[each.kind], each) if each.kind in found else each
            if not repair or not judge.found():
                break
        order = [kind.shown for kind in Kind]
        return tuple(sorted(found.values(), key=lambda each: order.index(each.kind)))

    async def _pass(self, judge: Judge, seen: Callable[[int], None], *, every_queue: bool) -> None:
        # A job that is not found may be in a key that cannot be read.
        await judge.judge_all(other_suspects(self._client, self._keys, seen))
        held = ClaimedJobsFound(self._client, self._keys, judge, seen)
        await judge.judge_all(held.suspects())
        if every_queue:
            await judge.judge_all(held.without_entry())
        finished = FinishedJobsFound(self._client, self._keys, judge, seen)
        await judge.judge_all(finished.suspects())
        await judge.judge_all(finished.letters())
        await judge.judge_all(finished.ways())
        names = NamesFound(self._client, self._keys, seen)
        # Whether a job waits is known only once all queues are known; and a job that the index led past seems missing
        # until the next pass has found it.
        unknown = Kind.WHERE_LEFT_OVER if judge.repair else Kind.QUEUE_NOT_LISTED
        if every_queue and not judge.found(unknown):
            await judge.judge_all(names.suspects())
        await judge.judge_all(_tokens(max(held.token, finished.token, names.token)))
        await recount(self._client, self._keys, judge, seen)


async def _tokens(highest: int) -> AsyncIterator[FsckSuspect]:
    if highest:
        yield FsckSuspect(Kind.TOKEN_BEHIND, str(highest), (highest,))


def _sum(first: Inconsistency, then: Inconsistency) -> Inconsistency:
    names = tuple(dict.fromkeys((*first.names, *then.names)))[:NAMES_MAX]
    return replace(first, count=first.count + then.count, repaired=first.repaired + then.repaired, names=names)


class ClaimedJobsFound:
    """The findings of one pass over running jobs."""

    def __init__(self, client: RedisClient, keys: RedisKeys, judge: Judge, seen: Seen) -> None:
        self.client, self.keys, self.judge, self.seen = client, keys, judge, seen
        self.token = 0  # the highest that was seen
        self._claim_keys: dict[_Place, list[bytes]] = {}
        self._ids: dict[bytes, str] = {}

    async def suspects(self) -> AsyncIterator[FsckSuspect]:
        """All but claims without an entry, for which see `without_entry`."""
        async for page in pairs(self.client, self.keys.held, self.seen):
            claim_keys = [claim_key for claim_key, _ in page]
            for claim_key, known in zip(claim_keys, await there(self.client, self.keys.holds, claim_keys), strict=True):
                self.token = max(self.token, ClaimKey.of(claim_key).token)
                if not known:
                    yield FsckSuspect(Kind.INDEX_WITHOUT_CLAIM, text_of(claim_key), (claim_key,))
        async for page in pairs(self.client, self.keys.holds, self.seen, large=True):
            async for suspect in self._holds(page):
                yield suspect
        async for suspect in self._entries():
            yield suspect

    async def _holds(self, page: Sequence[tuple[bytes, bytes]]) -> AsyncIterator[FsckSuspect]:
        claim_keys, texts = [claim_key for claim_key, _ in page], [read_claim(text) for _, text in page]
        (index,) = await scores(self.client, [self.keys.held], claim_keys)
        newest = await claim_keys_of(self.client, self.keys, [text.id for text in texts])
        for claim_key, text, score, other in zip(claim_keys, texts, index, newest, strict=True):
            self.token = max(self.token, ClaimKey.of(claim_key).token)
            if not text.readable:
                place = self.keys.shared.index(self.keys.holds) + 1
                yield FsckSuspect(Kind.UNREADABLE, f"the claim {text_of(claim_key)}", (place, claim_key, text.bytes))
                continue
            known = self._claim_keys.setdefault((text_of(text.worker), digest(text.bytes)), [])
            if claim_key not in known:
                known.append(claim_key)
            self._ids[claim_key] = text_of(text.id)
            if score is None:
                yield FsckSuspect(Kind.CLAIM_WITHOUT_INDEX, text_of(text.id), (claim_key,))
            if other is None and text.id:
                yield FsckSuspect(Kind.WHERE_MISSING, text_of(text.id), (text.id, claim_key))

    async def _entries(self) -> AsyncIterator[FsckSuspect]:
        met: Counter[_Place] = Counter()
        for worker in await workers_with(self.client, self.client.options.processing_list_pattern, "list"):
            async for raw in entries(self.client, self.keys.processing(worker), self.seen):
                place = worker, digest(raw)
                claim_keys = self._claim_keys.get(place, [])
                met[place] += 1
                if met[place] == len(claim_keys) + 1:
                    words: tuple[Word, ...] = (worker, raw, *claim_keys[:GROUP_MAX])
                    yield FsckSuspect(Kind.ENTRY_WITHOUT_CLAIM, worker, words, worker, raw=raw)
        # From here on only entries that are missing matter.
        self._claim_keys = {
            place: claim_keys for place, claim_keys in self._claim_keys.items() if len(claim_keys) > met[place]
        }

    async def without_entry(self) -> AsyncIterator[FsckSuspect]:
        """Claims without an entry, by whether their jobs are stored anywhere else. After `suspects`."""
        missing = [
            FsckSuspect(Kind.CLAIM_LEFT_OVER, self._ids[claim_keys[0]], tuple(claim_keys[:GROUP_MAX]), worker)
            for (worker, _), claim_keys in self._claim_keys.items()
        ]
        confirmed = await self.judge.confirmed(missing)
        for start in range(0, len(confirmed), GROUP_MAX):
            some = confirmed[start : start + GROUP_MAX]
            elsewhere = await self._elsewhere(some)
            for each in some:
                yield each if each.name in elsewhere else replace(each, kind=Kind.ENTRY_LOST)

    async def _elsewhere(self, suspects: Sequence[FsckSuspect]) -> set[str]:
        """The ids of jobs that are stored elsewhere. A job without an id cannot be searched for: it is put back."""
        ids = [each.name for each in suspects if each.name]
        found = set(await find_waiting(self.client, self.keys, ids)) if ids else set()
        newest = await claim_keys_of(self.client, self.keys, ids)
        own = {each.name: {*each.words} for each in suspects}
        found |= {
            id for id, claim_key in zip(ids, newest, strict=True) if claim_key is not None and claim_key not in own[id]
        }
        workers = await workers_with(self.client, self.client.options.processing_list_pattern, "list")
        lists = [self.keys.completed, self.keys.dead_letter, *map(self.keys.processing, workers)]
        for each in suspects:
            if each.name not in found and await self._listed(each, lists):
                found.add(each.name)
        return found

    async def _listed(self, suspect: FsckSuspect, lists: Sequence[str]) -> bool:
        """Whether one of these lists has the same bytes: another worker claimed them, or another program finished the
        job."""
        text = await self.client.ask("HGET", self.keys.holds, suspect.words[0])
        if text is None:
            return True
        raw = read_claim(text).bytes
        return any(found is not None for found in await self.client.ask_many([("LPOS", key, raw) for key in lists]))


class FinishedJobsFound:
    """The findings of one pass over finished jobs."""

    def __init__(self, client: RedisClient, keys: RedisKeys, judge: Judge, seen: Seen) -> None:
        self.client, self.keys, self.judge, self.seen = client, keys, judge, seen
        self.token = 0  # the highest that was seen
        self._dead: dict[bytes, list[bytes]] = {}  # digest of a dead job to its claims

    async def suspects(self) -> AsyncIterator[FsckSuspect]:
        """Texts that no index names, and index entries without a text."""
        async for page in pairs(self.client, self.keys.finished, self.seen, large=True):
            claim_keys = [claim_key for claim_key, _ in page]
            texts = [read_finished(text) for _, text in page]
            done, dead = await scores(self.client, [self.keys.done, self.keys.dead], claim_keys)
            newest = await claim_keys_of(self.client, self.keys, [text.id for text in texts])
            for claim_key, text, *known, way in zip(claim_keys, texts, done, dead, newest, strict=True):
                self.token = max(self.token, ClaimKey.of(claim_key).token)
                if text.state is JobState.DEAD and claim_key not in (
                    same := self._dead.setdefault(digest(text.bytes), [])
                ):
                    same.append(claim_key)
                if known == [None, None]:
                    yield FsckSuspect(Kind.FINISHED_WITHOUT_INDEX, text_of(text.id), (claim_key,))
                if way is None and text.id:
                    yield FsckSuspect(Kind.WHERE_MISSING, text_of(text.id), (text.id, claim_key))
        for index in (self.keys.done, self.keys.dead):
            async for page in pairs(self.client, index, self.seen):
                claim_keys = [claim_key for claim_key, _ in page]
                known_here = await there(self.client, self.keys.finished, claim_keys)
                for claim_key, is_known in zip(claim_keys, known_here, strict=True):
                    if not is_known:
                        yield FsckSuspect(Kind.INDEX_WITHOUT_FINISHED, text_of(claim_key), (claim_key,))

    async def letters(self) -> AsyncIterator[FsckSuspect]:
        """Compares the dead letter list with the index. After `suspects`."""
        met: Counter[bytes] = Counter()
        new: list[FsckSuspect] = []
        place = 0
        async for raw in dead_letters(self.client, self.keys):
            self.seen(1)
            mark, place = digest(raw), place + 1
            claim_keys = self._dead.get(mark, [])
            met[mark] += 1
            if met[mark] > len(claim_keys):
                name = "" if (wire := decode(raw)) is None else wire.id
                words: tuple[Word, ...] = (raw, place, met[mark], *claim_keys[:GROUP_MAX])
                new.append(FsckSuspect(Kind.DEAD_ENTRY_WITHOUT_INDEX, name, words, raw=raw, place=place))
        for mark, claim_keys in self._dead.items():
            if len(claim_keys) > met[mark]:
                yield FsckSuspect(Kind.DEAD_WITHOUT_ENTRY, text_of(claim_keys[0]), tuple(claim_keys[:GROUP_MAX]))
        # An index entry without a text stands for a dead letter, and is an inconsistency of its own kind.
        for each in new[self.judge.tally(Kind.INDEX_WITHOUT_FINISHED).count :] if not self.judge.repair else new:
            yield each

    async def ways(self) -> AsyncIterator[FsckSuspect]:
        """Ids that lead to no job."""
        async for page in pairs(self.client, self.keys.where, self.seen):
            claim_keys = [claim_key for _, claim_key in page]
            held, done, dead = await scores(self.client, [self.keys.held, self.keys.done, self.keys.dead], claim_keys)
            for (id, claim_key), *known in zip(page, held, done, dead, strict=True):
                if known == [None, None, None]:
                    yield FsckSuspect(Kind.WHERE_LEFT_OVER, text_of(id), (id, claim_key))


async def other_suspects(client: RedisClient, keys: RedisKeys, seen: Seen) -> AsyncIterator[FsckSuspect]:
    """All but the counts."""
    for n, key in enumerate(keys.requests, 1):
        if await client.ask("PTTL", key) == -1:
            yield FsckSuspect(Kind.REQUESTS_WITHOUT_END, key, (n,))
    async for page in pairs(client, keys.workers_info, seen):
        workers = [text_of(worker) for worker, _ in page]
        (rows,) = await scores(client, [keys.workers], workers)
        for worker, row in zip(workers, rows, strict=True):
            if row is None:
                yield FsckSuspect(Kind.WORKER_LEFT_OVER, worker, (worker,))
    for worker in await workers_with(client, client.options.heartbeat_key_pattern, "string"):
        if await client.ask("PTTL", keys.heartbeat(worker)) == -1:
            yield FsckSuspect(Kind.HEARTBEAT_WITHOUT_END, worker, worker=worker)
    known = set(await known_queues(client, keys))
    async for name in _queues(client, keys):
        if name not in known:
            yield FsckSuspect(Kind.QUEUE_NOT_LISTED, name, (name,), queue=name)


async def _queues(client: RedisClient, keys: RedisKeys) -> AsyncIterator[str]:
    """Queues by their keys on the server. One whose name is its key is known by a job in it."""
    before = f"{keys.root}:queue:"
    for kind, end in (("list", ""), ("zset", ":delayed")):
        async for names in keys_like(client, pattern_glob(f"{keys.root}:%s{end}"), kind):
            for key in map(text_of, names):
                name = key.removesuffix(end)
                if not end and key.endswith(_BESIDE):
                    continue
                if key.startswith(before):
                    yield name.removeprefix(before)
                elif end or (not _is_ours(key, keys, client.options) and await _has_job(client, key)):
                    yield name


def _is_ours(key: str, keys: RedisKeys, options: RedisOptions) -> bool:
    return key in keys.shared or any(workers_in([key.encode()], options.processing_list_pattern))


async def _has_job(client: RedisClient, key: str) -> bool:
    raw = await client.ask("LINDEX", key, -1)
    return raw is not None and decode(raw) is not None


async def recount(client: RedisClient, keys: RedisKeys, judge: Judge, seen: Seen) -> None:
    """Compares the counts of jobs with the jobs. Other inconsistencies of a state are repaired first."""
    indexes = {"held": (keys.holds, keys.held), "done": (keys.finished, keys.done), "dead": (keys.finished, keys.dead)}
    for place, (texts, index) in indexes.items():
        if judge.found(*_KINDS_OF_STATE[place]):
            continue
        names = [texts, keys.counts, index]
        counted, *wrong = await client.run(load("recount"), names, [place, _COUNTED_MAX, int(judge.repair)])
        if not counted:
            wrong = await _recount_many(client, keys, place, texts, judge, seen)
        for name in map(text_of, wrong):
            judge.tally(Kind.WRONG_COUNT).add(f"{place}:{name}", 1, repaired=int(judge.repair))


async def _recount_many(
    client: RedisClient, keys: RedisKeys, place: str, texts: str, judge: Judge, seen: Seen
) -> list[bytes]:
    """Too many for one script. They are read page by page, which counts only if no count changed meanwhile."""
    before = await _numbers(client, keys, place)
    right: Counter[bytes] = Counter()
    met: set[bytes] = set()
    async for page in pairs(client, texts, seen, large=True):
        for claim_key, text in page:
            if claim_key not in met and (queue := _queue_of(place, text)) is not None:
                met.add(claim_key)
                right[queue] += 1
    if before != await _numbers(client, keys, place):
        return []
    wrong = [queue for queue in {*before, *right} if before.get(queue, b"0") != b"%d" % right[queue]]
    if judge.repair and wrong:
        told = [word for queue in wrong for word in (queue, before.get(queue, b"0"), right[queue])]
        await client.run(load("recount"), [texts, keys.counts, keys.held], [place, -1, 1, *told])
    return wrong


async def _numbers(client: RedisClient, keys: RedisKeys, place: str) -> Mapping[bytes, bytes]:
    start, found = f"{place}:".encode(), {}
    async for page in pairs(client, keys.counts, lambda count: None):
        found.update({field[len(start) :]: number for field, number in page if field.startswith(start)})
    return found


def _queue_of(place: str, text: bytes) -> bytes | None:
    if place == "held":
        return read_claim(text).queue
    finished = read_finished(text)
    return finished.queue if finished.state.value == place else None
