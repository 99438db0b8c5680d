"""Listings of jobs: each state in its own order, with cursors that survive changes in between.

Running and finished jobs are read from their sorted sets. Ready jobs are read queue by queue, in the order of the
queues' names: first the list, then the delayed set. A scheduled job that is due is ready, also before a claim has moved
it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.jobs.claim_codec import read_claim, read_finished
from wrasse.backends.redis.jobs.job_json import decode, from_ms
from wrasse.backends.redis.jobs.list_pages import ListPosition, ServedList
from wrasse.backends.redis.jobs.ready_search import WaitingJob
from wrasse.backends.redis.jobs.sorted_pages import SLICE_MAX, PageStart, ScoreRange, SortedMember, slice_of, slices
from wrasse.backends.redis.jobs.states import claimed_info, finished_state, waiting_info
from wrasse.backends.redis.key_types import usable_queues
from wrasse.backends.redis.keys import RedisKeys
from wrasse.clock import to_micros
from wrasse.ports.jobs import JobFilter, JobInfo, JobState
from wrasse.ports.page import Page, check_limit, no_cursor, other_listing

PAGE_MAX = 10_000
_SERVED, _DELAYED = "served", "delayed"
_FOREIGN_MAX = 256  # bytes of a scheduled member without a number that its cursor contains


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
        listed = _ready(client, keys, where, after, limit, newest=newest, now=now)
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
        listed = [each for each in map(_held, found.found) if each is not None]
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
        listed = _held(found) if state is JobState.RUNNING else _finished(found, state)
        if listed is not None:
            yield listed


async def _ready(
    client: RedisClient, keys: RedisKeys, where: JobFilter, after: str | None, limit: int, *, newest: bool, now: int
) -> AsyncIterator[_ListedJob]:
    queues = await usable_queues(client, keys) if where.queue is None else [where.queue]
    parts = [(kind, queue) for kind in (_SERVED, _DELAYED) for queue in queues]
    if where.scheduled:
        parts = [part for part in parts if part[0] == _DELAYED]
    if newest:
        parts.reverse()
    if not parts:
        return
    kind, queue, rest = (*parts[0], "") if after is None else _read_ready(after)
    if (kind, queue) not in parts:
        raise other_listing(after)
    for part in parts[parts.index((kind, queue)) :]:
        cursor = rest if part == (kind, queue) else ""
        listed = _served if part[0] == _SERVED else _delayed
        async for each in listed(client, keys, part[1], cursor, limit, newest, where, now):
            yield each


async def _served(
    client: RedisClient, keys: RedisKeys, queue: str, cursor: str, limit: int, newest: bool, where: JobFilter, now: int
) -> AsyncIterator[_ListedJob]:
    behind = None
    if cursor:
        index, last, next = cursor.split(":")
        if not index.isdecimal() or len(index) > 18:  # more digits than LRANGE allows
            raise no_cursor(cursor)
        behind = ListPosition(int(index), last, next)
    chunk = min(limit + 1, SLICE_MAX)
    async for entry in ServedList(client, keys.queue(queue).list, newest=newest).entries(behind, chunk):
        info = waiting_info(WaitingJob(queue, entry.raw), decode(entry.raw), now)
        yield _ListedJob(info, f"{_SERVED}:{entry.mark}:{queue}")


async def _delayed(
    client: RedisClient, keys: RedisKeys, queue: str, cursor: str, limit: int, newest: bool, where: JobFilter, now: int
) -> AsyncIterator[_ListedJob]:
    behind = _behind_delayed(cursor) if cursor else None
    span = {None: ScoreRange(), True: ScoreRange(low=f"({now}"), False: ScoreRange(high=f"{now}")}[where.scheduled]
    key = keys.queue(queue).delayed
    async for found in slices(client, key, None, replace(span, newest=newest), behind, min(limit + 1, SLICE_MAX)):
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


def _held(found: SortedMember) -> _ListedJob | None:
    if found.text is None:
        return None
    info = claimed_info(found.member, found.score, read_claim(found.text))
    return _ListedJob(info, f"{JobState.RUNNING.value}:{found.exact}:{_name(found.member)}")


def _finished(found: SortedMember, state: JobState) -> _ListedJob | None:
    if found.text is None:
        return None
    text = replace(read_finished(found.text), state=state)  # for an unreadable text the index gives the state
    return _ListedJob(finished_state(found.member, text), f"{state.value}:{found.exact}:{_name(found.member)}")


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
