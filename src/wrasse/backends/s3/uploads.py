"""Large objects go up in parts, several at a time, so that memory does not grow with them. What is not completed is
aborted."""

from __future__ import annotations

from asyncio import Semaphore, Task
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from wrasse.backends.s3.abreast import together
from wrasse.backends.s3.client import Client, Condition
from wrasse.errors import StoreUnavailable, TooLarge

PART_BYTES = 8 << 20
"""Bytes of a part; the store wants at least 5 MiB."""
PARTS_MAX = 10_000
"""Parts of an object that the store takes; with `PART_BYTES` the largest object, 78 GiB."""
PARTS_AT_ONCE = 4
"""Parts of one upload in flight. An upload takes memory for these and two more, one of them being filled: 48 MiB."""

Finish = Callable[[Condition], Awaitable[str | None]]


class Parts:
    """A stream of bytes, cut into parts of PART_BYTES; the last is shorter."""

    def __init__(self, data: AsyncIterable[bytes]) -> None:
        self._chunks = aiter(data)
        self._rest = bytearray()

    async def next(self) -> bytes:
        """The next part; shorter than PART_BYTES only at the end."""
        while len(self._rest) < PART_BYTES:
            try:
                self._rest += await anext(self._chunks)
            except StopAsyncIteration:
                break
        part = bytes(memoryview(self._rest)[:PART_BYTES])
        del self._rest[:PART_BYTES]
        return part

    async def aclose(self) -> None:
        """Lets go of the source."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


@asynccontextmanager
async def upload(
    client: Client, key: bytes, headers: Mapping[str, str], first: bytes, parts: Parts
) -> AsyncIterator[Finish]:
    """Sends all parts, and gives what makes an object of them under a condition."""
    begun = await client.begin_upload(key, headers)
    completed = False

    async def finish(condition: Condition) -> str | None:
        nonlocal completed
        etag = await client.complete_upload(key, begun, etags, condition)
        completed = etag is not None
        return etag

    try:
        etags = await _send(lambda number, part: client.put_part(key, begun, number, part), first, parts)
        yield finish
    finally:
        if not completed:
            # If it was completed after all, there is nothing left to abort. If the store is gone, the parts wait
            # for its own clean-up rule or for ours.
            with suppress(StoreUnavailable, TimeoutError):
                await client.abort_upload(key, begun)


async def _send(put: Callable[[int, bytes], Awaitable[str]], part: bytes, parts: Parts) -> list[str]:
    """Sends all parts, each tried again by itself; their tags in order. The first that fails cancels the others."""
    room = Semaphore(PARTS_AT_ONCE)
    sending: list[Task[str]] = []

    async def one(number: int, part: bytes) -> str:
        try:
            return await put(number, part)
        finally:
            room.release()

    async with together() as tasks:
        await room.acquire()
        while part:
            if len(sending) == PARTS_MAX:
                raise TooLarge(
                    f"an object of more than {PARTS_MAX * PART_BYTES} bytes", do="write it as several objects"
                )
            sending.append(tasks.create_task(one(len(sending) + 1, part)))
            part = b""  # the task has it; what was sent is not kept while the next waits
            await room.acquire()
            part = await parts.next()
    return [each.result() for each in sending]
