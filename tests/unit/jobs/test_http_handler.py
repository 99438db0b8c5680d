"""URLs as handlers: what is sent, and what every answer means for the job."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from hypothesis import given, strategies as st

from unit.jobs.worker.scene import CLOCK, QUICK, enqueue, eventually, memory, record, until, working
from wrasse.backends.memory.connect import Memory
from wrasse.errors import UsageError
from wrasse.jobs.handlers import ANY, Handlers
from wrasse.jobs.http_handler import RETRY_AFTER_MAX, HttpHandler, HttpHandlerSettings, retry_after
from wrasse.jobs.retry import RetryPolicy
from wrasse.ports.jobs import PAYLOAD_BYTES_MAX, Cancel, Job, JobRecord, JobState, Reason

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]
PATIENT = replace(QUICK, retry=RetryPolicy(failures_max=3, base=timedelta(hours=1), max=timedelta(hours=1)))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """A server that answers every POST; gives its address."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path:.*}", serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def posting(url: str, settings: HttpHandlerSettings | None = None) -> Handlers:
    made = Handlers()
    made.add(ANY, HttpHandler(url, CLOCK, settings or HttpHandlerSettings()))
    return made


async def settled(store: Memory, id: str = "a") -> JobRecord:
    """The job after its first attempt."""

    async def ended() -> bool:
        found = await record(store.jobs, id)
        return found.info.state in (JobState.DONE, JobState.DEAD) or bool(found.history)

    await eventually(ended)
    return await record(store.jobs, id)


async def answered(serve: Serve, settings: HttpHandlerSettings | None = None, job: Job | None = None) -> JobRecord:
    """What becomes of a job whose handler answers so."""
    store = memory()
    await enqueue(store.jobs, job or Job("a", kind="resize", payload=b"{}"))
    async with serving(serve) as url, working(store.jobs, posting(url + "/work", settings), PATIENT):
        return await settled(store)


def status(code: int, text: str = "", **headers: str) -> Serve:
    told = {name.replace("_", "-"): each for name, each in headers.items()}

    async def serve(request: web.Request) -> web.Response:
        return web.Response(status=code, text=text, headers=told)

    return serve


async def test_the_payload_is_the_body_and_headers_say_which_job_it_is() -> None:
    seen: list[tuple[str, bytes, dict[str, str]]] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append((request.path, await request.read(), dict(request.headers)))
        return web.Response(text="small")

    trace = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}
    job = Job("a/ä 1", kind="resize", queue="high", priority="high", payload=b'{"n": 1}', headers=trace)
    store = memory()
    await enqueue(store.jobs, job)
    async with serving(serve) as url, working(store.jobs, posting(url + "/work")):
        done = await until(store.jobs, job.id, JobState.DONE)
    assert done.result == b"small"
    [(path, body, headers)] = seen
    assert (path, body) == ("/work", b'{"n": 1}')
    expected = {
        "Wrasse-Job-Id": "a/%C3%A4 1",
        "Wrasse-Kind": "resize",
        "Wrasse-Queue": "high",
        "Wrasse-Priority": "high",
        "Wrasse-Attempt": "1",
        "Wrasse-Token": headers["Wrasse-Token"],
        "Content-Type": "application/json",
        "traceparent": f"00-{trace['trace_id']}-{trace['span_id']}-01",
    }
    assert {name: headers.get(name) for name in expected} == expected
    assert int(headers["Wrasse-Token"]) > 0
    assert "Authorization" not in headers


async def test_bytes_that_are_no_json_are_sent_as_bytes_and_without_a_trace_that_nobody_gave() -> None:
    async def serve(request: web.Request) -> web.Response:
        return web.json_response([request.content_type, "traceparent" in request.headers, (await request.read()).hex()])

    done = await answered(serve, job=Job("a", payload=b"\xff\x00", headers={"trace_id": "no", "span_id": "id"}))
    assert done.result == b'["application/octet-stream", false, "ff00"]'


async def test_no_content_is_done_without_a_result() -> None:
    done = await answered(status(204))
    assert (done.info.state, done.result) == (JobState.DONE, None)


@pytest.mark.parametrize("code", [400, 409, 410, 422])
async def test_a_refused_job_is_dead_at_once_with_what_was_said(code: int) -> None:
    dead = await answered(status(code, "no such picture"))
    assert (dead.info.state, dead.info.reason, dead.info.attempts) == (JobState.DEAD, Reason.FAILED, 1)
    assert dead.info.error.endswith(f"answered {code}: no such picture")


async def test_a_refused_job_is_tried_again_where_the_settings_say_so() -> None:
    waits = await answered(status(422), HttpHandlerSettings(dead_letter_refused=False))
    assert (waits.info.state, waits.info.failures) == (JobState.READY, 1)


@pytest.mark.parametrize("code", [401, 403, 404, 408, 429, 500, 503, 302, 303])
async def test_what_is_not_about_the_job_fails_and_is_tried_again(code: int) -> None:
    waits = await answered(status(code, Location="/other"))
    assert (waits.info.state, waits.info.failures, waits.history[0].reason) == (JobState.READY, 1, Reason.FAILED)
    assert f"answered {code}" in waits.history[0].error


@pytest.mark.parametrize("code", [429, 503])
async def test_retry_after_says_when_it_is_tried_again(code: int) -> None:
    waits = await answered(status(code, Retry_After="7200"))
    assert waits.info.not_before is not None
    wait = waits.info.not_before - waits.history[0].ended_at
    assert abs(wait - timedelta(hours=2)) < timedelta(seconds=1)


