"""The HTTP server of a process: status page, metrics and probes. Read-only.

Beyond loopback only metrics and probes are served. On loopback the page also requires a Host of this machine, so that
no web site can read it through a browser. A port in use is an error at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files

from aiohttp import web

from wrasse import __version__
from wrasse.config.urls import Address
from wrasse.engine.loop import SweepStatus
from wrasse.observability.json_format import (
    line_json,
    picked,
    queue_json,
    report_json,
    shut_json,
    stream_json,
    to_json,
    worker_json,
)
from wrasse.observability.metrics import CONTENT_TYPE, exposition
from wrasse.web.listener import Listener, ListenerOptions, caps_within
from wrasse.web.pages import page, tables
from wrasse.web.snapshot import ProcessSnapshot, SubjectWatch

CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX = 128, 64
"""Maximum connections of the status server, in total and from one address; fewer under a low limit of open files."""
_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
_SAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STATIC = {"status.css": "text/css", "status.js": "text/javascript", "icon.svg": "image/svg+xml"}
CLIENTS_MAX = 32
KEEP_ALIVE = 5.0  # seconds without an event after which a keep-alive is sent
WRITE_MAX = 10.0  # seconds that a client may take to read
AGAIN = 2_000  # milliseconds after which a disconnected client reconnects
_WATCH = web.AppKey("watch", SubjectWatch)


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """One snapshot, ready to be sent. The id changes only with the text."""

    id: str
    snapshot: ProcessSnapshot
    main: str

    def json(self, now: datetime) -> str:
        """The frame for a script, with our time."""
        return to_json({"id": self.id, "at": now, "version": __version__, "main": self.main})

    def event(self, now: datetime) -> bytes:
        """The frame as an event."""
        return f"id: {self.id}\nevent: snapshot\ndata: {self.json(now)}\n\n".encode()


class Feed:
    """The frames of one watch, and their clients."""

    def __init__(self, watch: SubjectWatch, *, clients_max: int = CLIENTS_MAX, keep_alive: float = KEEP_ALIVE) -> None:
        self.clients = 0
        self._watch = watch
        self._clients_max = clients_max
        self._keep_alive = keep_alive
        self._boot = secrets.token_hex(4)  # distinguishes the ids of this process
        self._number = 0
        self._newest: SnapshotEvent | None = None
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends every stream at once."""
        self._closing.set()

    async def frame(self) -> SnapshotEvent:
        """The newest frame; built once per snapshot."""
        snapshot, newest = await self._watch.refresh(), self._newest
        if newest is not None and newest.snapshot is snapshot:
            return newest
        main = tables(snapshot)
        if newest is None or newest.main != main:
            self._number += 1
        self._newest = SnapshotEvent(f"{self._boot}-{self._number}", snapshot, main)
        return self._newest

    async def serve(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        """Serves one client until it disconnects."""
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
                # Disconnected, or not reading: the connection is closed. The client may reconnect.
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
            elif spoke is None or clock.monotonic() - spoke >= self._keep_alive:
                spoke = clock.monotonic()
                await _write(response, f": still here\nevent: keepalive\ndata: {to_json(clock.now())}\n\n".encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._watch.kept.total_seconds(), self._keep_alive)):
                    await self._closing.wait()


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_MAX):
        await response.write(data)


class Server:
    """Listens on addresses until it is closed."""

    def __init__(self, watch: SubjectWatch) -> None:
        self._watch = watch
        self._feed = Feed(watch)
        self._listeners: list[Listener] = []

    async def listen(self, address: Address, *, metrics_only: bool = False) -> Address:
        """Starts listening; returns the actual address."""
        everything = address.loopback and not metrics_only
        app = _application(self._watch, self._feed if everything else None)
        caps = caps_within(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX)
        listener = Listener(app, caps, self._watch.clock, ListenerOptions("http.listen"))
        self._listeners.append(listener)
        return await listener.start(address)

    async def close(self) -> None:
        """Stops listening."""
        self._feed.close()
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()


def _application(watch: SubjectWatch, feed: Feed | None) -> web.Application:
    """The page and its resources are served only with a feed."""
    app = web.Application(client_max_size=64 << 10)
    routes = [web.get("/metrics", _metrics), web.get("/healthz", _healthz), web.get("/readyz", _readyz)]
    if feed is not None:
        app[_FEED] = feed
        routes += [web.get("/", _page), web.get("/status.json", _status), web.get("/events", _events)]
        routes += [web.get(f"/static/{name}", _file) for name in _STATIC]
    app[_WATCH] = watch
    app.add_routes(routes)
    return app


