"""The archiver: every stream that matches a rule, drained into archives; each message once, through any crash.

It looks at its streams once a second, also for new ones, which it takes from their first entry. Trouble with one stream
stops only that one; an outage stops nothing for good and moves nothing meanwhile: what is not committed is read again.
Memory is bounded: a few batches at once, and what is collected beyond a limit is dropped and read again later. `stop`
reads nothing more, writes what is collected, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.archives.announce import Announcer
from wrasse.archives.cursor import Cursors
from wrasse.archives.drain import GROUP, Drain, Stepped, Tools
from wrasse.archives.lag import LagLimits, LagWatch
from wrasse.archives.rule import Rule
from wrasse.archives.stream_lease import TTL, StreamLeases
from wrasse.archives.tally import ArchiverTally
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable, WrasseError
from wrasse.leases.manager import LeaseManager
from wrasse.ports.groups import Groups
from wrasse.ports.records import Records
from wrasse.ports.streams import Streams
from wrasse.streams.alerts import Alerts

POLL = timedelta(seconds=1)
GRACE = timedelta(seconds=30)
LOOK_BACK = timedelta(seconds=10)
LOOK_BACK_MAX = 1_000  # streams whose lag is looked at
AT_ONCE = 4  # streams that are drained at the same time, fewer where their batches are large
HELD_BYTES_MAX = 64 << 20  # of open batches, over all streams
STREAMS_KEPT = 10_000  # streams that something is kept in memory about
BACKOFF_MAX = 30.0  # seconds
_PAGE = 1_000
_log = logging.getLogger("wrasse.archives")


@dataclass(frozen=True, slots=True)
class ArchivePorts:
    """What an archiver works on. `records` keep the cursors, `alerts` what was told."""

    streams: Streams
    groups: Groups
    records: Records
    lease_manager: LeaseManager
    alerts: Records | None = None  # which alerts were told; without it, none are


@dataclass(slots=True)
class _Post:
    """One stream, and how it went with it."""

    drain: Drain
    not_before: float = 0.0
    troubles: int = 0  # in a row
    told: str = ""  # the alarm that was raised last
    behind: bool = False  # whether something of it waits for us


class Archiver:
    """Drains streams until it is stopped."""

    def __init__(
        self,
        ports: ArchivePorts,
        rules: Sequence[Rule],
        clock: Clock,
        owner: str,
        *,
        poll: timedelta = POLL,
        lease_ttl: timedelta = TTL,
        lag: LagLimits | None = None,
    ) -> None:
        self._streams = ports.streams
        self._rules = tuple(rules)
        self._clock = clock
        self._poll = poll.total_seconds()
        self._grace = GRACE.total_seconds()
        self._stopping = asyncio.Event()
        self._posts: dict[str, _Post] = {}
        self._turns = StreamLeases(ports.lease_manager, owner, clock, lease_ttl)
        self.tally = ArchiverTally()
        self._announcer = Announcer(ports.streams, clock, self.tally)
        cursors = Cursors(ports.records)
        alerts = None if ports.alerts is None else Alerts(ports.alerts, ports.streams, clock, "archiver")
        self._watch = LagWatch(ports.streams, cursors, alerts, GROUP, lag or LagLimits())
        self._tools = Tools(
            ports.streams, ports.groups, cursors, self._turns, self._announcer, self.tally, owner, self._stopping
        )

    async def run(self) -> None:
        """Archives until `stop`."""
        try:
            async with asyncio.TaskGroup() as group:
                archiving = group.create_task(self._archive())
                watching = group.create_task(self._look_back())
                await self._stopping.wait()
                watching.cancel()
                await asyncio.wait([archiving], timeout=self._grace)
                archiving.cancel()  # nothing is lost: whoever comes next finds what was begun
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _look_back(self) -> None:
        """Measures the lag, again and again."""
        while True:
            await asyncio.sleep(LOOK_BACK.total_seconds())
            with contextlib.suppress(StoreUnavailable, StoreBroken):
                # Those that are idle or somebody else's have no lag of ours.
                behind = [subject for subject, post in self._posts.items() if post.behind][:LOOK_BACK_MAX]
                self.tally.lag = await self._watch.look(behind)

    async def _archive(self) -> None:
        outages = 0
        while not self._stopping.is_set():
            try:
                moved = await self._round(flush=False)
                outages = 0
            except (StoreUnavailable, StoreBroken) as why:
                outages, moved = outages + 1, False
                self._meet(why, outages)
            if not moved:
                await self._rest(_backoff(outages, self._poll))
        await self._finish()

    def stop(self, grace: timedelta = GRACE) -> None:
        """Reads nothing more; what is collected is written within `grace`, and `run` ends. Asked twice, the first
        counts."""
        if not self._stopping.is_set():
            self._grace = grace.total_seconds()
            self._stopping.set()

    async def drain(self) -> int:
        """Archives all there is now, however young; gives how many messages. Raises what stands in the way."""
        before = self.tally.messages
        while await self._round(flush=True):
            pass
        await self._turns.give_back()
        return self.tally.messages - before

    async def _round(self, *, flush: bool) -> bool:
        """One look at every stream; whether any of them moved on."""
        largest = max((rule.limits.bytes for rule in self._rules), default=1)
        moved, most = False, max(1, min(AT_ONCE, HELD_BYTES_MAX // largest))
        async for posts in self._matching():
            waiting = iter(posts)
            try:
                async with asyncio.TaskGroup() as group:
                    hands = [group.create_task(self._work(waiting, flush)) for _ in range(min(most, len(posts)))]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            moved = moved or any(hand.result() for hand in hands)
        if len(self._posts) > STREAMS_KEPT:
            self._posts = {subject: post for subject, post in self._posts.items() if post.drain.open or post.troubles}
        return moved

    async def _matching(self) -> AsyncIterator[list[_Post]]:
        """The streams of all rules, a page at a time."""
        for rule in self._rules:
            after: str | None = None
            while not self._stopping.is_set():
                page = await self._streams.subjects(rule.pattern, after, _PAGE)
                yield [self._post(subject, rule) for subject in page]
                after = page.cursor
                if after is None:
                    break

    def _post(self, subject: str, rule: Rule) -> _Post:
        post = self._posts.get(subject)
        if post is None:
            post = self._posts[subject] = _Post(Drain(subject, rule, self._tools))
        return post

    async def _work(self, waiting: Iterator[_Post], flush: bool) -> bool:
        moved = False
        for post in waiting:
            if self._stopping.is_set():
                break
            if self._clock.monotonic() >= post.not_before:
                moved = await self._tend(post, flush) or moved
                self._bound()
        return moved

    async def _tend(self, post: _Post, flush: bool) -> bool:
        """One step on one stream. Its trouble is its own."""
        try:
            stepped = await post.drain.step(flush=flush)
        except WrasseError as why:
            post.drain.forget()
            post.troubles += 1
            post.behind = True
            post.not_before = self._clock.monotonic() + _backoff(post.troubles, self._poll)
            self._meet(why, post.troubles, post.drain.subject)
            if not isinstance(why, StoreUnavailable):
                await self._turns.give_up(post.drain.subject)  # to whoever is to mend this
            if flush:
                raise
            if not isinstance(why, StoreUnavailable) and post.told != why.message:
                post.told = why.message
                await self._announcer.alarm(post.drain.subject, why.message, why.do)
            return False
        post.behind = stepped in (Stepped.WAITING, Stepped.MOVED)
        if post.troubles:
            _log.info("archiving goes on", extra={"stream": post.drain.subject})
        post.troubles, post.told = 0, ""
        return stepped is Stepped.MOVED

    def _meet(self, why: WrasseError, times: int, subject: str | None = None) -> None:
        """Counts trouble, and says it when it begins."""
        if isinstance(why, StoreUnavailable):
            self.tally.outages += 1
        if times == 1:
            _log.warning("archiving waits", extra={"stream": subject, "error": why})

    def _bound(self) -> None:
        """Drops the largest open batches while they take more memory than they may."""
        held = sum(post.drain.held for post in self._posts.values())
        while held > HELD_BYTES_MAX:
            largest = max((post.drain for post in self._posts.values()), key=lambda drain: drain.held)
            held -= largest.held
            largest.forget()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _finish(self) -> None:
        """Writes what is collected, and gives the streams to others."""
        for post in [post for post in self._posts.values() if post.drain.open]:
            await self._last(post)
        await self._turns.give_back()

    async def _last(self, post: _Post) -> None:
        try:
            await post.drain.step(flush=True)
        except WrasseError as why:
            # Nothing is lost: whoever comes next reads it again.
            self._meet(why, 1, post.drain.subject)


def _backoff(troubles: int, poll: float) -> float:
    return min(poll * 2 ** min(troubles, 16), BACKOFF_MAX) if troubles else poll
