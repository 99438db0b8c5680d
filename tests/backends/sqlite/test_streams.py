"""Streams on SQLite: flat cost, several processes, killed ones too, and waiting for next to nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from backends.sqlite import stream_child
from backends.sqlite.stream_child import G, S
from wrasse.backends.sqlite import connection, entries
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.groups import Ack, DeadLetter, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Draft

FIRST = StartAt(first=True)
TIMEOUT = timedelta(seconds=30)
HOUR = timedelta(hours=1)
LARGE = ("streams", "entries", "entry_keys", "entry_groups", "pending", "consumers")
ALIASES = ("s", "e", "g", "p", "c")  # of those, in joins
Statements = dict[str, object]


@pytest.fixture
def statements() -> Iterator[Statements]:
    """Every statement that connections make from here on, with one set of values for it."""
    seen: Statements = {}

    def note(cursor: apsw.Cursor, sql: str, values: object) -> bool:
        seen[sql] = values
        return True

    def trace(db: apsw.Connection) -> None:
        db.exec_trace = note

    apsw.connection_hooks.append(trace)
    yield seen
    apsw.connection_hooks.remove(trace)


def scans(db: apsw.Connection, sql: str, values: object) -> list[str]:
    """Steps of the plan that read a whole table."""
    lines = [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type]
    whole = {f"SCAN {table}" for table in (*LARGE, *ALIASES)}
    return [f"{line} in {sql}" for line in lines if line in whole]


async def use(store: Sqlite, clock: ManualClock) -> None:
    """Every method, with everything that makes a difference."""
    streams, groups = store.streams, store.groups
    drafts = [Draft(S, b"%d" % n, key=f"k{n}", fields={"n": b""} if n % 2 else None) for n in range(9)]
    ids = await streams.append(drafts)
    await streams.append([Draft("other", b""), Draft(S, b"")])
    for subject in (S, "other"):
        await groups.join(subject, G, FIRST)
    for _ in range(2):
        found = await groups.deliver([S, "other"], G, "c", 4, ack_timeout=TIMEOUT)
        await groups.deliver([S], G, "d", 1, ack_timeout=TIMEOUT)
        clock.advance(TIMEOUT)
    await groups.deliver([S, "other"], G, "c", 3, ack_timeout=TIMEOUT)
    await groups.extend("c", found, ack_timeout=TIMEOUT)
    letter = DeadLetter(S, G, ids[1], Draft("dead", b""))
    await groups.answer([Ack(S, G, ids[0]), Nak(S, G, ids[2]), letter, Ack(S, G, ids[6])])
    await groups.answer([Ack(S, G, ids[3])])
    await groups.consumers(S, G)
    await groups.mark(S, G, ids[4])
    clock.advance(HOUR)
    await groups.retire(S, G, "d")
    await streams.read(S, ids[2], 3)
    await streams.info(S)
    await streams.subjects("gbe.>", None, 5)
    await streams.subjects("*", "a", 5)
    await streams.trim(S, age=TIMEOUT, below=ids[8], protect=[G], limit=2)
    await groups.deliver([S], G, "c", 1, ack_timeout=TIMEOUT, wait=timedelta(milliseconds=1))
    await groups.deliver(["other"], G, "c", 1, ack_timeout=TIMEOUT, wait=timedelta(milliseconds=1))


async def test_no_statement_of_streams_reads_a_whole_table(tmp_path: Path, statements: Statements) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    await use(store, clock)
    await store.close()
    made = {sql: values for sql, values in statements.items() if any(f" {table}" in sql for table in LARGE)}
    made = {sql: values for sql, values in made.items() if "CREATE" not in sql}
    db = apsw.Connection(str(tmp_path / "wrasse.db"))
    assert len(made) > 30, "the statements were heard"
    assert [scan for sql, values in made.items() for scan in scans(db, sql, values)] == []


def test_a_scan_would_be_noticed(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "any.db"))
    db.execute("CREATE TABLE entries (n INTEGER)")
    assert scans(db, "SELECT n FROM entries", None)
    assert scans(db, "SELECT n FROM entries e", None)


class Work:
    """Counts the steps of SQLite's machine, on every connection that is opened while it is here."""

    def __init__(self) -> None:
        self.steps = 0

    def hook(self, db: apsw.Connection) -> None:
        db.set_progress_handler(self._count, 10)

    def _count(self) -> bool:
        self.steps += 10
        return False

    def __enter__(self) -> Work:
        apsw.connection_hooks.append(self.hook)
        return self

    def __exit__(self, *_: object) -> None:
        apsw.connection_hooks.remove(self.hook)


async def test_work_follows_what_is_delivered_and_not_what_is_stored(tmp_path: Path) -> None:
    costs = [await work_among(tmp_path, many) for many in (1_000, 50_000)]
    assert all(large <= 2 * small + 100 for small, large in zip(*costs, strict=True)), costs
    assert all(small > 50 for small in costs[0]), "the steps were counted"


