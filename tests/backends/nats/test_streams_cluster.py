"""Streams and groups on three servers, the leading one killed: nothing confirmed is lost, all of it is delivered."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from backends.nats.scene import G, S, entries
from servers.nats import nats_cluster
from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.connect import Flows
from wrasse.backends.nats.message_codec import stream_name
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import Draft

COUNT = 60
PATIENCE = 90


@pytest.mark.full
async def test_a_cluster_that_loses_its_leader_keeps_what_it_confirmed_and_delivers_it() -> None:
    with nats_cluster() as cluster:
        nodes = tuple(("127.0.0.1", node.port) for node in cluster.nodes)
        link = await NatsConnection.open(NatsOptions(nodes=nodes, replicas=3))
        flows = await Flows.open(link, SystemClock())
        await flows.groups.join(S, G, StartAt(first=True), ack_timeout=timedelta(seconds=5))
        confirmed: list[bytes] = []
        read: list[bytes] = []
        written = asyncio.Event()

        async def write() -> None:
            for n in range(COUNT):
                body = b"%d" % n
                try:
                    await flows.streams.append([Draft(S, body + b" a"), Draft(S, body + b" b")])
                    confirmed.extend((body + b" a", body + b" b"))
                except StoreUnavailable:
                    await asyncio.sleep(0.2)  # given up, and told so
                if n == COUNT // 3:
                    leader = cluster.leader(stream_name(S))
                    assert leader is not None
                    leader.kill()
            written.set()

        async def consume() -> None:
            while not (written.is_set() and set(confirmed) <= set(read)):
                try:
                    found = await flows.groups.deliver([S], G, "c", 10, ack_timeout=timedelta(seconds=5))
                    read.extend(delivery.entry.body for delivery in found)
                    await flows.groups.answer([Ack(S, G, delivery.entry.id) for delivery in found])
                except StoreUnavailable:
                    await asyncio.sleep(0.2)

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(write(), consume())
        stored = [entry.body for entry in await entries(flows)]
        await link.close()
    assert len(stored) == len(set(stored))
    assert set(confirmed) <= set(stored)
    assert set(confirmed) <= set(read)
