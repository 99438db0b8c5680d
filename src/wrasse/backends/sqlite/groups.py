"""Groups on SQLite: every change is one transaction. The changes themselves are in deliveries, for the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import apsw
import msgspec

from wrasse.backends.sqlite import deliveries as delivery_rows, entries
from wrasse.backends.sqlite.connection import SqliteReader, SqliteWriter
from wrasse.backends.sqlite.deliveries import DeliveredEntries, EntriesWanted
from wrasse.backends.sqlite.entries import floor
from wrasse.backends.sqlite.rows import in_calendar, span
from wrasse.backends.sqlite.wakeups import CHANGED, SqliteWakeups
from wrasse.backends.sqlite.write_transaction import WriteTransaction, text
from wrasse.backends.wakeup import Wakeup
from wrasse.clock import Clock, from_micros, to_micros
from wrasse.errors import Refused, StoreBroken, StoreUnavailable
from wrasse.ports.groups import Answer, ConsumerState, Delivery, StartAt, check_answers, check_deliver, check_group
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import EntryId

_SHORTEST_WAIT = 0.001  # keeps a clock slower than the event loop's from being polled in a tight loop
_CONSUMERS = """
    SELECT CAST(json_group_array(json_array(c.name, c.seen_at, c.until,
      (SELECT count(*) FROM pending WHERE entry_group = c.entry_group AND consumer = c.name))) AS BLOB)
    FROM consumers c WHERE c.entry_group = ?
"""
_RETIRE = "DELETE FROM consumers WHERE entry_group = ? AND name = ? AND until <= ?"
_RELEASE = "UPDATE pending SET until = ?, consumer = '' WHERE entry_group = ? AND consumer = ?"
_MARK = """
    UPDATE entry_groups SET delivered_ms = ?2, delivered_seq = ?3
    WHERE id = ?1 AND (delivered_ms, delivered_seq) < (?2, ?3)
"""


class _ConsumerRow(msgspec.Struct, frozen=True, array_like=True):
    name: str
    seen_at: int
    until: int
    pending: int


_decode_consumers = msgspec.json.Decoder(list[_ConsumerRow]).decode


class SqliteGroups:
    """The groups of one database."""

    def __init__(self, writer: SqliteWriter, reader: SqliteReader, wakeups: SqliteWakeups, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._wakeups = wakeups
        self._clock = clock

    async def join(
        self, subject: str, group: str, start: StartAt, *, ack_timeout: timedelta | None = None, cursor: bool = False
    ) -> bool:
        check_group(subject, group)

        def run(tx: WriteTransaction) -> bool:
            stream = entries.make(tx, subject)
            if delivery_rows.group_id(tx.db, subject, group) is not None:
                return False
            begin = start.cursor(stream.last)
            tx.db.execute(
                "INSERT INTO entry_groups (stream, name, delivered_ms, delivered_seq) VALUES (?, ?, ?, ?)",
                (stream.id, group, begin.ms, begin.seq),
            )
            return True

        return await self._writer.do(run)

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = timedelta(0),
    ) -> Sequence[Delivery]:
        limit = check_deliver(limit, ack_timeout)
        want = EntriesWanted(tuple(dict.fromkeys(subjects)), group, consumer, limit, span(ack_timeout))
        granted = await self._grant(want)
        if granted or not limit or wait <= timedelta(0):
            return delivery_rows.decode_deliveries(granted, want)
        names = (CHANGED, *(entries.STREAM_NAME + subject for subject in want.subjects))
        with self._wakeups.listen(names, wait) as wakeup:
            while not wakeup.late and not granted:
                # Checked again now that the wakeup is registered: no later change is missed.
                if await self._has_due(wakeup, want):
                    granted = await self._grant(want)
        return delivery_rows.decode_deliveries(granted, want)

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        if not deliveries:
            return ()
        run = partial(delivery_rows.extend, consumer=consumer, deliveries=deliveries, ack_timeout=span(ack_timeout))
        return tuple(await self._writer.do(run, len(deliveries)))

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        check_answers(answers)
        if not answers:
            return ()
        return tuple(await self._writer.do(partial(delivery_rows.answer, answers=answers), len(answers)))

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        def run(tx: WriteTransaction) -> Outcome:
            stream = entries.head(tx.db, subject)
            acked = None if stream is None else floor(tx.db, stream.id, group)
            if stream is None or acked is None or acked >= upto:
                return Outcome.CONFLICT
            if upto > stream.last:
                raise Refused(
                    f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                    do="read the stream again: a mark there would count future entries as acked",
                )
            id = delivery_rows.group_id(tx.db, subject, group)
            tx.db.execute(_MARK, (id, upto.ms, upto.seq))
            tx.db.execute("DELETE FROM pending WHERE entry_group = ? AND (ms, seq) <= (?, ?)", (id, upto.ms, upto.seq))
            return Outcome.DONE

        return await self._writer.do(run)

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        def run(db: apsw.Connection) -> list[_ConsumerRow]:
            id = delivery_rows.group_id(db, subject, group)
            return [] if id is None else _decode_consumers(text(db.execute(_CONSUMERS, (id,)).get))

        now = to_micros(self._clock.now())
        return tuple(
            ConsumerState(
                subject,
                group,
                row.name,
                row.pending,
                from_micros(in_calendar(row.seen_at, now)),
                from_micros(in_calendar(row.until, now)),
            )
            for row in sorted(await self._reader.do(run), key=lambda row: row.name)
        )

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        def run(tx: WriteTransaction) -> Outcome:
            now = tx.now()
            id = delivery_rows.group_id(tx.db, subject, group)
            if id is None:
                return Outcome.CONFLICT
            tx.db.execute(_RETIRE, (id, consumer, now))
            if not tx.db.changes():
                return Outcome.CONFLICT
            tx.db.execute(_RELEASE, (now, id, consumer))
            tx.ready_queues.add(entries.STREAM_NAME + subject)
            return Outcome.DONE

        return await self._writer.do(run)

    async def _grant(self, want: EntriesWanted) -> DeliveredEntries:
        answer = self._writer.ask(partial(delivery_rows.deliver, want=want), 1 + want.limit)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # The consumer will never get these entries: they are released now and not when their deadline has passed.
            with suppress(StoreUnavailable, StoreBroken):
                granted = await asyncio.shield(answer)
                if granted:
                    await asyncio.shield(self._writer.ask(partial(delivery_rows.give_back, granted=granted, want=want)))
            raise

    async def _has_due(self, wakeup: Wakeup, want: EntriesWanted) -> bool:
        """Checks whether there is something to deliver; if not, waits for a reason to check again."""
        new, due = await self._reader.do(lambda db: delivery_rows.waits(db, want))
        now = to_micros(self._clock.now())
        if new or (due is not None and due <= now):
            return True
        timer = None
        if due is not None:
            seconds = max((due - now) / 1_000_000, _SHORTEST_WAIT)
            timer = asyncio.get_running_loop().call_later(seconds, wakeup.fire)
        try:
            await wakeup.fired()
        finally:
            if timer is not None:
                timer.cancel()
        return wakeup.late
