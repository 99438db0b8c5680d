"""The page's live side: /events, the same snapshots for everybody who watches, as server-sent events.

One look serves all clients, and where nobody watches nobody looks. Each event is the whole state under an id, so a
client that was away needs only the newest, and nothing if it has that one. A client that does not read is dropped;
there are at most `clients_max`, and whoever comes then is told to poll. Beats tell a quiet process from a stuck one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from aiohttp import web

from wrasse import __version__
from wrasse.app.plain import to_json
from wrasse.app.status import Snapshot, Watch
from wrasse.app.status_page import tables

CLIENTS_MAX = 32
BEAT = 5.0  # seconds of quiet after which a client is told that we are still here
WRITE_MAX = 10.0  # seconds a client may take to read
AGAIN = 2_000  # milliseconds until a client that lost us comes back


@dataclass(frozen=True, slots=True)
class Frame:
    """What one snapshot says, ready to be sent. The id is new only where the text is."""

    id: str
    snapshot: Snapshot
    main: str

    def json(self, now: datetime) -> str:
        """The frame for a script, which also learns what our clock shows."""
        return to_json({"id": self.id, "at": now, "version": __version__, "main": self.main})

    def event(self, now: datetime) -> bytes:
        """The frame as an event."""
        return f"id: {self.id}\nevent: snapshot\ndata: {self.json(now)}\n\n".encode()


class Feed:
    """Frames of one watch, and the clients that get them."""

    def __init__(self, watch: Watch, *, clients_max: int = CLIENTS_MAX, beat: float = BEAT) -> None:
        self.clients = 0
        self._watch = watch
        self._clients_max = clients_max
        self._beat = beat
        self._boot = secrets.token_hex(4)  # ids of another process mean nothing to this one
        self._number = 0
        self._newest: Frame | None = None
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends every stream at once."""
        self._closing.set()

    async def frame(self) -> Frame:
        """The newest frame; made once per look, whoever asks."""
        snapshot, newest = await self._watch.look(), self._newest
        if newest is not None and newest.snapshot is snapshot:
            return newest
        main = tables(snapshot)
        if newest is None or newest.main != main:
            self._number += 1
        self._newest = Frame(f"{self._boot}-{self._number}", snapshot, main)
        return self._newest

    async def serve(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        """One client, for as long as it stays."""
        if self.clients >= self._clients_max:
            text = f"{self._clients_max} pages are open already: poll /events?once\n"
            raise web.HTTPServiceUnavailable(text=text, headers={**headers, "Retry-After": "30"})
        self.clients += 1
        try:
            response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            try:
                await self._stream(request, response)
            except (ConnectionError, TimeoutError):
                # It has gone, or does not read; nothing more is said to it, not even goodbye. It may come back.
                if request.transport is not None:
                    request.transport.abort()
            return response
        finally:
            self.clients -= 1

    async def _stream(self, request: web.Request, response: web.StreamResponse) -> None:
        seen = request.headers.get("Last-Event-ID", "")
        clock, spoke = self._watch.clock, None
        await _write(response, f"retry: {AGAIN}\n\n".encode())
        while not self._closing.is_set() and request.transport is not None:
            frame = await self.frame()
            if frame.id != seen:
                seen, spoke = frame.id, clock.monotonic()
                await _write(response, frame.event(clock.now()))
            elif spoke is None or clock.monotonic() - spoke >= self._beat:
                spoke = clock.monotonic()
                await _write(response, f": still here\nevent: beat\ndata: {to_json(clock.now())}\n\n".encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._watch.kept.total_seconds(), self._beat)):
                    await self._closing.wait()


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_MAX):
        await response.write(data)
