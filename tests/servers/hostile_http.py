"""An HTTP server that answers with whatever bytes it is told: garbage, too much, too slowly, or nothing at all.

Requests that it is not told about are passed on to an honest server, so that a client can be brought into any state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Act = Callable[[asyncio.StreamWriter], Awaitable[None]]
Plan = Callable[[str, str], Act | None]  # of a method and a target: what to answer with; None to pass it on


class HostileHttp:
    """The server. `requests` holds the method and target of every request that came, `heads` their heads."""

    def __init__(self, honest: int = 0) -> None:
        self.plan: Plan = lambda method, target: None
        self.requests: list[tuple[str, str]] = []
        self.heads: list[bytes] = []
        self.port = 0
        self._honest = honest
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._one(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request; then the connection closes."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        self.requests.append((method, target))
        self.heads.append(head)
        act = self.plan(method, target)
        if act is not None:
            await act(writer)
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._honest)
        up_writer.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
        while piece := await up_reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
        up_writer.close()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def hostile_http(honest: int = 0) -> AsyncIterator[HostileHttp]:
    """A server on a port of its own."""
    hostile = HostileHttp(honest)
    server = await asyncio.start_server(hostile._serve, "127.0.0.1", 0, limit=1 << 20)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()
        await hostile.close()


def sends(data: bytes) -> Act:
    """These bytes, then the connection closes."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return act


def sends_and_waits(data: bytes) -> Act:
    """These bytes, then nothing more, on an open connection."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.Event().wait()

    return act


def endless(head: bytes, piece: bytes, pause: float = 0) -> Act:
    """These bytes, then the same piece again and again, as fast as it is read or with a pause each time."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return act
