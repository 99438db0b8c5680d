"""The archiver: writes every stream that matches a rule into archives; each message once, through any crash.

It polls its streams once a second, including new ones, which are read from their first entry. An error with one stream
stops only that stream; an outage loses nothing: what is not committed is read again. Memory is bounded: a few batches
at once, and batches beyond a limit are dropped and read again later. `stop` reads nothing more, writes what is
collected, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.archives.announce import Announcer, ArchiverTally, LagLimits, LagWatch
from wrasse.archives.cursor import TTL, Cursors, StreamLeases
from wrasse.archives.drain import GROUP, Drain, Stepped, Tools
from wrasse.archives.rule import Rule
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable, WrasseError
from wrasse.leases.manager import LeaseManager
from wrasse.ports.groups import Groups
from wrasse.ports.records import Records
from wrasse.ports.streams import Streams
from wrasse.streams.alerts import Alerts

POLL = timedelta(seconds=1)
GRACE = timedelta(seconds=30)
LAG_INTERVAL = timedelta(seconds=10)
LAG_STREAMS_MAX = 1_000  # streams whose lag is measured
AT_ONCE = 4  # streams drained concurrently, fewer if their batches are large
OPEN_BYTES_MAX = 64 << 20  # of open batches, over all streams
STREAMS_KEPT = 10_000  # streams with state in memory
BACKOFF_MAX = 30.0  # seconds
_PAGE = 1_000
_log = logging.getLogger("wrasse.archives")
_LAG = LagLimits()


@dataclass(frozen=True, slots=True)
class ArchivePorts:
    """The ports of an archiver. `records` store the cursors, `alerts` the alerts that were sent."""

    streams: Streams
    groups: Groups
    records: Records
    lease_manager: LeaseManager
    alerts: Records | None = None  # the alerts that were sent; without it, none are


@dataclass(slots=True)
class _StreamState:
    """One stream, and its recent errors."""

    drain: Drain
    not_before: float = 0.0
    troubles: int = 0  # in a row
    last_alarm: str = ""  # its text
    behind: bool = False  # whether it has entries to archive


@dataclass(frozen=True, slots=True)
class ArchiverOptions:
    """How often streams are read, how long their leases last, and when lag is an alert."""

    poll: timedelta = POLL
    lease_ttl: timedelta = TTL
    lag: LagLimits = _LAG


_DEFAULT = ArchiverOptions()


class Archiver:
    """Drains streams until it is stopped."""

    def __init__(
        self,
        ports: ArchivePorts,
        rules: Sequence[Rule],
        clock: Clock,
        owner: str,
        settings: ArchiverOptions = _DEFAULT,
    ) -> None:
        self._streams = ports.streams
        self._rules = tuple(rules)
        self._clock = clock
        self._poll = settings.poll.total_seconds()
        self._grace = GRACE.total_seconds()
        self._stopping = asyncio.Event()
        self._states: dict[str, _StreamState] = {}
        self._leases = StreamLeases(ports.lease_manager, owner, clock, settings.lease_ttl)
        self.tally = ArchiverTally()
        self._announcer = Announcer(ports.streams, clock, self.tally)
        cursors = Cursors(ports.records)
        alerts = None if ports.alerts is None else Alerts(ports.alerts, ports.streams, clock, "archiver")
        self._watch = LagWatch(ports.streams, cursors, alerts, GROUP, settings.lag)
        self._tools = Tools(
            ports.streams, ports.groups, cursors, self._leases, self._announcer, self.tally, owner, self._stopping
        )

    async def run(self) -> None:
        """Archives until `stop`."""
        try:
            async with asyncio.TaskGroup() as group:
                archiving = group.create_task(self._archive())
                watching = group.create_task(self._measure_lag())
                await self._stopping.wait()
                watching.cancel()
                await asyncio.wait([archiving], timeout=self._grace)
                archiving.cancel()  # nothing is lost: the next archiver finds what was begun
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _measure_lag(self) -> None:
        """Measures the lag periodically."""
        while True:
            await asyncio.sleep(LAG_INTERVAL.total_seconds())
            with contextlib.suppress(StoreUnavailable, StoreBroken):
                # Idle streams, and those of other archivers, are not measured here.
                behind = [subject for subject, state in self._states.items() if state.behind][:LAG_STREAMS_MAX]
                self.tally.lag = await self._watch.check(behind)

    async def _archive(self) -> None:
        outages = 0
        while not self._stopping.is_set():
            try:
                moved = await self._step_all(flush=False)
                outages = 0
            except (StoreUnavailable, StoreBroken) as why:
                outages, moved = outages + 1, False
                self._note_error(why, outages)
            if not moved:
                await self._pause(_backoff(outages, self._poll))
        await self._finish()

    def stop(self, grace: timedelta = GRACE) -> None:
        """Reads nothing more; what is collected is written within `grace`, and `run` ends. The first call counts."""
        if not self._stopping.is_set():
            self._grace = grace.total_seconds()
            self._stopping.set()

    async def drain(self) -> int:
        """Archives everything there is now, however young; returns how many messages. Raises the first error."""
        before = self.tally.messages
        while await self._step_all(flush=True):
            pass
        await self._leases.release_all()
        return self.tally.messages - before

    async def _step_all(self, *, flush: bool) -> bool:
        """One step on every stream; whether any of them wrote an archive."""
        largest = max((rule.limits.bytes for rule in self._rules), default=1)
        moved, most = False, max(1, min(AT_ONCE, OPEN_BYTES_MAX // largest))
        async for states in self._matching():
            waiting = iter(states)
            try:
                async with asyncio.TaskGroup() as group:
                    workers = [group.create_task(self._work(waiting, flush)) for _ in range(min(most, len(states)))]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            moved = moved or any(worker.result() for worker in workers)
        if len(self._states) > STREAMS_KEPT:
            self._states = {
                subject: state for subject, state in self._states.items() if state.drain.open or state.troubles
            }
        return moved

    async def _matching(self) -> AsyncIterator[list[_StreamState]]:
        """The streams of all rules, a page at a time."""
        for rule in self._rules:
            after: str | None = None
            while not self._stopping.is_set():
                page = await self._streams.subjects(rule.pattern, after, _PAGE)
                yield [self._state_of(subject, rule) for subject in page]
                after = page.cursor
                if after is None:
                    break

    def _state_of(self, subject: str, rule: Rule) -> _StreamState:
        state = self._states.get(subject)
        if state is None:
            state = self._states[subject] = _StreamState(Drain(subject, rule, self._tools))
        return state

    async def _work(self, waiting: Iterator[_StreamState], flush: bool) -> bool:
        moved = False
        for state in waiting:
            if self._stopping.is_set():
                break
            if self._clock.monotonic() >= state.not_before:
                moved = await self._step_one(state, flush) or moved
                self._bound()
        return moved

    async def _step_one(self, state: _StreamState, flush: bool) -> bool:
        """One step on one stream; its errors do not affect others."""
        try:
            stepped = await state.drain.step(flush=flush)
        except WrasseError as why:
            state.drain.forget()
            state.troubles += 1
            state.behind = True
            state.not_before = self._clock.monotonic() + _backoff(state.troubles, self._poll)
            self._note_error(why, state.troubles, state.drain.subject)
            if not isinstance(why, StoreUnavailable):
                await self._leases.release(state.drain.subject)  # so that an operator can repair it
            if flush:
                raise
            if not isinstance(why, StoreUnavailable) and state.last_alarm != why.message:
                state.last_alarm = why.message
                await self._announcer.alarm(state.drain.subject, why.message, why.do)
            return False
        state.behind = stepped in (Stepped.WAITING, Stepped.MOVED)
        if state.troubles:
            _log.info("archiving goes on", extra={"stream": state.drain.subject})
        state.troubles, state.last_alarm = 0, ""
        return stepped is Stepped.MOVED

    def _note_error(self, why: WrasseError, times: int, subject: str | None = None) -> None:
        """Counts errors, and logs the first of a series."""
        if isinstance(why, StoreUnavailable):
            self.tally.outages += 1
        if times == 1:
            _log.warning("archiving waits", extra={"stream": subject, "error": why})

    def _bound(self) -> None:
        """Drops the largest open batches while they exceed the memory limit."""
        held = sum(state.drain.held for state in self._states.values())
        while held > OPEN_BYTES_MAX:
            largest = max((state.drain for state in self._states.values()), key=lambda drain: drain.held)
            held -= largest.held
            largest.forget()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _finish(self) -> None:
        """Writes what is collected, and releases the streams."""
        for state in [state for state in self._states.values() if state.drain.open]:
            await self._flush_one(state)
        await self._leases.release_all()

    async def _flush_one(self, state: _StreamState) -> None:
        try:
            await state.drain.step(flush=True)
        except WrasseError as why:
            # Nothing is lost: the next archiver reads it again.
            self._note_error(why, 1, state.drain.subject)


def _backoff(troubles: int, poll: float) -> float:
    return min(poll * 2 ** min(troubles, 16), BACKOFF_MAX) if troubles else poll
