"""JobQueue on SQLite: every method is one transaction, or one read of a snapshot.

What a batch may be refused for is checked before it is sent. The statements are in enqueue, claim and changes (for the
writer), and in job_listing (for the reader).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import apsw
import msgspec

from wrasse.backends.sqlite.connection import SqliteReader, SqliteWriter
from wrasse.backends.sqlite.jobs import changes, claim, enqueue, job_listing
from wrasse.backends.sqlite.jobs.claim import ClaimOptions, Grant, decode_claim
from wrasse.backends.sqlite.rows import Invalid, flaw_of, span
from wrasse.backends.sqlite.wakeups import SqliteWakeups
from wrasse.backends.sqlite.write_transaction import DEAD, NOWHERE, WriteTransaction, text
from wrasse.backends.wakeup import Wakeup
from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.inconsistency import NAMES_MAX, Inconsistency
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    NO_PROGRESS,
    Claim,
    Claimed,
    Complete,
    Counts,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobRecord,
    JobState,
    Move,
    Progress,
    Rate,
    Reason,
    Settlement,
    WorkerInfo,
    bounded,
    check_claim,
    check_enqueue,
    check_settlements,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page

_POLL_SECONDS = 0.1  # seconds between polls while a rate limit blocks a worker
_decode_answer = msgspec.json.Decoder(list[bool | str]).decode
_STATES = f"SELECT seq, CAST(id AS BLOB), state FROM jobs WHERE {NOWHERE} ORDER BY seq"
_DEAD_LETTER = (
    f"UPDATE jobs SET state = ?, deadline = NULL, finished_at = ?, reason = ?, error = ? WHERE seq = ? AND {NOWHERE}"
)
# Rows with an invalid state are not counted: they are dead once they are repaired.
_WRONG = f"""
    WITH really AS (SELECT queue, state, count(*) AS n FROM jobs WHERE NOT {NOWHERE} GROUP BY queue, state)
    SELECT CAST(queue AS BLOB), state FROM (
      SELECT queue, state, n FROM counts WHERE n > 0 EXCEPT SELECT queue, state, n FROM really
      UNION SELECT queue, state, n FROM (SELECT * FROM really EXCEPT SELECT queue, state, n FROM counts)
    ) GROUP BY queue, state
