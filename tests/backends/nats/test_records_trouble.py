"""Records on NATS when answers are lost: cuts, delays, dropped replies and a server that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from backends.nats.records_scene import THINGS, at, opened, version
from servers.nats import Nats as NatsServer, nats
from servers.proxy import Proxy, proxy
from wrasse.backends.nats.kv_store import KvBucket, KvMessage
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import NONCES_KEPT, Record, Records, Written


async def hears_again(between: Proxy) -> None:
    """Waits until one answer was dropped, then lets the next pass."""
    async with asyncio.timeout(20):
        while not between.replies_dropped:  # noqa: ASYNC110  # a counter of the proxy
            await asyncio.sleep(0.005)
    between.deaf = False


@pytest.mark.parametrize("named", [True, False], ids=["named", "nameless"])
@pytest.mark.parametrize("step", ["create", "put", "delete"])
async def test_a_write_whose_answer_was_lost_is_made_once_and_known(
    nats_server: NatsServer, step: str, named: bool
) -> None:
    options = at(nats_server.port)
    async with proxy(nats_server.port) as between, opened(at(between.port, options.root)) as store:
        records = store.records(THINGS)
        nonce = "mine" if named else None
        first = version(await records.create("a", b"1", nonce="n" if named else None)) if step != "create" else ""
        between.deaf = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hears_again(between))
            match step:
                case "create":
                    answer = await records.create("a", b"2", nonce=nonce)
                case "put":
                    answer = await records.put("a", b"2", at=first, nonce=nonce)
                case _:
                    answer = await records.delete("a", at=first, nonce=nonce)
        record = await records.get("a")
        assert (record and record.value) == (None if step == "delete" else b"2")
        # Whether a nameless record was deleted by us or by somebody else cannot be told.
        wanted = Outcome.UNKNOWN if step == "delete" and not named else Outcome.DONE
        assert answer.outcome is wanted


async def test_a_nameless_write_that_may_have_been_forgotten_since_is_not_called_lost(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, plain, written = at(nats_server.port), KvBucket.get, asyncio.Event()
    async with (
        proxy(nats_server.port) as between,
        opened(at(between.port, options.root)) as store,
        opened(options) as other,
    ):
        first = version(await store.records(THINGS).create("a", b"1"))

        async def late(own: KvBucket, subject: str, at_least: int = 0) -> KvMessage | None:
            if own is store._bucket and not written.is_set():  # it reads back what became of its write
                written.set()
                for _ in range(NONCES_KEPT + 1):
                    record = await other.records(THINGS).get("a")
                    assert record is not None
                    await other.records(THINGS).put("a", b"theirs", at=record.version)
            return await plain(own, subject, at_least)

        monkeypatch.setattr(KvBucket, "get", late)
        between.deaf = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hears_again(between))
            answer = await store.records(THINGS).put("a", b"ours", at=first)
    assert (answer.outcome, written.is_set()) == (Outcome.UNKNOWN, True)


@dataclass
class Told:
    """What the writers were told about their writes."""

    done: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


async def write_names(records: Records, who: int, over: asyncio.Event, told: Told) -> None:
    """Adds a name of its own to the record, again and again, until the trouble is over and one more was written."""
    kept = {Outcome.DONE: told.done, Outcome.CONFLICT: told.lost, Outcome.UNKNOWN: told.unknown}
    written: Written | None = None
    turn = 0
    while not written or not over.is_set():
        turn += 1
        name = f"{who}-{turn}"
        written = await asked_until_answered(records, name)
        kept[written.outcome].append(name)


async def asked_until_answered(records: Records, name: str) -> Written:
    record: Record | None = None
    while record is None:
        with contextlib.suppress(StoreUnavailable):
            record = await records.get("names")
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await records.put("names", record.value + b" " + name.encode(), at=record.version, nonce=name)


def assert_each_once(value: bytes, told: Told) -> None:
    """Every write that was said to be made was made once, none that was said to be lost, and no others."""
    names = value.decode().split()
    assert len(names) == len(set(names))
    assert set(told.done) <= set(names) <= {*told.done, *told.unknown}


@pytest.mark.parametrize("turns", [15, pytest.param(1_500, marks=pytest.mark.full)])
async def test_through_cuts_and_lost_answers_no_write_is_lost_and_none_is_made_twice(
    nats_server: NatsServer, turns: int
) -> None:
    options, told, over = at(nats_server.port), Told(), asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        between = await stack.enter_async_context(proxy(nats_server.port))
        stores = [await stack.enter_async_context(opened(at(between.port, options.root))) for _ in range(3)]
        await stores[0].records(THINGS).create("names", b"")

        async def blows() -> None:
            for turn in range(turns):
                await asyncio.sleep(0.02)
                between.deaf = turn % 3 == 1
                between.delay = 0.002 if turn % 3 == 2 else 0.0
                if turn % 3 == 0:
                    between.cut()
            between.deaf, between.delay = False, 0.0
            over.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(blows())
            for who, store in enumerate(stores):
                tasks.create_task(write_names(store.records(THINGS), who, over, told))
        record = await stores[0].records(THINGS).get("names")
        assert record is not None
        assert_each_once(record.value, told)
        assert between.replies_dropped > 0


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.full)])
async def test_a_server_that_is_killed_under_writes_keeps_every_one_it_acknowledged(kills: int) -> None:
    told, over = Told(), asyncio.Event()
    with nats() as server:
        options = at(server.port)
        async with opened(options) as one, opened(options) as other:
            await one.records(THINGS).create("names", b"")

            async def blows() -> None:
                for _ in range(kills):
                    await asyncio.sleep(0.1)
                    await asyncio.to_thread(server.restart)
                over.set()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(blows())
                for who, store in enumerate((one, other)):
                    tasks.create_task(write_names(store.records(THINGS), who, over, told))
            record = await one.records(THINGS).get("names")
            assert record is not None
            assert_each_once(record.value, told)


async def test_a_write_to_a_server_that_stands_still_is_made_once_and_known_when_it_goes_on() -> None:
    with nats() as server:
        # Longer than an answer may take: the write is sent, given up, and found when it is read back.
        options = dataclasses.replace(at(server.port), read_timeout=timedelta(seconds=0.3))
        async with opened(options) as store:
            records = store.records(THINGS)
            first = version(await records.create("a", b"1"))
            server.pause()

            async def go_on() -> None:
                await asyncio.sleep(0.4)
                server.resume()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(go_on())
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        answer = await records.put("a", b"2", at=first, nonce="mine")
                        break
            record = await records.get("a")
            again = await records.put("a", b"2", at=first, nonce="mine")
    assert record is not None
    assert (version(answer), version(again), record.value) == (record.version, record.version, b"2")


async def test_entries_of_what_was_written_through_trouble_are_all_found(nats_server: NatsServer) -> None:
    clock = ManualClock()
    options = at(nats_server.port)
    async with proxy(nats_server.port) as between, opened(at(between.port, options.root), clock) as store:
        records = store.records(THINGS)

        async def blows() -> None:
            for turn in range(20):
                await asyncio.sleep(0.01)
                between.deaf = turn % 2 == 1
                between.cut()
            between.deaf = False

        async def write(number: int) -> None:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    due = clock.now() + timedelta(seconds=number % 3)
                    await records.create(f"k{number}", b"", due_at=due, nonce=f"n{number}")
                    return

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(blows())
            for number in range(30):
                tasks.create_task(write(number))
        clock.advance(timedelta(seconds=10))
        assert {record.key for record in await records.due(None, None, 100)} == {f"k{number}" for number in range(30)}
