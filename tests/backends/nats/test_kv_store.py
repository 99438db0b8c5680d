"""Listings of subjects: whatever total the server names, and whatever names other programs choose."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from backends.nats.scene import Scene
from servers.nats import Nats
from wrasse.backends.nats.client.connection import NatsAnswer, NatsConnection
from wrasse.backends.nats.kv_store import KvBucket
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock


class _Server:
    """Answers each question about the stream with the same subject, of ten million."""

    options = NatsOptions.of("nats://127.0.0.1:1")

    async def request(self, subject: str, body: bytes) -> NatsAnswer:
        await asyncio.sleep(0)
        told = b'{"config":{},"state":{"subjects":{"$KV.a.r.x":1}},"total":10000000,"ts":"2026-01-02T03:04:05Z"}'
        return NatsAnswer(told)


async def test_a_total_that_is_never_reached_ends_the_listing() -> None:
    bucket = KvBucket(cast(NatsConnection, _Server()), SystemClock())
    async with asyncio.timeout(5):
        found, _ = await bucket.subjects("$KV.a.r.*")
    assert found == ["$KV.a.r.x"]


async def test_names_that_no_subject_can_have_are_passed_over_and_told_once(
    nats_server: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(nats_server.port)
    flows, js = await scene.flows(), await scene.js()
    prefix = scene.options().streams_prefix
    await js.call(f"STREAM.CREATE.{scene.root}", {"name": scene.root, "subjects": [f"{prefix}a.*"]})
    odd = ["a.b:c", "a.\x01", "a.\u200b", f"a.{'x' * 300}"]
    for name in ("a.b", *odd, "a.c"):
        await js.connection.request(f"{prefix}{name}", b"theirs")
    for _ in range(2):
        assert [*await flows.streams.subjects("a.*", None, 10)] == ["a.b", "a.c"]
        assert [each.subject for each in await flows.streams.survey("a.>", None, 10)] == ["a.b", "a.c"]
    assert len([each for each in caplog.records if "is skipped" in each.getMessage()]) == len(odd)
    await scene.close()
