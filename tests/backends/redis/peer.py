"""A worker of the origin program, as far as Redis sees it: the very commands it sends, one at a time."""

from __future__ import annotations

from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.keys import RedisKeys


def _with(fields: bytes) -> bytes:
    return b'{"id":"bad","filepath":"/x",%b}' % fields


DEEP = b"[" * 50_000 + b"]" * 50_000
# Bytes that any program may push and that are no job, each with what the reason given must contain.
GARBAGE: tuple[tuple[bytes, str], ...] = (
    (_with(b'"delay":1e300'), "field delay"),
    (_with(b'"delay":1e400'), "field delay"),
    (_with(b'"timeout":1e15'), "field timeout"),
    (_with(b'"timeout":-1e15'), "field timeout"),
    (_with(b'"timeout":-1'), "field timeout"),
    (_with(b'"timeout":"-0.5"'), "field timeout"),
    (_with(b'"keep":1e20'), "field keep"),
    (_with(b'"window":1e20'), "field window"),
    (_with(b'"window":"soon"'), "field window: 'soon' is not a number of seconds"),
    (_with(b'"delay":NaN'), "JSON"),
    (_with(b'"delay":Infinity'), "JSON"),
    (_with(b'"creation_time":"0001-01-01T00:00:00+14:00"'), "field creation_time"),
    (_with(b'"creation_time":"9999-12-31T23:59:59-14:00"'), "field creation_time"),
    (_with(b'"creation_time":"yesterday"'), "field creation_time: 'yesterday'"),
    (_with(b'"creation_time":1e300'), "field creation_time"),
    (_with(b'"creation_time":true'), "field creation_time"),
    (_with(b'"not_before":"9999-12-31T23:59:59-00:01"'), "field not_before"),
    (_with(b'"failed_at":"0001-01-01T00:00:00+00:01"'), "field failed_at"),
    (_with(b'"filesize":' + b"9" * 5_000), "field filesize"),
    (_with(b'"filesize":1.5'), "field filesize: 1.5 is not a whole number"),
    (_with(b'"retries":"x"'), "field retries: 'x' is not a whole number"),
    (_with(b'"retries":-1'), "field retries"),
    (_with(b'"retries":99999999999999999999'), "field retries"),
    (_with(b'"token":1e308'), "field token"),
    (_with(b'"Retries":3'), "field Retries"),
    (_with(b'"headers":{"a":[1]}'), "field headers"),
    (_with(b'"headers":["a"]'), "field headers"),
    (_with(b'"history":[[1,"w",1e300,1,"failed",""]]'), "field history"),
    (_with(b'"history":[[1,"w",99999999999999999,1,"failed",""]]'), "field history"),
    (_with(b'"payload_b64":"?"'), "field payload_b64"),
    (_with(b'"payload_b64":7.5'), "field payload_b64"),
    (_with(b'"kind":"\\ud800"'), "JSON"),
    (_with(b'"kind":"\xed\xa0\x80"'), "field kind: it is not UTF-8"),
    (_with(b'"x":' + DEEP), "nested"),
    (_with(b'"headers":' + DEEP), "nested"),
    (DEEP, "nested"),
    (b"[" * 50_000, "nested"),
    (b'{"a":' * 50_000, "nested"),
    (b'{"id":"', "JSON"),
    (b"", "JSON"),
    (b"\0", "JSON"),
    (b"null", "JSON"),
    (b"\xff\xfe", "JSON"),
    (b"\xef\xbb\xbf" + _with(b'"retries":0'), "JSON"),
    (b"{}", "field id: it is missing"),
    (b'{"id":null}', "field id: it is missing"),
    (b'{"id":""}', "field id"),
    (b'{"id":{}}', "field id"),
    (b'{"id":"%b"}' % (b"a" * 256), "field id"),
)


def go_job(id: str, *, priority: str = "low", retries: int = 0, more: str = "") -> bytes:
    """A job as the origin's producer writes it."""
    return (
        f'{{"id":"{id}","filepath":"/data/{id}","filesize":7,"priority":"{priority}","retries":{retries},'
        f'"creation_time":"2025-09-12T10:00:00.12Z","trace_id":"","span_id":""{more}}}'
    ).encode()


class GoPeer:
    """One worker of another program on the same Redis."""

    def __init__(self, link: OwnRedisClient, worker: str = "host-7-1726000000-ab12-0") -> None:
        self.client, self.keys, self.worker = link, RedisKeys(link.options), worker
        self.processing, self.heartbeat = self.keys.processing(worker), self.keys.heartbeat(worker)

    async def push(self, raw: bytes, queue: str = "low") -> None:
        await self.client.ask("LPUSH", self.keys.queue(queue).list, raw)

    async def fetch(self, queue: str = "low") -> bytes | None:
        """Takes a job; the heartbeat comes after it and is never renewed."""
        raw: bytes | None = await self.client.ask("RPOPLPUSH", self.keys.queue(queue).list, self.processing)
        if raw is not None:
            await self.client.ask("SET", self.heartbeat, raw, "EX", 30)
        return raw

    async def die(self) -> None:
        """What is left of it once its heartbeat has expired."""
        await self.client.ask("DEL", self.heartbeat)

    async def finish(self, raw: bytes) -> None:
        await self.client.ask("LPUSH", self.keys.completed, raw)
        await self.client.ask("LREM", self.processing, 1, raw)
        await self.client.ask("DEL", self.heartbeat)

    async def retry(self, raw: bytes, again: bytes, queue: str = "low") -> None:
        await self.client.ask("LPUSH", self.keys.queue(queue).list, again)
        await self.client.ask("LREM", self.processing, 1, raw)
        await self.client.ask("DEL", self.heartbeat)

    async def bury(self, raw: bytes) -> None:
        await self.client.ask("LPUSH", self.keys.dead_letter, raw)
        await self.client.ask("LREM", self.processing, 1, raw)
        await self.client.ask("DEL", self.heartbeat)

    async def holds(self) -> list[bytes]:
        found: list[bytes] = await self.client.ask("LRANGE", self.processing, 0, -1)
        return found


async def go_recovery(link: OwnRedisClient, queue: str = "low") -> int:
    """One pass of the origin's own recovery: what has no heartbeat is popped, then pushed. How many it moved."""
    keys, moved, cursor = RedisKeys(link.options), 0, b"0"
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