_FEED = web.AppKey("feed", Feed)


async def _metrics(request: web.Request) -> web.Response:
    body = exposition(await request.app[_WATCH].facts())
    return web.Response(body=body, headers={**_SAFE, "Content-Type": CONTENT_TYPE})


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n", headers=_SAFE)


async def _readyz(request: web.Request) -> web.Response:
    snapshot = await request.app[_WATCH].refresh()
    answer = {"ready": snapshot.ready, "checks": checks_json(snapshot)}
    return _json_answer(answer, status=200 if snapshot.ready else 503)


async def _status(request: web.Request) -> web.Response:
    _only_from_here(request)
    return _json_answer(snapshot_json(await request.app[_WATCH].refresh()))


async def _page(request: web.Request) -> web.Response:
    _only_from_here(request)
    headers = {**_SAFE, "Content-Security-Policy": _POLICY}
    watch = request.app[_WATCH]
    text = page(await watch.refresh(), watch.clock.now())
    return web.Response(text=text, content_type="text/html", headers=headers)


async def _events(request: web.Request) -> web.StreamResponse:
    _only_from_here(request)
    feed = request.app[_FEED]
    if "once" in request.query:
        text = (await feed.frame()).json(request.app[_WATCH].clock.now())
        return web.Response(text=text, content_type="application/json", headers=_SAFE)
    return await feed.serve(request, _SAFE)


async def _file(request: web.Request) -> web.Response:
    _only_from_here(request)
    name = request.path.rsplit("/", 1)[-1]
    text = files("wrasse.web").joinpath("static", name).read_text("utf-8")
    return web.Response(text=text, content_type=_STATIC[name], headers=_SAFE)


def _only_from_here(request: web.Request, hosts: Sequence[str] = _HOSTS) -> None:
    """Refuses requests through the name of another site that points to this machine, by their Host."""
    host = request.host.rsplit(":", 1)[0] if request.host.count(":") == 1 or "]:" in request.host else request.host
    if host not in hosts:
        raise web.HTTPForbidden(text="this page is for this machine only: use http://127.0.0.1\n")
    # Another site cannot read the answers, but each of its requests could use up a client slot.
    headers = request.headers
    if headers.get("Sec-Fetch-Site") == "cross-site" and headers.get("Sec-Fetch-Mode") != "navigate":
        raise web.HTTPForbidden(text="this page is not for other sites\n")


def _json_answer(value: object, *, status: int = 200) -> web.Response:
    return web.Response(text=to_json(value) + "\n", content_type="application/json", status=status, headers=_SAFE)


def snapshot_json(snapshot: ProcessSnapshot) -> Mapping[str, object]:
    """The snapshot as JSON. Leases and streams are null if their backend is unavailable."""
    counts, leases, streams = snapshot.counts, snapshot.leases, snapshot.streams
    stuck = "id kind queue worker heartbeat_at deadline attempts rescues"
    return {
        "version": __version__,
        **picked(snapshot, "at started_at roles ready"),
        "checks": checks_json(snapshot),
        "skew_seconds": snapshot.skew,
        "queues": [] if counts is None else [queue_json(each) for each in counts.queues],
        "workers": [] if counts is None else [worker_json(each, counts.at) for each in counts.workers],
        "sweeps": [_sweep_json(each) for each in snapshot.sweeps],
        "breakers": [shut_json(each) for each in snapshot.shut],
        "stuck": [picked(each, stuck) for each in snapshot.stuck],
        "leases": None
        if leases is None
        else [
            {**picked(each, "key owner token expires_at"), "valid": leases.at < each.expires_at}
            for each in leases.items
        ],
        "streams": None if streams is None else [stream_json(each) for each in streams.items],
        "journal": [line_json(line) for line in snapshot.lines],
    }


def checks_json(snapshot: ProcessSnapshot) -> Sequence[Mapping[str, object]]:
    """The checks in the answer of /readyz."""
    return [picked(check, "name ok detail") for check in snapshot.checks]


def _sweep_json(status: SweepStatus) -> Mapping[str, object]:
    return {
        **picked(status, "name enabled running elsewhere next_at"),
        "interval_seconds": status.interval,
        "paused": None if status.paused is None else picked(status.paused, "guard reason since"),
        "last": None if status.last is None else report_json(status.last),
    }
