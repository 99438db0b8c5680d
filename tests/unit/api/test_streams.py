"""Messages in a program: published, and handled by functions that were registered for them."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from wrasse.api.app import connect
from wrasse.api.streams import AppStreams, NewMessage
from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.errors import UsageError
from wrasse.ports.streams import START
from wrasse.streams.delivery import PlainReceived, Received
from wrasse.streams.envelope import decode

S = "orders.eu.paid"
PATIENCE = 30


class Scene:
    """A program's streams, in memory."""

    def __init__(self) -> None:
        self.memory = Memory(SystemClock())
        self.streams = AppStreams(self.open, SystemClock())

    async def open(self) -> Memory:
        return self.memory

    async def payloads(self, subject: str = S) -> list[bytes]:
        return [decode(entry.body).payload for entry in (await self.memory.streams.read(subject, START, 100)).items]

    async def run_until(self, done: asyncio.Event) -> None:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(self.streams.run())
            await done.wait()
            self.streams.stop()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_bytes_go_out_as_they_are_and_anything_else_as_json(scene: Scene) -> None:
    await scene.streams.publish(S, b"\xff")
    await scene.streams.publish(S, {"order": 42})
    assert await scene.payloads() == [b"\xff", b'{"order":42}']


async def test_many_messages_are_published_in_order(scene: Scene) -> None:
    ids = await scene.streams.publish_many(NewMessage(S, b"%d" % n) for n in range(10_001))
    state = await scene.memory.streams.info(S)
    assert state is not None
    assert (state.length, ids == sorted(set(ids))) == (10_001, True)


async def test_a_key_publishes_once(scene: Scene) -> None:
    assert await scene.streams.publish(S, b"1", key="k") == await scene.streams.publish(S, b"2", key="k")
    assert await scene.payloads() == [b"1"]


async def test_a_registered_handler_gets_the_messages_and_acks_by_returning(scene: Scene) -> None:
    seen: list[bytes] = []
    done = asyncio.Event()

    @scene.streams.on("orders.*.paid", start="first")
    async def ship(received: Received) -> None:
        seen.append(received.payload)
        if len(seen) == 2:
            done.set()

    await scene.streams.publish_many([NewMessage(S, b"1"), NewMessage("orders.us.paid", b"2")])
    await scene.run_until(done)
    state = await scene.memory.streams.info(S)
    assert state is not None
    assert sorted(seen) == [b"1", b"2"]
    assert [(group.name, group.pending, group.lag) for group in state.groups] == [("ship", 0, 0)]


async def test_two_handlers_of_one_subject_each_get_every_message(scene: Scene) -> None:
    seen: set[tuple[str, bytes]] = set()
    done = asyncio.Event()

    def note(who: str, payload: bytes) -> None:
        seen.add((who, payload))
        if len(seen) == 2:
            done.set()

    @scene.streams.on(S, start="first")
    async def ship(received: Received) -> None:
        note("ship", received.payload)

    loop = asyncio.get_running_loop()

    @scene.streams.on(S, start="first")
    def bill(received: PlainReceived) -> None:
        loop.call_soon_threadsafe(note, "bill", received.payload)

    await scene.streams.publish(S, b"1")
    await scene.run_until(done)
    assert seen == {("ship", b"1"), ("bill", b"1")}


async def test_a_signal_ends_the_handlers(scene: Scene) -> None:
    started = asyncio.Event()

    @scene.streams.on(S, start="first")
    async def ship(received: Received) -> None:
        started.set()

    await scene.streams.publish(S, b"1")
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.streams.run())
        await started.wait()
        os.kill(os.getpid(), signal.SIGTERM)
    assert running.done()


async def test_running_without_a_handler_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageError, match="no handler"):
        await scene.streams.run()


def test_what_cannot_be_registered_is_refused(scene: Scene) -> None:
    async def ship(received: Received) -> None: ...

    scene.streams.on(S)(ship)
    with pytest.raises(UsageError, match="would share its messages"):
        scene.streams.on(S)(ship)
    scene.streams.on(S, group="other")(ship)
    with pytest.raises(UsageError, match="pattern"):
        scene.streams.on("a..b")
    with pytest.raises(UsageError, match="cannot start"):
        scene.streams.on(S, start="middle")
    with pytest.raises(UsageError, match="handler of type int"):
        scene.streams.on(S, group="third")(5)  # type: ignore[type-var]


async def test_an_app_publishes_and_handles_messages() -> None:
    app = connect("memory:")
    done = asyncio.Event()

    @app.on(S, start="first")
    async def ship(received: Received) -> None:
        done.set()

    await app.streams.publish(S, {"order": 42})
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(app.streams.run())
        await done.wait()
        app.streams.stop()
    await app.close()
    assert done.is_set()
