"""A pooler for PostgreSQL that hands out sessions by the transaction, as PgBouncer does in that mode.

Every client is let in at once; each of its transactions is served by whichever session is free, the one that was used
last first. No TLS, no passwords: for tests on loopback.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from servers.process import free_ports

_SSL = 80877103
_IDLE = b"I"


class _Session:
    """One connection to the server, and what the server said when it let us in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = greeting


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    size = await reader.readexactly(4)
    return kind, kind + size + await reader.readexactly(struct.unpack("!I", size)[0] - 4)


class Pooler:
    """The pooler. `port` is where clients connect."""

    def __init__(self, server_port: int) -> None:
        (self.port,) = free_ports(1)
        self._server_port = server_port
        self._free: list[_Session] = []
        self._started = threading.Event()
        self._over = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        """Serves from a thread of its own."""
        self._thread.start()
        assert self._started.wait(10), "the pooler did not start"

    def stop(self) -> None:
        """Ends it."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_over())

    async def _until_over(self) -> None:
        server = await asyncio.start_server(self._client, "127.0.0.1", self.port)
        self._started.set()
        await self._over.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # aborted transports close in the next turn

    async def _session(self, startup: bytes) -> _Session:
        if self._free:
            return self._free.pop()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers.append(writer)
        writer.write(startup)
        greeting = b""
        while True:
            kind, whole = await _message(reader)
            greeting += whole
            if kind == b"Z":
                return _Session(reader, writer, greeting)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            startup = await self._let_in(reader, writer)
            first = await self._session(startup)
            writer.write(first.greeting)
            self._free.append(first)
            asking = asyncio.ensure_future(_message(reader))
            while True:
                kind, whole = await asking
                if kind == b"X":
                    break
                asking = await self._transaction(whole, reader, writer, startup)
        writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        while True:
            size = await reader.readexactly(4)
            rest = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
            if struct.unpack("!I", rest[:4])[0] != _SSL:
                return size + rest
            writer.write(b"N")

    async def _transaction(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, startup: bytes
    ) -> asyncio.Future[tuple[bytes, bytes]]:
        """Holds one session for as long as the server says that a transaction is open. Gives what the client asks
        next."""
        session = await self._session(startup)
        session.writer.write(first)
        asking = asyncio.ensure_future(_message(reader))
        answering = asyncio.ensure_future(_message(session.reader))
        while True:
            await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                kind, whole = answering.result()
                writer.write(whole)
                if kind == b"Z" and whole[-1:] == _IDLE and not asking.done():
                    self._free.append(session)
                    return asking
                answering = asyncio.ensure_future(_message(session.reader))
            else:
                session.writer.write(asking.result()[1])
                asking = asyncio.ensure_future(_message(reader))


@contextmanager
def pooler(server_port: int) -> Iterator[Pooler]:
    """A pooler in front of the server at this port."""
    made = Pooler(server_port)
    made.start()
    try:
        yield made
    finally:
        made.stop()
