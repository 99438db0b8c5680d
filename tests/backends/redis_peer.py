"""A worker of the origin program, as far as Redis sees it: the very commands it sends, one at a time."""

from __future__ import annotations

from wrasse.backends.redis.connection import Link
from wrasse.backends.redis.keys import Keys


def go_job(id: str, *, priority: str = "low", retries: int = 0, more: str = "") -> bytes:
    """A job as the origin's producer writes it."""
    return (
        f'{{"id":"{id}","filepath":"/data/{id}","filesize":7,"priority":"{priority}","retries":{retries},'
        f'"creation_time":"2025-09-12T10:00:00.12Z","trace_id":"","span_id":""{more}}}'
    ).encode()


class GoPeer:
    """One worker of another program on the same Redis."""

    def __init__(self, link: Link, worker: str = "host-7-1726000000-ab12-0") -> None:
        self.link, self.keys, self.worker = link, Keys(link.options), worker
        self.processing, self.heartbeat = self.keys.processing(worker), self.keys.heartbeat(worker)

    async def push(self, raw: bytes, queue: str = "low") -> None:
        await self.link.ask("LPUSH", self.keys.queue(queue).list, raw)

    async def fetch(self, queue: str = "low") -> bytes | None:
        """Takes a job; the heartbeat comes after it and is never renewed."""
        raw: bytes | None = await self.link.ask("RPOPLPUSH", self.keys.queue(queue).list, self.processing)
        if raw is not None:
            await self.link.ask("SET", self.heartbeat, raw, "EX", 30)
        return raw

    async def die(self) -> None:
        """What is left of it once its heartbeat has expired."""
        await self.link.ask("DEL", self.heartbeat)

    async def finish(self, raw: bytes) -> None:
        await self.link.ask("LPUSH", self.keys.completed, raw)
        await self.link.ask("LREM", self.processing, 1, raw)
        await self.link.ask("DEL", self.heartbeat)

    async def retry(self, raw: bytes, again: bytes, queue: str = "low") -> None:
        await self.link.ask("LPUSH", self.keys.queue(queue).list, again)
        await self.link.ask("LREM", self.processing, 1, raw)
        await self.link.ask("DEL", self.heartbeat)

    async def bury(self, raw: bytes) -> None:
        await self.link.ask("LPUSH", self.keys.dead_letter, raw)
        await self.link.ask("LREM", self.processing, 1, raw)
        await self.link.ask("DEL", self.heartbeat)

    async def holds(self) -> list[bytes]:
        found: list[bytes] = await self.link.ask("LRANGE", self.processing, 0, -1)
        return found


async def go_recovery(link: Link, queue: str = "low") -> int:
    """One pass of the origin's own recovery: what has no heartbeat is popped, then pushed. How many it moved."""
    keys, moved, cursor = Keys(link.options), 0, b"0"
    before, after = link.options.processing_list_pattern.split("%s")
    while True:
        cursor, names = await link.ask("SCAN", cursor, "MATCH", f"{before}*{after}", "COUNT", 100)
        for name in names:
            worker = name.decode()[len(before) : -len(after)]
            if await link.ask("EXISTS", keys.heartbeat(worker)):
                continue
            while (raw := await link.ask("RPOP", name)) is not None:
                await link.ask("LPUSH", keys.queue(queue).list, raw)
                moved += 1
        if cursor == b"0":
            return moved
