"""What is not about single jobs: heartbeats, workers, remembered answers, the names of queues, the numbers of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.damage.kinds import Kind
from wrasse.backends.redis.damage.reading import Seen, keys_like, pairs, scores, workers_with
from wrasse.backends.redis.damage.suspects import Judge, Suspect
from wrasse.backends.redis.hold_text import read_finished, read_hold
from wrasse.backends.redis.job_json import decode
from wrasse.backends.redis.keys import Keys, pattern_glob, workers_in
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.routing import known_queues
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.states import text_of

_BESIDE = (":delayed", ":wake", ":rate")  # what stands beside a queue's own list
_COUNTED_MAX = 20_000  # in one script, which is then over within some 20 ms
_OF = {
    "held": (
        Kind.UNREADABLE,
        Kind.INDEX_WITHOUT_HOLD,
        Kind.HOLD_WITHOUT_INDEX,
        Kind.HOLD_LEFT_OVER,
        Kind.ENTRY_WITHOUT_HOLD,
    ),
    "done": (Kind.FINISHED_WITHOUT_INDEX, Kind.INDEX_WITHOUT_FINISHED),
    "dead": (
        Kind.FINISHED_WITHOUT_INDEX,
        Kind.INDEX_WITHOUT_FINISHED,
        Kind.DEAD_WITHOUT_ENTRY,
        Kind.DEAD_ENTRY_WITHOUT_INDEX,
    ),
}


async def surroundings(link: Link, keys: Keys, seen: Seen) -> AsyncIterator[Suspect]:
    """All but the numbers."""
    for n, key in enumerate(keys.requests, 1):
        if await link.ask("PTTL", key) == -1:
            yield Suspect(Kind.REQUESTS_WITHOUT_END, key, (n,))
    async for page in pairs(link, keys.workers_info, seen):
        workers = [text_of(worker) for worker, _ in page]
        (rows,) = await scores(link, [keys.workers], workers)
        for worker, row in zip(workers, rows, strict=True):
            if row is None:
                yield Suspect(Kind.WORKER_LEFT_OVER, worker, (worker,))
    for worker in await workers_with(link, link.options.heartbeat_key_pattern, "string"):
        if await link.ask("PTTL", keys.heartbeat(worker)) == -1:
            yield Suspect(Kind.HEARTBEAT_WITHOUT_END, worker, worker=worker)
    known = set(await known_queues(link, keys))
    async for name in _queues(link, keys):
        if name not in known:
            yield Suspect(Kind.QUEUE_NOT_LISTED, name, (name,), queue=name)


async def _queues(link: Link, keys: Keys) -> AsyncIterator[str]:
    """Queues by what they have on the server. One that is called by its key is known by a job in it."""
    before = f"{keys.root}:queue:"
    for kind, end in (("list", ""), ("zset", ":delayed")):
        async for names in keys_like(link, pattern_glob(f"{keys.root}:%s{end}"), kind):
            for key in map(text_of, names):
                name = key.removesuffix(end)
                if not end and key.endswith(_BESIDE):
                    continue
                if key.startswith(before):
                    yield name.removeprefix(before)
                elif end or (not _is_ours(key, keys, link.options) and await _has_job(link, key)):
                    yield name


def _is_ours(key: str, keys: Keys, options: RedisOptions) -> bool:
    worker = [*workers_in([key.encode()], options.processing_list_pattern)]
    return bool(worker) or key in keys.shared


async def _has_job(link: Link, key: str) -> bool:
    raw = await link.ask("LINDEX", key, -1)
    return raw is not None and decode(raw) is not None


async def recount(link: Link, keys: Keys, judge: Judge, seen: Seen) -> None:
    """Compares the numbers of jobs with the jobs. What else is wrong about a place is repaired first."""
    indexes = {"held": (keys.holds, keys.held), "done": (keys.finished, keys.done), "dead": (keys.finished, keys.dead)}
    for place, (texts, index) in indexes.items():
        if judge.found(*_OF[place]):
            continue
        names = [texts, keys.counts, index]
        counted, *wrong = await link.run(load("recount"), names, [place, _COUNTED_MAX, int(judge.repair)])
        if not counted:
            wrong = await _recount_many(link, keys, place, texts, judge, seen)
        for name in map(text_of, wrong):
            judge.tally(Kind.WRONG_COUNT).add(f"{place}:{name}", 1, repaired=int(judge.repair))


async def _recount_many(link: Link, keys: Keys, place: str, texts: str, judge: Judge, seen: Seen) -> list[bytes]:
    """Too many for one step. They are read page by page, and that counts only if no number changed meanwhile."""
    before = await _numbers(link, keys, place)
    right: Counter[bytes] = Counter()
    met: set[bytes] = set()
    async for page in pairs(link, texts, seen, large=True):
        for take, text in page:
            if take not in met and (queue := _queue_of(place, text)) is not None:
                met.add(take)
                right[queue] += 1
    if before != await _numbers(link, keys, place):
        return []
    wrong = [queue for queue in {*before, *right} if before.get(queue, b"0") != b"%d" % right[queue]]
    if judge.repair and wrong:
        told = [word for queue in wrong for word in (queue, before.get(queue, b"0"), right[queue])]
        await link.run(load("recount"), [texts, keys.counts, keys.held], [place, -1, 1, *told])
    return wrong


async def _numbers(link: Link, keys: Keys, place: str) -> Mapping[bytes, bytes]:
    start, found = f"{place}:".encode(), {}
    async for page in pairs(link, keys.counts, lambda count: None):
        found.update({field[len(start) :]: number for field, number in page if field.startswith(start)})
    return found


def _queue_of(place: str, text: bytes) -> bytes | None:
    if place == "held":
        return read_hold(text).queue
    finished = read_finished(text)
    return finished.queue if finished.place.value == place else None
