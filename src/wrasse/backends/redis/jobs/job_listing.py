"""Listings of jobs: each state in its own order, with cursors that survive changes in between. One job with all
details, and the counts of all jobs.

Running and finished jobs are read from their sorted sets. Ready jobs are read queue by queue, in the order of the
queues' names: first the list, then the delayed set. A scheduled job that is due is ready, also before a claim has moved
it.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.jobs.changes import read_progress, read_worker
from wrasse.backends.redis.jobs.job_json import attempts_of, decode, from_ms, read_attempts, read_history
from wrasse.backends.redis.jobs.pages import (
    SLICE_MAX,
    ListPosition,
    PageStart,
    ScoreRange,
    ServedList,
    SortedMember,
    WaitingJob,
    find_waiting,
    slice_of,
    slices,
)
from wrasse.backends.redis.jobs.states import (
    UNREADABLE,
    claimed_info,
    finished_info,
    job_in,
    read_claim,
    read_finished,
    waiting_info,
)
from wrasse.backends.redis.keys import QueueKeys, RedisKeys
from wrasse.backends.redis.replies import KeyTypes, usable_queues
from wrasse.backends.redis.scripts import load
from wrasse.bounded import clamped_ms
from wrasse.clock import to_micros
from wrasse.ports.jobs import Counts, JobFilter, JobInfo, JobRecord, JobState, Progress, QueueCount, WorkerState
from wrasse.ports.page import Page, check_limit, no_cursor, other_listing

PAGE_MAX = 10_000
_SERVED, _DELAYED = "served", "delayed"
_FOREIGN_MAX = 256  # bytes of a scheduled member without a number that its cursor contains
_SEARCH_PAGE = 500
DEAD_WORKERS_KEPT = timedelta(hours=1)
_WHOLE_NUMBER = re.compile(rb"-?\d{1,18}").fullmatch


@dataclass(frozen=True, slots=True)
class _ListedJob:
    state: JobInfo
    cursor: str


async def page(
    client: RedisClient,
    keys: RedisKeys,
    state: JobState,
    where: JobFilter,
    after: str | None,
    limit: int,
    *,
    newest: bool,
) -> Page[JobInfo]:
    """Jobs of one state that match, in its order."""
    limit = check_limit(limit, "jobs", PAGE_MAX)
    now = await read_now(client)
    if state is JobState.READY:
        listed = _ReadyListing(client, keys, where, limit, newest, now).after(after)
    else:
        listed = _indexed(client, keys, state, _span(where, newest=newest), after, limit)
    return await _cut(listed, where, limit, now)


async def overdue(client: RedisClient, keys: RedisKeys, after: str | None, limit: int) -> Page[JobInfo]:
    """Running jobs whose deadline has passed, longest ago first. One round trip."""
    limit = check_limit(limit, "jobs", PAGE_MAX)
    behind, listed = _behind(JobState.RUNNING, after), list[_ListedJob]()
    page_loop = PageLoop(client.options.where, "the list of overdue jobs")
    while True:
        page_loop.turn(behind)
        found = await slice_of(client, keys.held, keys.holds, ScoreRange(high="now"), behind, limit)
        listed = [each for each in map(_running, found.found) if each is not None]
        behind = found.behind
        # A claim whose text is missing is skipped, as nothing is known of it; an empty page would look like the last.
        if listed or behind is None:
            break
    items, cursors = tuple(each.state for each in listed), tuple(each.cursor for each in listed)
    return Page(items, cursors, from_ms(found.now), found.more)


async def read_now(client: RedisClient) -> int:
    """The server's time in milliseconds."""
    return client.time_in(await client.ask("TIME")) // 1_000


async def _cut(listed: AsyncIterator[_ListedJob], where: JobFilter, limit: int, now: int) -> Page[JobInfo]:
    shown: list[_ListedJob] = []
    more = False
    async for each in listed:
        if not where.allows(each.state):
            continue
        if len(shown) == limit:
            more = True
            break
        shown.append(each)
    return Page(tuple(each.state for each in shown), tuple(each.cursor for each in shown), from_ms(now), more)


async def _indexed(
    client: RedisClient, keys: RedisKeys, state: JobState, span: ScoreRange, after: str | None, limit: int
) -> AsyncIterator[_ListedJob]:
    index = {JobState.RUNNING: keys.held, JobState.DONE: keys.done, JobState.DEAD: keys.dead}[state]
    texts = keys.holds if state is JobState.RUNNING else keys.finished
    behind = _behind(state, after)
    async for found in slices(client, index, texts, span, behind, min(limit + 1, SLICE_MAX)):
        listed = _running(found) if state is JobState.RUNNING else _finished(found, state)
        if listed is not None:
            yield listed


