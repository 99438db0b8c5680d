"""One member of a group on NATS, in a process of its own: reads pages and acks every message, until there is none left.

    python -m bench.group_reader wrasse|nats-py URL PAGE

It says `ready`, begins at the first line it reads, and says then: messages, processor seconds, first and last instant.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

SUBJECT, STREAM, GROUP = "gbe.events.audit.change", "gbe-events-audit-change", "readers"
_EMPTY = 0.5  # seconds without a message: the group has no more


async def _wrasse(url: str, page: int) -> tuple[int, float, float, float]:
    from wrasse.backends.nats.connect import Nats
    from wrasse.ports.groups import Ack, StartAt

    store, timeout = await Nats.open(url), timedelta(seconds=30)
    await store.groups.join(SUBJECT, GROUP, StartAt(first=True))
    groups, wait = store.groups, timedelta(seconds=_EMPTY)
    cpu, began = await _go()
    count, ended = 0, began
    while found := await groups.deliver([SUBJECT], GROUP, "c", page, ack_timeout=timeout, wait=wait):
        await groups.answer([Ack(SUBJECT, GROUP, delivery.entry.id) for delivery in found])
        count, ended, spent = count + len(found), time.monotonic(), time.process_time()
        cpu = cpu[0], spent
    await store.close()
    return count, cpu[1] - cpu[0], began, ended


async def _nats_py(url: str, page: int) -> tuple[int, float, float, float]:
    import nats

    client = await nats.connect(url)
    reader = await client.jetstream().pull_subscribe_bind(durable=GROUP, stream=STREAM)
    cpu, began = await _go()
    count, ended = 0, began
    while True:
        try:
            found = await reader.fetch(page, timeout=_EMPTY)
        except TimeoutError:
            break
        await asyncio.gather(*(message.ack_sync(timeout=30) for message in found))
        count, ended, spent = count + len(found), time.monotonic(), time.process_time()
        cpu = cpu[0], spent
    await client.close()
    return count, cpu[1] - cpu[0], began, ended


async def _go() -> tuple[tuple[float, float], float]:
    """Waits for the word to begin; processor seconds and the instant then."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    spent = time.process_time()
    return (spent, spent), time.monotonic()


if __name__ == "__main__":
    kind, where, size = sys.argv[1:]
    print(*asyncio.run({"wrasse": _wrasse, "nats-py": _nats_py}[kind](where, int(size))), flush=True)
