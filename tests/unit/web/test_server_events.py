"""The live side of the page: everybody gets the same, whoever was away gets the newest, nobody can be in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
import pytest
from aiohttp import web

from unit.web.status_scene import Shown
from wrasse.config.urls import Address
from wrasse.ports.jobs import Job
from wrasse.web.server import Feed, Server

QUICK = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True)
class Event:
    """One event as a browser understands it."""

    kind: str
    id: str
    data: str


class Client:
    """One page that watches."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.text = ""

    async def event(self) -> Event:
        """The next event; comments and empty ones are passed over."""
        while True:
            fields: dict[str, str] = {}
            async with asyncio.timeout(30):
                while line := (await self.answer.content.readline()).decode():
                    self.text += line
                    if line == "\n":
                        break
                    name, _, value = line.rstrip("\n").partition(": ")
                    fields[name] = value
                else:
                    raise EOFError
            if "data" in fields:
                return Event(fields.get("event", "message"), fields.get("id", ""), fields["data"])


class Stage:
    """A feed of a process on the memory backend, behind a real port."""

    def __init__(self, shown: Shown, feed: Feed, url: str, session: aiohttp.ClientSession) -> None:
        self.shown, self.feed, self.url, self.session = shown, feed, url, session

    @asynccontextmanager
    async def client(self, last: str = "") -> AsyncIterator[Client]:
        async with self.session.get(self.url, headers={"Last-Event-ID": last} if last else {}) as answer:
            yield Client(answer)

    async def until_clients(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.feed.clients != count:
                self.shown.clock.advance(QUICK)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def stage(*, clients_max: int = 4, keep_alive: float = 60.0) -> AsyncIterator[Stage]:
    shown = Shown(kept=QUICK)
    feed = Feed(shown.watch, clients_max=clients_max, keep_alive=keep_alive)

    async def serve(request: web.Request) -> web.StreamResponse:
        return await feed.serve(request, {})

    app = web.Application()
    app.add_routes([web.get("/events", serve)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Stage(shown, feed, f"http://127.0.0.1:{runner.addresses[0][1]}/events", session)
    feed.close()
    await runner.cleanup()


async def put(shown: Shown, id: str) -> None:
    await shown.store.jobs.enqueue([Job(id)], request=id)
    shown.clock.advance(QUICK)


async def test_everybody_gets_the_same_snapshot_and_then_each_change() -> None:
    async with stage() as at, at.client() as one, at.client() as other:
        first, same = await one.event(), await other.event()
        await put(at.shown, "a")
        second = await one.event()
        assert (first.id, first.kind) == (same.id, "snapshot")
        assert json.loads(first.data)["main"] == json.loads(same.data)["main"]
        assert await other.event() == second
        assert second.id != first.id
        assert '<dd data-tell="ready">1</dd>' in json.loads(second.data)["main"]


async def test_a_client_that_was_away_gets_only_what_it_missed() -> None:
    async with stage() as at:
        async with at.client() as one:
            seen = (await one.event()).id
        async with at.client(last=seen) as again:
            nothing_new = await again.event()
        await put(at.shown, "a")
        async with at.client(last=seen) as late:
            missed = await late.event()
        assert (nothing_new.kind, missed.kind) == ("keepalive", "snapshot")


async def test_an_id_of_another_process_means_nothing() -> None:
    async with stage() as at, at.client(last="0000-1") as client:
        assert (await client.event()).kind == "snapshot"


async def test_a_quiet_process_says_that_it_is_still_there() -> None:
    async with stage(keep_alive=0.05) as at, at.client() as client:
        await client.event()
        at.shown.clock.advance(timedelta(seconds=1))
        kept_alive = await client.event()
        assert (kept_alive.kind, kept_alive.id) == ("keepalive", "")
        assert json.loads(kept_alive.data) == at.shown.clock.now().isoformat().replace("+00:00", "Z")
        assert ": still here\n" in client.text
        assert "retry: 2000\n" in client.text


async def test_whoever_comes_when_all_places_are_taken_is_told_to_poll() -> None:
    async with stage(clients_max=1) as at:
        async with at.client() as one:
            await one.event()
            async with at.client() as refused:
                assert refused.answer.status == 503
                assert "poll" in await refused.answer.text()
        await at.until_clients(0)
        async with at.client() as again:
            assert (await again.event()).kind == "snapshot"


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    async with stage() as at:
        async with at.client() as one:
            await one.event()
            await at.until_clients(1)
            one.answer.close()
            await at.until_clients(0)
        assert at.feed.clients == 0


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrasse.web.server.WRITE_MAX", 0.2)
    async with stage() as at:
        host, port = at.url.removeprefix("http://").removesuffix("/events").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await at.until_clients(1)
        jobs = [Job(f"long-{n}", queue=f"{'q' * 200}{n}") for n in range(100)]
        await at.shown.store.jobs.enqueue(jobs, request="long")
        # Each change sends the long page once more, until no buffer takes another one.
        async with asyncio.timeout(60):
            n = 0
            while at.feed.clients:
                await put(at.shown, f"j{(n := n + 1)}")
                await asyncio.sleep(0.01)
        writer.close()
        del reader
        assert at.feed.clients == 0


async def test_the_end_of_the_process_ends_every_stream_at_once() -> None:
    async with stage() as at, at.client() as client:
        await client.event()
        at.feed.close()
        with pytest.raises(EOFError):
            await client.event()


async def test_however_many_watch_the_backends_are_asked_once() -> None:
    async with stage() as at, at.client() as one, at.client() as other:
        await one.event()
        await other.event()
        before = await at.feed.frame()
        assert await at.feed.frame() is before


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = Server(Shown(kept=QUICK).watch)
    yield f"http://{await server.listen(Address('127.0.0.1', 0))}"
    await server.close()


async def test_the_page_may_load_its_own_files_and_nothing_else(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{address}/") as answer:
            policy, text = answer.headers["Content-Security-Policy"], await answer.text()
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        for path, kind in (("status.css", "text/css"), ("status.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
            assert f"/static/{path}" in text
            async with session.get(f"{address}/static/{path}") as answer:
                assert (answer.status, answer.content_type) == (200, kind)
        async with session.get(f"{address}/static/..%2Fhttp.py") as answer:
            assert answer.status == 404


async def test_another_site_gets_no_stream_but_may_link_to_the_page(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        for path, mode, status in (("/events", "cors", 403), ("/", "navigate", 200)):
            headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
            async with session.get(address + path, headers=headers) as answer:
                assert answer.status == status


async def test_one_event_can_be_asked_for(address: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{address}/events?once") as answer:
        frame = await answer.json()
    assert set(frame) == {"id", "at", "version", "main"}
