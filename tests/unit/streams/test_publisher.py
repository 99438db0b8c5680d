"""Publishing, apart from any backend's way of storing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wrasse.backends.memory.connect import Memory
from wrasse.backends.memory.streams import Logs, MemoryStreams
from wrasse.clock import ManualClock
from wrasse.errors import TooLarge, UsageError
from wrasse.ports.streams import APPENDS_MAX, START
from wrasse.streams.envelope import decode
from wrasse.streams.publisher import Publication, Publisher


class ForgetfulStreams(MemoryStreams):
    """A backend that keeps no idempotency keys."""

    @property
    def dedup_window(self) -> timedelta:
        return timedelta(0)


async def test_a_key_is_refused_where_the_backend_keeps_none() -> None:
    streams = ForgetfulStreams(Logs(ManualClock()))
    publisher = Publisher(streams, ManualClock())
    with pytest.raises(UsageError, match="idempotency key"):
        await publisher.publish_many([Publication("s", b"1"), Publication("s", b"2", key="k")])
    assert await streams.info("s") is None


async def test_a_key_whose_message_was_trimmed_still_publishes_nothing_new() -> None:
    memory = Memory(ManualClock())
    publisher = Publisher(memory.streams, ManualClock())
    await publisher.publish("s", b"1", key="k")
    await memory.streams.trim("s", age=None, below=None, protect=(), limit=10)
    assert len(await publisher.publish("s", b"2", key="k")) == 26
    assert not (await memory.streams.read("s", START, 10)).items


async def test_a_smaller_limit_may_be_set() -> None:
    memory = Memory(ManualClock())
    publisher = Publisher(memory.streams, ManualClock(), payload_max=100)
    with pytest.raises(TooLarge, match="200 bytes for 's', and at most 100"):
        await publisher.publish("s", b"x" * 200)


async def test_more_messages_than_one_append_takes_are_refused_whole() -> None:
    memory = Memory(ManualClock())
    publisher = Publisher(memory.streams, ManualClock())
    with pytest.raises(UsageError, match=str(APPENDS_MAX + 1)):
        await publisher.publish_many([Publication("s", b"")] * (APPENDS_MAX + 1))
    assert await memory.streams.info("s") is None


async def test_ids_grow_while_the_clock_stands_still() -> None:
    memory = Memory(ManualClock())
    publisher = Publisher(memory.streams, ManualClock())
    ids = await publisher.publish_many([Publication("s", b"")] * 100)
    assert ids == sorted(set(ids))


async def test_a_bytearray_is_stored_as_it_was_then() -> None:
    memory = Memory(ManualClock())
    payload = bytearray(b"before")
    await Publisher(memory.streams, ManualClock()).publish("s", payload)
    payload[:] = b"after!"
    (entry,) = (await memory.streams.read("s", START, 1)).items
    assert decode(entry.body).payload == b"before"
