"""A listing of subjects ends, whatever total the server names."""

from __future__ import annotations

import asyncio
from typing import cast

from wrasse.backends.nats.kv_bucket import Bucket
from wrasse.backends.nats.link import Link, Message
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock


class _Server:
    """Answers each question about the stream with the same subject, of ten million."""

    options = NatsOptions.of("nats://127.0.0.1:1")

    async def request(self, subject: str, body: bytes) -> Message:
        await asyncio.sleep(0)
        told = b'{"config":{},"state":{"subjects":{"$KV.a.r.x":1}},"total":10000000,"ts":"2026-01-02T03:04:05Z"}'
        return Message(told)


async def test_a_total_that_is_never_reached_ends_the_listing() -> None:
    bucket = Bucket(cast(Link, _Server()), SystemClock())
    async with asyncio.timeout(5):
        found, _ = await bucket.subjects("$KV.a.r.*")
    assert found == ["$KV.a.r.x"]