"""
_RECOUNT = "INSERT INTO counts (queue, state, n) SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"
_DONE = "UPDATE numbers SET done = (SELECT count(*) FROM jobs WHERE state >= 3 AND state = 3)"


class SqliteJobs:
    """The jobs of one database."""

    def __init__(
        self, writer: SqliteWriter, reader: SqliteReader, wakeups: SqliteWakeups, clock: Clock, *, done_max: int
    ) -> None:
        assert done_max >= 0, "a limit is not negative"
        self._writer = writer
        self._reader = reader
        self._wakeups = wakeups
        self._clock = clock
        self._done_max = done_max

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        check_enqueue(jobs, groups)
        known = f"put {request}"

        def run(tx: WriteTransaction) -> Sequence[bool | str]:
            answer = tx.recall(known)
            if answer is not None:
                return _decode_answer(answer)
            now = tx.now()
            found = enqueue.enqueue(tx, jobs, now)
            if groups:
                changes.open_groups(tx, groups, now)
            tx.remember(known, msgspec.json.encode(found))
            return found

        found = await self._writer.do(run, len(jobs) + len(groups), known)
        return tuple(
            Enqueued(other, new=False) if isinstance(other, str) else Enqueued(job.id, other)
            for job, other in zip(jobs, found, strict=True)
        )

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        check_claim(limit, heartbeat_timeout)
        want = ClaimOptions(
            tuple(dict.fromkeys(queues)), min(limit, BATCH_MAX), worker, span(heartbeat_timeout), request, tuple(rates)
        )
        claimed = await self._grant(want)
        if claimed.jobs or wait <= timedelta(0):
            return claimed
        with self._wakeups.listen(want.queues, wait) as wakeup:
            # Once more now that the wakeup is registered: no later change is missed.
            while not (claimed := await self._grant(want)).jobs and not wakeup.late:
                await self._wait_for_wakeup(wakeup, want)
        return claimed

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        run = partial(
            changes.heartbeat,
            worker=worker,
            claims=bounded(claims),
            heartbeat_timeout=span(heartbeat_timeout),
            progress=progress,
        )
        return await self._writer.do(run, 1 + len(claims))

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements)
        weight = sum(1 + (len(each.enqueues) if isinstance(each, Complete) else 0) for each in settlements)
        known = f"settle {request}"

        def run(tx: WriteTransaction) -> tuple[Outcome, ...]:
            answer = tx.recall(known)
            if answer is None:
                outcomes = changes.settle(tx, settlements, tx.now(), self._done_max)
                tx.remember(known, bytes(outcome is Outcome.CONFLICT for outcome in outcomes))
                return tuple(outcomes)
            return tuple(Outcome.CONFLICT if conflict else Outcome.DONE for conflict in answer)

        return await self._writer.do(run, weight, known)

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        return tuple(await self._writer.do(partial(changes.move, moves=bounded(moves)), len(moves)))

    async def get(self, id: str) -> JobRecord | None:
        return await self._reader.do(lambda db: job_listing.record(db, id, self._now()))

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        def run(db: apsw.Connection) -> Page[JobInfo] | None:
            now = self._now()
            if state is JobState.READY and job_listing.scheduled_are_due(db, now):
                return None
            return job_listing.page(db, state, where, after, limit, newest=newest, now=now)

        while (page := await self._reader.do(run)) is None:
            await self._promote()
        return page

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        return await self._reader.do(lambda db: job_listing.overdue(db, after, limit, self._now()))

    async def counts(self) -> Counts:
        def run(db: apsw.Connection) -> Counts | None:
            now = self._now()
            return None if job_listing.scheduled_are_due(db, now) else job_listing.counts(db, now)

        while (counts := await self._reader.do(run)) is None:
            await self._promote()
        return counts

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        run = partial(changes.delete, deletes=bounded(deletes), ids_kept=span(ids_kept))
        return tuple(await self._writer.do(run, len(deletes)))

    def _now(self) -> int:
        return to_micros(self._clock.now())

    async def _promote(self) -> None:
        await self._writer.do(lambda tx: enqueue.promote(tx, tx.now()))

    async def _wait_for_wakeup(self, wakeup: Wakeup, want: ClaimOptions) -> None:
        """Waits for the wakeup; with rate limits also for the moment at which one allows more, which fires no
        wakeup."""
        again = None
        if want.rates:
            again = await self._reader.do(lambda db: claim.next_at(db, want.queues, want.rates, self._now()))
        seconds = None if again is None else min(max((again - self._now()) / 1e6, 0.001), _POLL_SECONDS)
        await wakeup.fired(seconds)

    async def _grant(self, want: ClaimOptions) -> Claimed:
        while (claimed := await self._grant_once(want)) is None:
            pass
        return claimed

    async def _grant_once(self, want: ClaimOptions) -> Claimed | None:
        """The jobs of one grant; None if it had only invalid rows, which are dead-lettered now."""
        answer = self._writer.ask(partial(claim.claim, want=want), want.limit, want.known)
        try:
            granted = await asyncio.shield(answer)
            claimed, invalid = decode_claim(granted)
            if invalid and isinstance(granted, claim.ClaimedRows):
                await self._dead_letter(granted.grant, invalid, None if claimed.jobs else want.known)
            return claimed if claimed.jobs or not invalid else None
        except asyncio.CancelledError:
            # The worker will never get these jobs: they are released now and not when their deadline has passed.
            with suppress(StoreUnavailable, StoreBroken):
                granted = await asyncio.shield(answer)
                if isinstance(granted, claim.ClaimedRows) and granted.fresh:
                    back = partial(claim.release, grant=granted.grant, known=want.known)
                    await asyncio.shield(self._writer.ask(back))
            raise

    async def _dead_letter(self, grant: Grant, invalid: Sequence[Invalid], forgotten: str | None) -> None:
        """Dead-letters invalid rows of a grant; a grant of nothing else is forgotten, and its request answered anew."""

        def run(tx: WriteTransaction) -> None:
            changes.dead_letter_invalid(tx, invalid, grant.token, grant.nonce)
            if forgotten is not None:
                tx.forget(forgotten)

        await self._writer.do(run, len(invalid))


class SqliteFsck:
    """Inconsistencies that another program can cause in a database: rows with an invalid state, and counts of jobs that
    differ from the rows. Each repair is one transaction that checks again."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader) -> None:
        self._writer, self._reader = writer, reader

    async def check(
        self, *, repair: bool, heartbeat_timeout: timedelta, seen: Callable[[int], None] = lambda count: None
    ) -> Sequence[Inconsistency]:
        if repair:
            return await self._writer.do(_repaired)
        return await self._reader.do(lambda db: _found(db, repaired=False))


def _found(db: apsw.Connection, *, repaired: bool) -> list[Inconsistency]:
    invalid = [text(id) for _, id, _ in db.execute(_STATES)]
    wrong = [f"{text(queue)} (state {state})" for queue, state in db.execute(_WRONG)]
    kinds = [
        ("state", "a job with an invalid state", "it is dead, with its payload", invalid),
        ("counts", "a count of jobs that differs from the rows", "it is counted again", wrong),
    ]
    return [
        Inconsistency(kind, about, repair, len(names), len(names) if repaired else 0, tuple(names[:NAMES_MAX]))
        for kind, about, repair, names in kinds
        if names
    ]


def _repaired(tx: WriteTransaction) -> list[Inconsistency]:
    found = _found(tx.db, repaired=True)
    now = tx.now()
    rows: list[Any] = tx.db.execute(_STATES).fetchall()
    for seq, _, state in rows:
        error = flaw_of(seq, f"its state was {state}")
        tx.db.execute(_DEAD_LETTER, (DEAD, now, Reason.INVALID_PAYLOAD, error, seq))
    if found:
        tx.db.execute("DELETE FROM counts")
        tx.db.execute(_RECOUNT)
        tx.db.execute(_DONE)
    return found
