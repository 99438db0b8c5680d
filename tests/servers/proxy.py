"""A TCP proxy that misbehaves on demand: cuts, delays, and swallows replies between a client and a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Forwards bytes to `port`. Change its attributes while it runs; they count for every connection.

    `delay` seconds are waited before bytes pass, each way. While `deaf`, replies of the server are dropped and the
    client's connection is then cut: the command was carried out, nobody was told. While `refuse`, new connections are
    closed at once.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.delay = 0.0
        self.deaf = False
        self.refuse = False
        self.replies_dropped = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy does not run"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self.cut()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # an aborted transport closes its socket a turn later

    def cut(self) -> None:
        """Breaks every connection that is open now, without a goodbye."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Only `close` cancels; the stream's own machinery would report that as an error.
            with contextlib.suppress(asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, far_writer, replies=False))
                tasks.create_task(self._pass(far_reader, writer, replies=True))
        finally:
            self._writers -= {writer, far_writer}
            for each in (writer, far_writer):
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if replies and self.deaf:
                    self.replies_dropped += 1
                    break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """A proxy before the server on this port."""
    between = Proxy(port)
    await between.start()
    try:
        yield between
    finally:
        await between.close()
