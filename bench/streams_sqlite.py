"""Streams on SQLite: appending, and reading as a group with acks, against a plain loop with the same statements.

The raw loops have one connection in one thread, wrasse's own tables and statements, a transaction per batch for each
append, delivery and ack, and no port, event loop, threads or dataclasses. On our side several tasks work at a time, as
in a program, each waiting for its answers; the writer puts what waits into one transaction. Both sides are durable.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path

import apsw
import msgspec

from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from bench.raw_sqlite import open_raw
from wrasse.backends.sqlite import deliveries, entries
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock, to_micros
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import START, Draft

SUBJECT, GROUP, CONSUMER = "gbe.events.audit.change", "readers", "c1"
BATCH = 1_000  # in one append
READ = 100  # in one delivery: what a consumer asks for
TASKS = 8
BODY = b'{"message_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","subject":"gbe.events.audit.change","timestamp":1,"payload":"' + (
    b"QUJD" * 64 + b'"}'
)
TIMEOUT = timedelta(seconds=30)
TARGET = 0.7
_decode_ids = msgspec.json.Decoder(list[tuple[int, int, int]]).decode


def run(quick: bool) -> Result:
    """Appends all in batches, or reads and acks all in batches."""
    count = 20_000 if quick else 100_000
    took = take_turns(
        {
            "append, wrasse": lambda place: asyncio.run(_append(place, count)),
            "append, raw": lambda place: _raw_append(place, count),
            "read and ack, wrasse": lambda place: asyncio.run(_read(place, count)),
            "read and ack, raw": lambda place: _raw_read(place, count),
        },
        rounds=3 if quick else 5,
    )
    rates = tuple(Rate(who, count / time, "messages/s") for who, time in took.items())
    ratios = tuple(
        Ratio(f"{what}: wrasse to raw", took[f"{what}, raw"] / took[f"{what}, wrasse"], TARGET)
        for what in ("append", "read and ack")
    )
    return Result(BENCHMARK.name, BENCHMARK.about, rates, ratios)


BENCHMARK = Benchmark("streams_sqlite", f"streams on SQLite, {len(BODY)} bytes a message", run)


async def _append(place: Path, count: int) -> float:
    store = await Sqlite.open(place / "wrasse.db")
    drafts = [Draft(SUBJECT, BODY) for _ in range(BATCH)]  # ready before the clock starts, as the raw loop's bodies are

    async def publish(batches: int) -> None:
        for _ in range(batches):
            await store.streams.append(drafts)

    return await _timed(store, [publish(count // BATCH // 2) for _ in range(2)])


async def _timed(store: Sqlite, tasks: list[Coroutine[None, None, None]]) -> float:
    clock = SystemClock()
    began = clock.monotonic()
    await asyncio.gather(*tasks)
    took = clock.monotonic() - began
    await store.close()
    return took


async def _read(place: Path, count: int) -> float:
    await _append(place, count)
    store = await Sqlite.open(place / "wrasse.db")
    await store.groups.join(SUBJECT, GROUP, StartAt(first=True))

    async def consume(name: str) -> None:
        while found := await store.groups.deliver([SUBJECT], GROUP, name, READ, ack_timeout=TIMEOUT):
            await store.groups.answer([Ack(SUBJECT, GROUP, delivery.entry.id) for delivery in found])

    return await _timed(store, [consume(f"{CONSUMER}-{n}") for n in range(TASKS)])


def _raw_append(place: Path, count: int) -> float:
    db = open_raw(place)
    try:
        return seconds(lambda: _raw_appends(db, count))
    finally:
        db.close()


def _raw_appends(db: apsw.Connection, count: int) -> None:
    clock = SystemClock()
    seq = 0
    db.execute("INSERT OR IGNORE INTO streams (subject) VALUES (?)", (SUBJECT,))
    for _ in range(count // BATCH):
        db.execute("BEGIN IMMEDIATE")
        stream, ms, seq, *_ = db.execute(entries._HEAD, (SUBJECT,)).get
        ms = max(ms, to_micros(clock.now()) // 1_000)
        entries._write_bodies(db, stream, ms, seq + 1, [BODY] * BATCH)
        db.execute(entries._GROWN, (BATCH, BATCH * len(BODY), ms, seq + BATCH, stream))
        db.execute("COMMIT")


def _raw_read(place: Path, count: int) -> float:
    db = open_raw(place)
    try:
        _raw_appends(db, count)
        stream = db.execute("SELECT id FROM streams").get
        db.execute("INSERT INTO entry_groups VALUES (1, ?, ?, 0, 0)", (stream, GROUP))
        return seconds(lambda: _raw_reads(db, stream, count))
    finally:
        db.close()


def _raw_reads(db: apsw.Connection, stream: int, count: int) -> None:
    clock = SystemClock()
    groups = array("q", [1])
    left, after = count, (START.ms, START.seq)
    while left:
        db.execute("BEGIN IMMEDIATE")
        now = to_micros(clock.now())
        until = now + 30_000_000
        db.execute(deliveries._MEMBERS, (GROUP, apsw.carray((SUBJECT,)))).fetchall()
        db.execute(deliveries._DUE, (apsw.carray(groups), now, READ)).fetchall()
        db.execute(deliveries._SEEN, (apsw.carray(groups), CONSUMER, now, until, until))
        bounds = (stream, *after, 1 << 62, 1 << 62, READ)
        found, _, *last = db.execute(entries._RANGE, bounds).get
        ids, _, bodies = db.execute(entries._LOAD, (stream, *after, *last, READ)).get
        db.execute(deliveries._HAND_OUT, (1, until, CONSUMER, stream, *after, *last))
        db.execute(deliveries._READ, (*last, 1))
        db.execute("COMMIT")
        at, got = 0, []
        for ms, seq, length in _decode_ids(ids):
            got.append((ms, seq, bodies[at : at + length]))
            at += length
        db.execute("BEGIN IMMEDIATE")
        one = (1, got[0][1], got[-1][1])
        db.execute(deliveries._COUNT_RANGE, one).fetchall()
        db.execute(deliveries._DELETE_RANGE, one)
        db.execute("COMMIT")
        left, after = left - found, tuple(last)
