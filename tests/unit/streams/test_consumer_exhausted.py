"""A handler of messages on a machine that ran out of files, memory or disk: an interruption, and no failure."""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from conformance.mail import AUTO, DEAD, StreamClient, eventually, reached
from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.streams.consumer import RELEASES_MAX
from wrasse.streams.delivery import Received

QUICK = replace(AUTO, deliveries_max=1, nak_delay=timedelta(milliseconds=1), nak_delay_max=timedelta(milliseconds=1))


@pytest.fixture
def client() -> StreamClient:
    clock = SystemClock()
    return StreamClient(SimpleNamespace(backend=Memory(clock), clock=clock))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, None])
async def test_what_runs_out_spends_no_delivery(client: StreamClient, error: int | None) -> None:
    calls: list[int] = []

    async def handler(received: Received) -> None:
        calls.append(received.number)
        if len(calls) <= RELEASES_MAX:
            raise MemoryError if error is None else OSError(error, "no more")

    await client.publish(b"1")
    async with client.consuming(handler, QUICK) as consumer:
        await eventually(lambda: reached(consumer.tally.acked, 1))
    assert calls == [1] * (RELEASES_MAX + 1), "one delivery"
    assert (consumer.tally.failed, await client.entries(DEAD)) == (0, ())


async def test_a_plain_handler_for_which_there_is_no_thread_spends_no_delivery(
    client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused, calls = threading.Thread.start, list[str](), list[int]()

    def starts(thread: threading.Thread) -> None:
        if thread.name == "wrasse-handler" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    await client.publish(b"1")
    async with client.consuming(lambda received: calls.append(received.number), QUICK) as consumer:
        await eventually(lambda: reached(consumer.tally.acked, 1))
    assert (len(refused), calls, consumer.tally.failed) == (2, [1], 0)


async def test_a_handler_that_always_runs_out_of_something_has_failed_in_the_end(client: StreamClient) -> None:
    async def handler(received: Received) -> None:
        raise OSError(errno.ENOSPC, "no more")

    await client.publish(b"1")
    async with client.consuming(handler, QUICK) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 1))
    assert (consumer.tally.failed, len(await client.entries(DEAD))) == (1, 1)


async def test_a_consumer_that_ends_meanwhile_gives_the_message_back(client: StreamClient) -> None:
    calls: list[int] = []

    async def handler(received: Received) -> None:
        calls.append(received.number)
        raise OSError(errno.ENOSPC, "no more")

    await client.publish(b"1")
    slow = replace(QUICK, nak_delay=timedelta(hours=1), nak_delay_max=timedelta(hours=1))
    async with client.consuming(handler, slow) as consumer:
        await eventually(lambda: reached(len(calls), 1))
    assert (consumer.tally.failed, consumer.tally.nacked, len(calls)) == (0, 1, 1)


async def _waits_for_what_is_cancelled(received: Received) -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


async def _exits(received: Received) -> None:
    sys.exit(3)


@pytest.mark.parametrize("handler", [_waits_for_what_is_cancelled, _exits])
async def test_a_handler_that_is_cancelled_or_exits_costs_its_message(
    client: StreamClient, handler: Callable[[Received], Awaitable[None]]
) -> None:
    for body in (b"1", b"2"):
        await client.publish(body)
    async with client.consuming(handler, replace(QUICK, concurrency=1)) as consumer:
        await eventually(lambda: reached(consumer.tally.dead, 2))
    assert (consumer.tally.failed, len(await client.entries(DEAD))) == (2, 2)
