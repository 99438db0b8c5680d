"""The HTTP side of a process: status page, metrics and probes. It only looks; nothing can be changed through it.

Whoever is beyond loopback gets metrics and probes alone. On loopback the page also wants a Host of this machine, so
that no web site can read it through somebody's browser. A port that is taken is an error at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from aiohttp import web

from wrasse.app.addresses import Address
from wrasse.app.http_listener import Listener, caps_within
from wrasse.app.metrics import CONTENT_TYPE, exposition
from wrasse.app.plain import to_json
from wrasse.app.status import Watch
from wrasse.app.status_events import Feed
from wrasse.app.status_json import checks_json, snapshot_json
from wrasse.app.status_page import page

CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX = 128, 64
"""How many clients the status server has at once, in all and from one address; fewer where few files may be open."""
_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
_SAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STATIC = {"status.css": "text/css", "status.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Server:
    """Listens on addresses until it is closed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._feed = Feed(watch)
        self._listeners: list[Listener] = []

    async def listen(self, address: Address, *, metrics_only: bool = False) -> Address:
        """Starts listening; gives the address it got."""
        everything = address.loopback and not metrics_only
        app = _application(self._watch, self._feed if everything else None)
        caps = caps_within(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX)
        listener = Listener(app, caps, self._watch.clock, setting="http.listen")
        self._listeners.append(listener)
        return await listener.start(address)

    async def close(self) -> None:
        """Stops listening."""
        self._feed.close()
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()


def _application(watch: Watch, feed: Feed | None) -> web.Application:
    """The page and what belongs to it are served where there is a feed."""
    app = web.Application(client_max_size=64 << 10)
    routes = [web.get("/metrics", _metrics), web.get("/healthz", _healthz), web.get("/readyz", _readyz)]
    if feed is not None:
        app[_FEED] = feed
        routes += [web.get("/", _page), web.get("/status.json", _status), web.get("/events", _events)]
        routes += [web.get(f"/static/{name}", _file) for name in _STATIC]
    app[_WATCH] = watch
    app.add_routes(routes)
    return app


_WATCH = web.AppKey("watch", Watch)
_FEED = web.AppKey("feed", Feed)


async def _metrics(request: web.Request) -> web.Response:
    body = exposition(await request.app[_WATCH].facts())
    return web.Response(body=body, headers={**_SAFE, "Content-Type": CONTENT_TYPE})


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n", headers=_SAFE)


async def _readyz(request: web.Request) -> web.Response:
    snapshot = await request.app[_WATCH].look()
    answer = {"ready": snapshot.ready, "checks": checks_json(snapshot)}
    return _json(answer, status=200 if snapshot.ready else 503)


async def _status(request: web.Request) -> web.Response:
    _only_from_here(request)
    return _json(snapshot_json(await request.app[_WATCH].look()))


async def _page(request: web.Request) -> web.Response:
    _only_from_here(request)
    headers = {**_SAFE, "Content-Security-Policy": _POLICY}
    watch = request.app[_WATCH]
    text = page(await watch.look(), watch.clock.now())
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
    text = files("wrasse.app").joinpath("static", name).read_text("utf-8")
    return web.Response(text=text, content_type=_STATIC[name], headers=_SAFE)


def _only_from_here(request: web.Request, hosts: Sequence[str] = _HOSTS) -> None:
    """A page of another site may point its own name at this machine; its Host then gives it away."""
    host = request.host.rsplit(":", 1)[0] if request.host.count(":") == 1 or "]:" in request.host else request.host
    if host not in hosts:
        raise web.HTTPForbidden(text="this page is for this machine only: use http://127.0.0.1\n")
    # Another site cannot read what it asks us for, but each of its requests could use up a place among the clients.
    asked = request.headers
    if asked.get("Sec-Fetch-Site") == "cross-site" and asked.get("Sec-Fetch-Mode") != "navigate":
        raise web.HTTPForbidden(text="this page is not for other sites\n")


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(text=to_json(value) + "\n", content_type="application/json", status=status, headers=_SAFE)
