"""One job with all details, and the counts of all jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.jobs.claim_codec import read_claim, read_finished
from wrasse.backends.redis.jobs.heartbeats import read_progress, read_worker
from wrasse.backends.redis.jobs.job_json import attempts_of, decode, from_ms, read_attempts, read_history
from wrasse.backends.redis.jobs.job_listing import page, read_now
from wrasse.backends.redis.jobs.ready_search import find_waiting
from wrasse.backends.redis.jobs.states import UNREADABLE, claimed_info, finished_state, job_in, waiting_info
from wrasse.backends.redis.key_types import KeyTypes, usable_queues
from wrasse.backends.redis.keys import QueueKeys, RedisKeys
from wrasse.backends.redis.scripts import load
from wrasse.bounded import clamped_ms
from wrasse.ports.jobs import Counts, JobFilter, JobRecord, JobState, Progress, QueueCount, WorkerState

_PAGE = 500
DEAD_WORKERS_KEPT = timedelta(hours=1)


async def record(client: RedisClient, keys: RedisKeys, id: str) -> JobRecord | None:
    """One job with all details. A job that neither runs nor is finished is searched for among those that wait; if it is
    claimed meanwhile, it runs."""
    asked: list[Word] = [id, id.removeprefix(UNREADABLE)] if id.startswith(UNREADABLE) else [id]
    misled = False
    for look_for_waiting in (True, False):
        found, misled = await _indexed(client, keys, id, asked)
        if found is None and look_for_waiting:
            found = await _waiting(client, keys, id)
        if found is not None:
            return found
    return await _misplaced(client, keys, id) if misled else None


async def _misplaced(client: RedisClient, keys: RedisKeys, id: str) -> JobRecord | None:
    """A job that the index leads past, since another program wrote there: from the listings, until fsck repairs it."""
    for state in (JobState.RUNNING, JobState.DEAD, JobState.DONE):
        after: str | None = None
        page_loop = PageLoop(client.options.where, "a search for a job that its index does not lead to")
        while True:
            seen = await page(client, keys, state, JobFilter(), after, _PAGE, newest=False)
            claim_key = next((f"{info.token}-{info.nonce}" for info in seen if info.id == id), None)
            if claim_key is not None:
                return (await _indexed(client, keys, id, [id, claim_key, "found"]))[0]
            if seen.cursor is None:
                break
            after = seen.cursor
            page_loop.turn(after)
    return None


async def _indexed(
    client: RedisClient, keys: RedisKeys, id: str, asked: Sequence[Word]
) -> tuple[JobRecord | None, bool]:
    """A running or finished job; else whether its id leads to a claim that does not exist."""
    names = [keys.where, keys.held, keys.holds, keys.finished, keys.progress]
    reply: list[Any] = [*await client.run(load("get"), names, asked), None, None, None, None]
    told, claim_key, until, hold, finished = reply[1:6]
    progress = None if told is None else read_progress(told)
    if until is not None and hold is not None:
        text = read_claim(hold)
        info, wire = claimed_info(claim_key, clamped_ms(until), text), decode(text.bytes)
        job = job_in(text.bytes, wire, info.queue, info.id)
        return JobRecord(job, info, () if wire is None else attempts_of(wire), None, progress), False
    if finished is not None:
        ended = read_finished(finished)
        info, wire = finished_state(claim_key, ended), decode(ended.bytes)
        job = job_in(ended.bytes, wire, info.queue, info.id)
        return JobRecord(job, info, read_attempts(read_history(ended.history)), ended.result, progress), False
    return None, claim_key is not None


async def _waiting(client: RedisClient, keys: RedisKeys, id: str) -> JobRecord | None:
    found = (await find_waiting(client, keys, [id])).get(id)
    wire = None if found is None else decode(found.bytes)
    if found is None or wire is None:
        return None
    info = waiting_info(found, wire, await read_now(client))
    progress: Progress | None = None
    with suppress(WrongType):
        told = await client.ask("HGET", keys.progress, id)
        progress = None if told is None else read_progress(told)
    return JobRecord(job_in(found.bytes, wire, found.queue, id), info, attempts_of(wire), None, progress)


async def counts(client: RedisClient, keys: RedisKeys) -> Counts:
    """Jobs per queue and state, and the workers. Its cost follows the number of queues, not that of the jobs."""
    now = await read_now(client)
    damage = await KeyTypes(client, keys).of_jobs()
    bad = {each.key for each in damage}
    queues = await usable_queues(client, keys)
    hashes = [key for key in (keys.counts, keys.workers_info) if key not in bad]
    asked: list[Sequence[Word]] = [("HGETALL", key) for key in hashes]
    asked += [command for queue in queues for command in _questions(keys.queue(queue), now)]
    answers = await client.ask_many(asked)
    told, hashed = answers[len(hashes) :], dict(zip(hashes, answers, strict=False))
    numbers, workers = hashed.get(keys.counts, ()), hashed.get(keys.workers_info, ())
    stored = {key.decode("utf-8", "replace"): int(n) for key, n in _pairs(numbers) if _WHOLE(n)}
    waits = {queue: _Waits(*told[_QUESTIONS * n : _QUESTIONS * (n + 1)]) for n, queue in enumerate(queues)}
    names = sorted({*queues, *(key.partition(":")[2] for key, n in stored.items() if n > 0)})
    rows = tuple(_count(queue, waits.get(queue, _NONE), stored) for queue in names)
    return Counts(rows, tuple(_workers(workers, now)), from_ms(now), tuple(map(str, damage)))


def _questions(queue: QueueKeys, now: int) -> tuple[Sequence[Word], ...]:
    return (
        ("LLEN", queue.list),
        ("ZCARD", queue.delayed),
        ("ZCOUNT", queue.delayed, "-inf", now),
        ("LINDEX", queue.list, -1),
        ("ZRANGEBYSCORE", queue.delayed, "-inf", now, "WITHSCORES", "LIMIT", 0, 1),
    )


@dataclass(frozen=True, slots=True)
class _Waits:
    """The answers about one queue. A scheduled job that is due is ready, also before a claim has moved it."""

    listed: int
    scheduled: int
    due: int
    first: bytes | None
    first_due: Sequence[Any]

    def since(self) -> datetime | None:
        """Since when the oldest is ready, by its own bytes: the one served next is the oldest, or older."""
        moments = [from_ms(clamped_ms(score)) for _, score in _pairs(self.first_due)]
        wire = None if self.first is None else decode(self.first)
        if wire is not None:
            moments.append(max(each for each in (wire.creation_time, wire.not_before) if each is not None))
        return min(moments, default=None)


_WHOLE = re.compile(rb"-?\d{1,18}").fullmatch
_NONE = _Waits(0, 0, 0, None, ())
_QUESTIONS = len(fields(_Waits))


def _count(queue: str, waits: _Waits, stored: Mapping[str, int]) -> QueueCount:
    held, done, dead = (max(stored.get(f"{place}:{queue}", 0), 0) for place in ("held", "done", "dead"))
    ready, delayed = waits.listed + waits.due, waits.scheduled - waits.due
    return QueueCount(queue, ready, delayed, held, done, dead, waits.since())


def _workers(rows: Sequence[Any], now: int) -> Iterator[WorkerState]:
    horizon = from_ms(now) - DEAD_WORKERS_KEPT
    found = [worker for id, text in _pairs(rows) if (worker := read_worker(id, text)) is not None]
    return (worker for worker in sorted(found, key=lambda each: each.info.id) if worker.deadline >= horizon)


def _pairs(reply: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Names and values."""
    return zip(reply[::2], reply[1::2], strict=True)
