"""TLS before any server: a proxy that ends the encryption, with certificates that only tests trust."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

_FOLDER = Path(__file__).parent / "certificates"
CERTIFICATE, KEY = _FOLDER / "server.pem", _FOLDER / "server.key"
CLIENT_CERTIFICATE, CLIENT_KEY = _FOLDER / "client.pem", _FOLDER / "client.key"


@contextlib.asynccontextmanager
async def encrypted(port: int, *, asks_client: bool = False) -> AsyncIterator[int]:
    """The port on which the server at `port` speaks TLS; with `asks_client` only for our client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    if asks_client:
        context.load_verify_locations(CLIENT_CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
    open_now: set[asyncio.Task[None]] = set()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass(reader, far_writer))
                both.create_task(_pass(far_reader, writer))
        finally:
            open_now.discard(task)
            far_writer.transport.abort()
            writer.transport.abort()

    server = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