async def work_among(place: Path, many: int) -> list[int]:
    """Steps of a delivery, an append, a page, a look and a trim, among so many entries."""
    with Work() as work:
        store = await Sqlite.open(place / f"{many}.db")
    await store.groups.join(S, G, FIRST)
    for _ in range(many // 1_000):
        ids = await store.streams.append([Draft(S, b"body")] * 1_000)
    acts = (
        lambda: store.groups.deliver([S], G, "c", 10, ack_timeout=HOUR),
        lambda: store.streams.append([Draft(S, b"body")] * 10),
        lambda: store.streams.read(S, ids[-20], 10),
        lambda: store.streams.info(S),
        lambda: store.streams.trim(S, age=None, below=None, protect=[], limit=10),
    )
    cost = []
    for act in acts:
        before = work.steps
        await act()
        cost.append(work.steps - before)
    await store.close()
    return cost


async def test_a_database_without_streams_gets_them(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "wrasse.db"))
    connection.prepare(db, "wrasse.db", connection.load_steps()[:1])
    db.close()
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.streams.append([Draft(S, b"1")])
    assert len(await store.streams.read(S, START, 10)) == 1
    await store.close()


async def test_a_large_delivery_is_cut_by_bytes_and_the_rest_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "LOAD_BYTES_MAX", 2_500)
    store = await Sqlite.open(tmp_path / "wrasse.db", ManualClock())
    for subject in ("a", "b", "c"):
        await store.groups.join(subject, G, FIRST)
        await store.streams.append([Draft(subject, bytes([n]) * 1_000) for n in range(3)])
    one = [len(await store.groups.deliver(["a"], G, "c", 10, ack_timeout=TIMEOUT)) for _ in range(3)]
    two = [len(await store.groups.deliver(["b", "c"], G, "c", 10, ack_timeout=TIMEOUT)) for _ in range(4)]
    page = await store.streams.read("a", START, 10)
    await store.close()
    assert (one, two) == ([2, 1, 0], [2, 2, 2, 0])
    assert (len(page), page.more) == (2, True)


async def test_an_entry_larger_than_any_answer_comes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "LOAD_BYTES_MAX", 100)
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    await store.groups.join(S, G, FIRST)
    await store.streams.append([Draft(S, b"x" * 500), Draft(S, b"y" * 500)])
    sizes = []
    for _ in range(4):
        sizes.append([d.entry.body[:1] for d in await store.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT)])
        clock.advance(TIMEOUT / 2)
    await store.close()
    assert sizes == [[b"x"], [b"y"], [b"x"], [b"y"]]


async def test_what_is_due_again_is_cut_by_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    await store.groups.join(S, G, FIRST)
    await store.streams.append([Draft(S, b"x" * 1_000)] * 3)
    await store.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT)
    clock.advance(TIMEOUT)
    monkeypatch.setattr(entries, "LOAD_BYTES_MAX", 2_500)
    again = [len(await store.groups.deliver([S], G, "c", 10, ack_timeout=TIMEOUT)) for _ in range(3)]
    await store.close()
    assert again == [2, 1, 0]