async def test_nobody_listening_is_a_failure_that_names_the_host() -> None:
    store = memory()
    await enqueue(store.jobs, Job("a"))
    async with serving(status(200)) as url:
        pass
    async with working(store.jobs, posting(url + "/secret-path"), PATIENT):
        waits = await settled(store)
    error = waits.history[0].error
    assert error.startswith(f"{url.removeprefix('http://')} could not be reached: ClientConnectorError")
    assert "secret-path" not in error


async def test_a_connection_that_breaks_is_a_failure() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    waits = await answered(serve)
    assert (waits.info.failures, waits.history[0].reason) == (1, Reason.FAILED)
    assert "could not be reached" in waits.history[0].error


async def test_the_time_limit_of_the_job_is_that_of_the_request() -> None:
    hung_up = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            return await asyncio.Future[web.Response]()
        finally:
            hung_up.set()

    waits = await answered(serve, job=Job("a", timeout=timedelta(milliseconds=100)))
    assert waits.history[0].reason is Reason.TIMEOUT
    async with asyncio.timeout(30):
        await hung_up.wait()


async def test_a_cancelled_job_hangs_up() -> None:
    asked, hung_up = asyncio.Event(), asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.set()
        try:
            return await asyncio.Future[web.Response]()
        finally:
            hung_up.set()

    store = memory()
    await enqueue(store.jobs, Job("a"))
    async with asyncio.timeout(30), serving(serve) as url, working(store.jobs, posting(url)):
        await asked.wait()
        await store.jobs.move([Cancel("a")])
        await hung_up.wait()
        assert (await record(store.jobs, "a")).info.state is JobState.DEAD


async def test_a_redirect_on_the_same_host_is_posted_again() -> None:
    async def serve(request: web.Request) -> web.Response:
        if request.path == "/work":
            return web.Response(status=308, headers={"Location": "/moved"})
        return web.Response(body=request.path.encode() + b" " + await request.read())

    assert (await answered(serve)).result == b"/moved {}"


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_to_another_host_is_never_followed(code: int) -> None:
    strangers: list[str] = []

    async def stranger(request: web.Request) -> web.Response:
        strangers.append(request.path)
        return web.Response()

    async with serving(stranger) as elsewhere:
        waits = await answered(
            status(code, Location=elsewhere + "/x"), HttpHandlerSettings(authorization="Bearer secret")
        )
    assert strangers == []
    assert (waits.info.state, waits.info.failures) == (JobState.READY, 1)
    assert f"answered {code}" in waits.history[0].error


async def test_a_host_that_redirects_in_circles_is_a_failure() -> None:
    waits = await answered(status(307, Location="/work"))
    assert "more than 5 redirects" in waits.history[0].error


async def test_an_answer_that_is_too_large_is_a_failure_and_is_not_read_to_its_end() -> None:
    sent = 0

    async def serve(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(64):
            await answer.write(bytes(PAYLOAD_BYTES_MAX // 4))
            sent += 1
        return answer

    waits = await answered(serve)
    assert f"answered more than {PAYLOAD_BYTES_MAX} bytes" in waits.history[0].error
    assert sent < 64


async def test_an_answer_is_never_unpacked() -> None:
    asked: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(body=gzip.compress(bytes(8 << 20)), headers={"Content-Encoding": "gzip"})

    waits = await answered(serve)
    assert (asked, waits.info.state) == (["identity"], JobState.READY)
    assert "in the encoding 'gzip'" in waits.history[0].error


async def test_a_refusal_without_end_is_known_by_its_beginning() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=422)
        await answer.prepare(request)
        while True:
            await answer.write(b"no " * 4096)

    dead = await answered(serve)
    assert (dead.info.state, "answered 422: no no" in dead.history[0].error) == (JobState.DEAD, True)


async def test_the_key_is_sent_and_connections_are_kept_between_jobs() -> None:
    peers: list[tuple[object, str | None]] = []

    async def serve(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append((request.transport.get_extra_info("peername"), request.headers.get("Authorization")))
        return web.Response()

    store = memory()
    one = replace(QUICK, concurrency=1)
    await enqueue(store.jobs, *(Job(f"j{n}") for n in range(20)))
    async with (
        serving(serve) as url,
        working(store.jobs, posting(url, HttpHandlerSettings(authorization="Bearer k")), one),
    ):
        for n in range(20):
            await until(store.jobs, f"j{n}", JobState.DONE)
    assert {key for _, key in peers} == {"Bearer k"}
    assert len({peer for peer, _ in peers}) < 20


@pytest.mark.parametrize("url", ["http://", "https://:80/x", "http://a:99999/x", "http://a b/x", "http://a/\u00e4"])
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        HttpHandler(url, CLOCK)


def test_a_secret_in_the_url_is_refused_without_being_repeated() -> None:
    with pytest.raises(UsageError) as refused:
        HttpHandler("https://me:s3cret@host/x", CLOCK)
    assert "s3cret" not in str(refused.value)
    assert "worker.http.authorization" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120", timedelta(minutes=2)),
        ("Thu, 01 Jan 2026 00:00:30 GMT", timedelta(seconds=30)),
        ("Wed, 31 Dec 2025 00:00:30 GMT", timedelta(0)),
        ("99999999999999999999", RETRY_AFTER_MAX),
        ("Fri, 01 Jan 2027 00:00:00 GMT", RETRY_AFTER_MAX),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, expected: timedelta | None) -> None:
    assert retry_after(text, NOW) == expected


@given(st.text())
def test_no_retry_after_can_break_anything(text: str) -> None:
    wait = retry_after(text, NOW)
    assert wait is None or timedelta(0) <= wait <= RETRY_AFTER_MAX