@dataclass(frozen=True, slots=True)
class _ReadyListing:
    """A request for ready jobs."""

    client: RedisClient
    keys: RedisKeys
    where: JobFilter
    limit: int
    newest: bool
    now: int

    async def after(self, cursor: str | None) -> AsyncIterator[_ListedJob]:
        """The jobs after the cursor: all lists, then all delayed sets."""
        queues = await usable_queues(self.client, self.keys) if self.where.queue is None else [self.where.queue]
        parts = [(kind, queue) for kind in (_SERVED, _DELAYED) for queue in queues]
        if self.where.scheduled:
            parts = [part for part in parts if part[0] == _DELAYED]
        if self.newest:
            parts.reverse()
        if not parts:
            return
        kind, queue, rest = (*parts[0], "") if cursor is None else _read_ready(cursor)
        if (kind, queue) not in parts:
            raise other_listing(cursor)
        for part in parts[parts.index((kind, queue)) :]:
            listed = self._served if part[0] == _SERVED else self._scheduled
            async for each in listed(part[1], rest if part == (kind, queue) else ""):
                yield each

    async def _served(self, queue: str, cursor: str) -> AsyncIterator[_ListedJob]:
        behind = None
        if cursor:
            index, last, next = cursor.split(":")
            if not index.isdecimal() or len(index) > 18:  # more digits than LRANGE allows
                raise no_cursor(cursor)
            behind = ListPosition(int(index), last, next)
        served = ServedList(self.client, self.keys.queue(queue).list, newest=self.newest)
        async for entry in served.entries(behind, min(self.limit + 1, SLICE_MAX)):
            info = waiting_info(WaitingJob(queue, entry.raw), decode(entry.raw), self.now)
            yield _ListedJob(info, f"{_SERVED}:{entry.mark}:{queue}")

    async def _scheduled(self, queue: str, cursor: str) -> AsyncIterator[_ListedJob]:
        behind, now = _behind_delayed(cursor) if cursor else None, self.now
        spans = {None: ScoreRange(), True: ScoreRange(low=f"({now}"), False: ScoreRange(high=f"{now}")}
        span = replace(spans[self.where.scheduled], newest=self.newest)
        key, chunk = self.keys.queue(queue).delayed, min(self.limit + 1, SLICE_MAX)
        async for found in slices(self.client, key, None, span, behind, chunk):
            waiting = WaitingJob(queue, found.member, found.score)
            info = waiting_info(waiting, decode(waiting.bytes), now)
            yield _ListedJob(info, f"{_DELAYED}:{found.exact}:{_delayed_name(found.member)}:{queue}")


def _delayed_name(member: bytes) -> str:
    """A scheduled member as part of a cursor: its number, or the first bytes of another program's member."""
    number, colon, _ = member.partition(b":")
    return f"{number.decode()}:" if colon and number.isdigit() else f":x{member[:_FOREIGN_MAX].hex()}"


def _behind_delayed(cursor: str) -> PageStart:
    score, number, foreign = cursor.split(":")
    if not foreign:
        return PageStart(score, f"{number}:".encode(), begins=True)
    try:
        member = bytes.fromhex(foreign[1:])
    except ValueError:
        raise no_cursor(cursor) from None
    return PageStart(score, member, begins=len(member) == _FOREIGN_MAX)


def _running(found: SortedMember) -> _ListedJob | None:
    if found.text is None:
        return None
    info = claimed_info(found.member, found.score, read_claim(found.text))
    return _ListedJob(info, f"{JobState.RUNNING.value}:{found.exact}:{_name(found.member)}")


def _finished(found: SortedMember, state: JobState) -> _ListedJob | None:
    if found.text is None:
        return None
    text = replace(read_finished(found.text), state=state)  # for an unreadable text the index gives the state
    return _ListedJob(finished_info(found.member, text), f"{state.value}:{found.exact}:{_name(found.member)}")


def _name(member: bytes) -> str:
    """A member as part of a cursor, from which it can be decoded unchanged."""
    return member.decode("utf-8", "surrogateescape")


def _span(where: JobFilter, *, newest: bool) -> ScoreRange:
    """The score range. Both ends of a filter are open, and scores are whole milliseconds."""
    low, high = where.finished_after, where.finished_before
    return ScoreRange(
        "-inf" if low is None else f"({to_micros(low) // 1_000}",
        "+inf" if high is None else f"({-(-to_micros(high) // 1_000)}",
        newest,
    )


def _behind(state: JobState, after: str | None) -> PageStart | None:
    if after is None:
        return None
    try:
        name, score, member = after.split(":", 2)
        behind = PageStart(_score(score), member.encode("utf-8", "surrogateescape"))
    except ValueError:
        raise no_cursor(after) from None
    if name != state.value:
        raise other_listing(after)
    return behind


def _read_ready(after: str) -> tuple[str, str, str]:
    """The parts of a cursor among ready jobs: list or delayed set, queue, and position there."""
    try:
        kind, first, second, third, queue = after.split(":", 4)
        _score(first)
    except ValueError:
        raise no_cursor(after) from None
    return kind, queue, f"{first}:{second}:{third}"


def _score(text: str) -> str:
    if math.isnan(float(text)):
        raise ValueError("no score")
    return text


async def record(client: RedisClient, keys: RedisKeys, id: str) -> JobRecord | None:
    """One job with all details. A job that neither runs nor is finished is searched for among those that wait; if it is
    claimed meanwhile, it runs."""
    asked: list[Word] = [id, id.removeprefix(UNREADABLE)] if id.startswith(UNREADABLE) else [id]
    misled = False
    for look_for_waiting in (True, False):
        found, misled = await _indexed_job(client, keys, id, asked)
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
            seen = await page(client, keys, state, JobFilter(), after, _SEARCH_PAGE, newest=False)
            claim_key = next((f"{info.token}-{info.nonce}" for info in seen if info.id == id), None)
            if claim_key is not None:
                return (await _indexed_job(client, keys, id, [id, claim_key, "found"]))[0]
            if seen.cursor is None:
                break
            after = seen.cursor
            page_loop.turn(after)
    return None


async def _indexed_job(
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
        info, wire = finished_info(claim_key, ended), decode(ended.bytes)
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
    stored = {key.decode("utf-8", "replace"): int(n) for key, n in _pairs(numbers) if _WHOLE_NUMBER(n)}
    waits = {queue: _Waits(*told[_QUESTIONS * n : _QUESTIONS * (n + 1)]) for n, queue in enumerate(queues)}
    names = sorted({*queues, *(key.partition(":")[2] for key, n in stored.items() if n > 0)})
    rows = tuple(_count(queue, waits.get(queue, _NOTHING_WAITS), stored) for queue in names)
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


_NOTHING_WAITS = _Waits(0, 0, 0, None, ())
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
