"""A consumer of a group on NATS that may be killed or frozen at any moment: notes every message that it has handled.

python nats_consumer_actor.py URL REPLICAS FILE
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from datetime import timedelta

from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.groups import StartAt
from wrasse.streams.consumer import Consumer, ConsumerSettings, StreamSubscription
from wrasse.streams.delivery import Received

S, G, BUDGET = "gbe.events.audit", "readers", 3
ACK_TIMEOUT = timedelta(seconds=1.5)
SETTINGS = ConsumerSettings(
    auto_ack=True,
    start=StartAt(first=True),
    ack_timeout=ACK_TIMEOUT,
    inflight_max=8,
    deliveries_max=BUDGET,
    concurrency=4,
    nak_delay=timedelta(milliseconds=50),
)


async def opened(options: NatsOptions) -> Nats:
    """The server, as soon as it is there."""
    while True:
        try:
            return await Nats.open(options)
        except StoreUnavailable:
            await asyncio.sleep(0.2)


async def main(url: str, replicas: str, file: str) -> None:
    store = await opened(replace(NatsOptions.of(url), replicas=int(replicas)))
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(received: Received) -> None:
        await asyncio.sleep(0.3)
        if received.payload.startswith(b"poison"):
            raise ValueError("never")
        os.write(out, received.payload + b"\n")

    await Consumer(store.streams, store.groups, SystemClock(), StreamSubscription(S, G, handle, SETTINGS)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
