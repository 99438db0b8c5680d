"""A server on loopback that follows a script and then attacks: it sends bytes that no server would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CLIENT = Path(__file__).with_name("hostile_client.py")
_ENDLESS = 4 << 30  # bytes after which an endless answer ends: no client should read so many
_PIECE = 1 << 16


class How(StrEnum):
    """How the bytes of an attack are sent, and what follows them."""

    WHOLE = "whole, then silence"
    CLOSED = "whole, then the end"
    TRICKLED = "a byte at a time"
    ENDLESS = "again and again"


async def attack(writer: asyncio.StreamWriter, data: bytes, how: How) -> None:
    """Sends the bytes."""
    if how is How.ENDLESS:
        piece = data * max(1, _PIECE // max(1, len(data)))
        for _ in range(_ENDLESS // len(piece)):
            writer.write(piece)
            await writer.drain()
    elif how is How.TRICKLED:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)
    else:
        writer.write(data)
        await writer.drain()
    if how is not How.CLOSED:
        await asyncio.sleep(60)


@contextlib.asynccontextmanager
async def hostile(script: Script) -> AsyncIterator[int]:
    """The port where the script is played for every connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Told:
    """What a client in a process of its own met: the class of the error, how long it took, how its memory grew."""

    error: str
    message: str
    ours: bool
    seconds: float
    grown: int


async def client_meets(kind: str, script: Script, **options: str) -> Told:
    """Runs a client of that kind against the script in a child process."""
    async with hostile(script) as port:
        child = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), kind, str(port), json.dumps(options), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(60):
                out, _ = await child.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
    return Told(**json.loads(out))


def complaints(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Collects what asyncio would log: exceptions that escaped from a protocol, or that were never retrieved."""
    said: list[str] = []
    loop.set_exception_handler(lambda _, context: said.append(f"{context.get('message')}: {context.get('exception')}"))
    return said