async def test_keys_that_are_forgotten_do_not_pile_up(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await Sqlite.open(tmp_path / "wrasse.db", clock)
    for n in range(20):
        await store.streams.append([Draft(S, b"", key=f"{n}-{k}") for k in range(10)])
        clock.advance(timedelta(minutes=1))
    kept = await store._reader.do(lambda db: db.execute("SELECT count(*) FROM entry_keys").get)
    await store.close()
    assert kept <= 40


async def test_a_group_that_a_trim_overtook_does_not_keep_its_waiters_busy(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.groups.join(S, G, FIRST)
    await store.streams.append([Draft(S, b"")] * 3)
    await store.streams.trim(S, age=None, below=None, protect=[], limit=10)
    before = time.process_time()
    assert list(await store.groups.deliver([S], G, "c", 1, ack_timeout=HOUR, wait=timedelta(seconds=1))) == []
    cost = time.process_time() - before
    await store.close()
    assert cost < 0.3, "a second of waiting, not of asking again and again"


async def test_an_append_and_a_nak_of_this_process_wake_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.backends.sqlite.wakeups.TICK", 3600)  # changes of other processes are not polled
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.groups.join(S, G, FIRST)
    for number in (1, 2):
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            waiting = group.create_task(store.groups.deliver([S], G, "c", 1, ack_timeout=HOUR, wait=HOUR))
            while not store._wakeups._wakeups:  # noqa: ASYNC110
                await asyncio.sleep(0)
            if number == 1:
                (id,) = await store.streams.append([Draft(S, b"")])
            else:
                await store.groups.answer([Nak(S, G, id)])
        assert [delivery.number for delivery in waiting.result()] == [number]
    await store.close()


async def test_waiting_for_a_message_costs_next_to_nothing_and_writes_nothing(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.groups.join(S, G, FIRST)
    await store.groups.deliver([S], G, "c", 1, ack_timeout=HOUR)
    log = tmp_path / "wrasse.db-wal"
    before = log.stat().st_size, time.process_time(), time.monotonic()
    for _ in range(4):
        await store.groups.deliver([S], G, "c", 1, ack_timeout=HOUR, wait=timedelta(milliseconds=500))
    cost = (time.process_time() - before[1]) / (time.monotonic() - before[2])
    grown = log.stat().st_size - before[0]
    await store.close()
    assert grown == 0
    # Below 0.5 % on a quiet machine; other load makes the same instructions take longer.
    assert cost < 0.05


async def test_closing_ends_the_wait_for_a_message(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.groups.join(S, G, FIRST)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(_asks(store))
        while not store._wakeups._wakeups:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await store.close()
    assert waiting.result() in ("nothing", "closed")


async def _asks(store: Sqlite) -> str:
    try:
        found = await store.groups.deliver([S], G, "c", 1, ack_timeout=HOUR, wait=HOUR)
    except StoreUnavailable as error:
        return "closed" if "is closed" in error.message else error.message
    return "something" if found else "nothing"


# Several processes


async def test_an_append_by_another_process_wakes_a_waiting_consumer(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.groups.join(S, G, FIRST)
    child = stream_child.start("appends_one", tmp_path / "wrasse.db")
    assert child.stdin is not None
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "waiting\n"
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(store.groups.deliver([S], G, "c", 1, ack_timeout=HOUR, wait=HOUR))
        while not store._wakeups._wakeups:  # noqa: ASYNC110
            await asyncio.sleep(0)
        child.stdin.write("go\n")
        child.stdin.flush()
    await asyncio.to_thread(child.communicate, timeout=60)
    await store.close()
    assert [delivery.entry.body for delivery in waiting.result()] == [b"from outside"]


def killed(child: subprocess.Popen[str]) -> list[str]:
    """Kills it; gives the whole lines it still had to say."""
    os.kill(child.pid, signal.SIGKILL)
    assert child.stdin is not None
    assert child.stdout is not None
    rest = child.stdout.read()  # not communicate(), which passes over what was read ahead
    child.stdin.close()
    child.stdout.close()
    child.wait()
    return [line.strip() for line in rest.splitlines(keepends=True) if line.endswith("\n")]


def broken_laws(path: Path) -> list[str]:
    """What must be true of the tables between two writes."""
    db = apsw.Connection(str(path))
    laws = {
        "counted": "SELECT count(*) FROM streams s WHERE length != (SELECT count(*) FROM entries WHERE stream = s.id)"
        " OR bytes != (SELECT coalesce(sum(size), 0) FROM entries WHERE stream = s.id)",
        "numbered without a gap": "SELECT count(*) FROM streams s WHERE length > 0 AND last_seq !="
        " (SELECT min(seq) FROM entries WHERE stream = s.id) + length - 1",
        "pending is stored": "SELECT count(*) FROM pending p JOIN entry_groups g ON g.id = p.entry_group"
        " WHERE NOT EXISTS (SELECT 1 FROM entries e WHERE e.stream = g.stream AND e.ms = p.ms AND e.seq = p.seq)",
        "pending was delivered": "SELECT count(*) FROM pending p JOIN entry_groups g ON g.id = p.entry_group"
        " WHERE (p.ms, p.seq) > (g.delivered_ms, g.delivered_seq)",
    }
    broken = [law for law, sql in laws.items() if db.execute(sql).get]
    broken += [] if db.execute("PRAGMA integrity_check").get == "ok" else ["sound"]
    db.close()
    return broken


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.full)])
def test_killed_processes_lose_no_message_and_ack_none_twice(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "wrasse.db"
    stored: set[str] = set()
    acked: Counter[str] = Counter()
    for kill in range(kills):
        children = {what: stream_child.start(what, path) for what in ("appends", "consumes", "trims")}
        for what, wanted in (("appends", 40 * (kill % 5 + 1)), ("consumes", 20), ("trims", 3)):
            lines = [children[what].stdout.readline().strip() for _ in range(wanted)]  # type: ignore[union-attr]
            lines += killed(children[what])
            if what == "appends":
                stored.update(lines)
            elif what == "consumes":
                acked.update(lines)
        assert broken_laws(path) == []
    left = asyncio.run(_drain(path))
    assert stored
    assert max(acked.values()) == 1, "an acked message came again"
    # The last ack before a kill may be known to the database alone.
    assert len(stored - set(acked) - left) <= 5 * kills
    assert not set(acked) & left


async def _drain(path: Path) -> set[str]:
    """All that the group has not acked, delivered now."""
    store = await Sqlite.open(path)
    left: set[str] = set()
    info = await store.streams.info(S)
    assert info is not None
    while True:
        found = await store.groups.deliver([S], G, "last", 100, ack_timeout=HOUR, wait=timedelta(milliseconds=200))
        if not found:
            break
        outcomes = await store.groups.answer([Ack(S, G, each.entry.id) for each in found])
        assert set(outcomes) == {Outcome.DONE}
        left |= {each.entry.body.decode() for each in found}
    await store.close()
    return left
