"""The origin program as Redis sees it: the very commands it sends, in its order, under its hard-coded names.

It is scripted after facts about that program; none of its code is here. What it does wrong it does wrong here too: its
heartbeat comes after the fetch and is never renewed, its recovery pops and then pushes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import redis.asyncio as aioredis

QUEUES = {"high": "jobqueue:high_priority", "low": "jobqueue:low_priority"}
COMPLETED, DEAD, LIMITER = "jobqueue:completed", "jobqueue:dead_letter", "jobqueue:rate_limit:producer"
FIELDS = ("id", "filepath", "filesize", "priority", "retries", "creation_time", "trace_id", "span_id")
TTL = 30


def go_json(**fields: object) -> bytes:
    """As its encoder writes: all eight fields in its order, compact, with its escapes."""
    job = {"id": "", "filepath": "", "filesize": 0, "priority": "low", "retries": 0,
           "creation_time": datetime(2025, 9, 16, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
           "trace_id": "", "span_id": "", **fields}  # fmt: skip
    text = json.dumps({name: job[name] for name in FIELDS}, separators=(",", ":"), ensure_ascii=False)
    for sign in "&<>\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode()


class GoWorker:
    """One of its workers."""

    def __init__(self, client: aioredis.Redis, id: str = "gohost-7-1726000000-ab12-0") -> None:
        self.client, self.id = client, id
        self.processing, self.heartbeat = f"jobqueue:worker:{id}:processing", f"jobqueue:processing:worker:{id}"
        self.source = ""

    async def fetch(self) -> bytes | None:
        """Waits on one queue after the other."""
        for queue in QUEUES.values():
            raw: bytes | None = await self.client.brpoplpush(queue, self.processing, timeout=1)
            if raw is not None:
                self.source = queue
                await self.client.set(self.heartbeat, raw, ex=TTL)
                return raw
        return None

    async def die(self) -> None:
        """What is left of it once its heartbeat has expired."""
        await self.client.delete(self.heartbeat)

    async def finish(self, raw: bytes) -> int:
        """How many entries it removed: it does not look itself."""
        await self.client.lpush(COMPLETED, raw)
        return await self._let_go(raw)

    async def retry(self, raw: bytes) -> int:
        """It writes the job anew: fields it does not know are gone."""
        known = json.loads(raw)
        kept = {name: known[name] for name in FIELDS}
        again = go_json(**{**kept, "retries": known["retries"] + 1})
        await self.client.lpush(self.source, again)
        return await self._let_go(raw)

    async def bury(self, raw: bytes) -> int:
        await self.client.lpush(DEAD, raw)
        return await self._let_go(raw)

    async def _let_go(self, raw: bytes) -> int:
        removed: int = await self.client.lrem(self.processing, 1, raw)
        await self.client.delete(self.heartbeat)
        return removed


class GoRecovery:
    """Its recovery: who has no heartbeat now is dead, and what it had is popped, then pushed."""

    def __init__(self, client: aioredis.Redis) -> None:
        self.client = client
        self.moved: list[bytes] = []
        self.rounds = 0

    async def round(self) -> None:
        async for key in self.client.scan_iter("jobqueue:worker:*:processing", count=100):
            worker = key.decode().split(":")[2]
            if await self.client.exists(f"jobqueue:processing:worker:{worker}"):
                continue
            while (raw := await self.client.rpop(key)) is not None:
                self.moved.append(raw)
                priority = json.loads(raw).get("priority", "")
                await self.client.lpush(QUEUES.get(priority, QUEUES["low"]), raw)
        self.rounds += 1

    @asynccontextmanager
    async def looping(self, pause: float = 0.001) -> AsyncIterator[None]:
        """Round after round, a millisecond apart: far more often than the original. It is asked to end, not cancelled:
        a cancellation that meets this client within a command of its own can be lost in there."""
        ended = asyncio.Event()

        async def loop() -> None:
            while not ended.is_set():
                await self.round()
                await asyncio.sleep(pause)

        async with asyncio.TaskGroup() as group:
            group.create_task(loop())
            try:
                yield
            finally:
                ended.set()


class GoProducer:
    """Its producer."""

    def __init__(self, client: aioredis.Redis, limit: int = 0) -> None:
        self.client, self.limit = client, limit

    async def put(self, raw: bytes, queue: str = QUEUES["low"]) -> bool:
        """Counts itself, and says whether it would have to wait; then it pushes all the same."""
        over = False
        if self.limit:
            count = await self.client.incr(LIMITER)
            if count == 1:
                await self.client.expire(LIMITER, 1)
            over = count > self.limit
        await self.client.lpush(queue, raw)
        return over


async def go_stats(client: aioredis.Redis) -> dict[str, object]:
    """Its `stats`: what it takes for queues, workers and heartbeats."""
    named = {**QUEUES, "completed": COMPLETED, "dead_letter": DEAD}
    lists = [key async for key in client.scan_iter("jobqueue:worker:*:processing", count=500)]
    beats = [key async for key in client.scan_iter("jobqueue:processing:worker:*", count=500)]
    return {
        "queues": {f"{name}({key})": await client.llen(key) for name, key in named.items()},
        "processing_lists": {key.decode(): await client.llen(key) for key in lists},
        "heartbeats": len(beats),
    }


async def go_dead(client: aioredis.Redis) -> list[tuple[str, str]]:
    """Its list of dead letters: id and `error` of each."""
    letters = [json.loads(raw) for raw in await client.lrange(DEAD, 0, -1)]
    return [(letter["id"], letter.get("error", "")) for letter in letters]


async def go_purge_all(client: aioredis.Redis) -> None:
    """Its `purge-all`: whoever works meanwhile."""
    await client.delete(*QUEUES.values(), COMPLETED, DEAD, LIMITER)
    for pattern in ("jobqueue:worker:*:processing", "jobqueue:processing:worker:*"):
        async for key in client.scan_iter(pattern, count=500):
            await client.delete(key)
