"""Spans as a real receiver gets them: one per attempt, under the right parent, and never in the way of a job."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from io import StringIO

import pytest
from aiohttp import web

from otlp import Receiver, SeenSpan, receiving
from unit.jobs.test_http_handler import serving
from unit.jobs.worker.scene import eventually
from wrasse.api.app import App
from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.config.settings import Tracing
from wrasse.errors import ConfigError
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.observability.logs import LogHandler, LogTally
from wrasse.observability.tracing import WAITING_MAX, SpanTally, Traces, endpoint, open_traces
from wrasse.ports.jobs import Claim, ClaimedJob, Job

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "PLANTED-7f3a"


def app_on(url: str) -> App:
    overrides = {
        "backends.jobs": "memory:",
        "backends.records": "memory:",
        "backends.streams": "memory:",
        "observability.tracing.enabled": "true",
        "observability.tracing.endpoint": url,
        "worker.backoff.base": "1h",
        "worker.backoff.max": "1h",
    }
    return App(load("/dev/null", environ={}, overrides=overrides))


@asynccontextmanager
async def traced() -> AsyncIterator[tuple[App, Receiver]]:
    async with receiving() as receiver, app_on(receiver.url) as app:
        yield app, receiver


def by_job(spans: list[SeenSpan]) -> dict[object, SeenSpan]:
    return {span.attributes["job_id"]: span for span in spans}


async def test_each_attempt_is_one_span_with_queue_job_and_outcome() -> None:
    async with traced() as (app, receiver):

        @app.handler("works")
        async def works(job: RunningJob) -> None: ...

        @app.handler("fails")
        def fails(job: RunningJob) -> None:
            raise ValueError(SECRET)

        @app.handler("reads")
        async def reads(job: RunningJob) -> object:
            return job.data

        for kind in ("works", "fails", "unknown"):
            await app.jobs.enqueue(kind, {"secret": SECRET}, id=kind)
        await app.jobs.enqueue("reads", SECRET.encode(), id="reads")
        assert await app.run_pending() == 4
        spans = by_job(receiver.spans)
    assert len(receiver.spans) == 4
    assert {id: span.attributes["outcome"] for id, span in spans.items()} == {
        "works": "done",
        "fails": "failed",
        "unknown": "no_handler",
        "reads": "invalid_payload",
    }
    assert {(span.name, span.kind, span.attributes["queue"], span.service) for span in receiver.spans} == {
        ("job.process", 5, "low", "wrasse")
    }
    assert (spans["works"].error, spans["fails"].error) == (False, True)
    assert spans["fails"].attributes["error.type"] == "ValueError"
    assert SECRET.encode() not in receiver.raw


async def test_the_ids_of_a_job_are_the_parent_and_bad_ids_begin_a_trace() -> None:
    async with traced() as (app, receiver):

        @app.handler("*")
        async def works(job: RunningJob) -> None: ...

        await app.jobs.enqueue("a", headers={"trace_id": TRACE, "span_id": SPAN}, id="child")
        await app.jobs.enqueue("a", headers={"trace_id": "0" * 32, "span_id": SPAN}, id="bad")
        await app.jobs.enqueue("a", id="none")
        await app.run_pending()
        spans = by_job(receiver.spans)
    assert (spans["child"].trace_id, spans["child"].parent_id) == (TRACE, SPAN)
    assert (spans["bad"].parent_id, spans["none"].parent_id) == ("", "")
    assert len({span.trace_id for span in receiver.spans}) == 3


async def test_a_job_that_a_handler_puts_belongs_to_its_trace() -> None:
    async with traced() as (app, receiver):

        @app.handler("first")
        async def first(job: RunningJob) -> None:
            await app.jobs.enqueue("second", id="second")
            await app.jobs.enqueue("second", id="elsewhere", headers={"trace_id": TRACE, "span_id": SPAN})

        @app.handler("second")
        async def second(job: RunningJob) -> None: ...

        await app.jobs.enqueue("first", id="first")
        await app.run_pending()
        spans = by_job(receiver.spans)
    assert (spans["second"].trace_id, spans["second"].parent_id) == (spans["first"].trace_id, spans["first"].span_id)
    assert (spans["elsewhere"].trace_id, spans["elsewhere"].parent_id) == (TRACE, SPAN)


async def test_empty_polls_make_no_span() -> None:
    async with traced() as (app, receiver):

        @app.handler("*")
        async def works(job: RunningJob) -> None: ...

        assert [await app.run_pending() for _ in range(5)] == [0] * 5
    assert receiver.requests == 0


async def test_a_worker_that_stops_sends_what_waits_and_says_what_was_cut() -> None:
    async with traced() as (app, receiver):
        running = asyncio.Event()

        @app.handler("slow")
        async def slow(job: RunningJob) -> None:
            running.set()
            await asyncio.Event().wait()

        @app.handler("late")
        async def late(job: RunningJob) -> None:
            await asyncio.Event().wait()

        await app.jobs.enqueue("slow", id="slow")
        await app.jobs.enqueue("late", id="late", timeout="50ms")
        worker = app.worker()
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            await running.wait()
            await eventually(lambda: app.tally.requeued["low"] == 1)
            worker.stop("0s")
        spans = by_job(receiver.spans)
    assert {id: span.attributes["outcome"] for id, span in spans.items()} == {"slow": "interrupted", "late": "timeout"}


async def test_the_span_is_current_in_async_handlers_in_threads_in_logs_and_over_http() -> None:
    from opentelemetry import trace

    def current() -> str:
        return f"{trace.get_current_span().get_span_context().span_id:016x}"

    seen: dict[str, str] = {}
    lines = StringIO()
    handler = LogHandler(lines, SystemClock(), LogTally())

    async def over_http(request: web.Request) -> web.Response:
        seen["posted"] = request.headers["traceparent"].split("-")[2]
        return web.Response()

    async with traced() as (app, receiver), serving(over_http) as url:

        @app.handler("looped")
        async def looped(job: RunningJob) -> None:
            seen["looped"] = current()
            handler.emit(logging.makeLogRecord({"name": "wrasse.x", "levelno": logging.INFO, "msg": "hello"}))

        @app.handler("threaded")
        def threaded(job: RunningJob) -> None:
            seen["threaded"] = current()

        from wrasse.jobs.http_handler import HttpHandler

        app.registry.add("posted", HttpHandler(url, SystemClock()))
        for kind in ("looped", "threaded", "posted"):
            await app.jobs.enqueue(kind, id=kind)
        await app.run_pending()
        spans = {str(id): span.span_id for id, span in by_job(receiver.spans).items()}
        outside = current()
    assert seen == spans
    assert {span.attributes["outcome"] for span in receiver.spans} == {"done"}
    assert outside == "0" * 16
    assert f'"span_id":"{spans["looped"]}"' in lines.getvalue()


@pytest.mark.parametrize("status", [400, 503])
async def test_a_receiver_that_refuses_costs_no_job_and_is_counted(status: int) -> None:
    async with receiving() as receiver, app_on(receiver.url) as app:
        receiver.status = status

        @app.handler("*")
        async def works(job: RunningJob) -> str:
            return "done"

        await app.jobs.enqueue("a", id="a")
        working = await app._build_worker(None)
        assert await working.run_pending() == 1
        assert working.traces is not None
        tally = working.traces.tally
        await eventually(lambda: tally.waiting == 0)
        assert (tally.ended, tally.sent, tally.lost) == (1, 0, 1)
        assert (await app.jobs.get("a")).result == b'"done"'


async def test_nobody_listening_costs_no_job_and_no_stop() -> None:
    async with receiving() as receiver:
        pass
    async with app_on(receiver.url) as app:

        @app.handler("*")
        async def works(job: RunningJob) -> str:
            return "done"

        await app.jobs.enqueue("a", id="a")
        async with asyncio.timeout(30):
            assert await app.run_pending() == 1
        assert (await app.jobs.get("a")).result == b'"done"'


def test_what_is_more_than_may_wait_is_dropped_and_counted() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    tally = SpanTally()
    traces = Traces(TracerProvider(shutdown_on_exit=False), tally)
    now = SystemClock().now()
    for number in range(WAITING_MAX + 5):
        job = ClaimedJob(Job(str(number)), Claim(str(number), 1, ""), 1, 0, 0, 0, now, now + timedelta(seconds=1))
        traces.start(job).end("done", "")
    assert (tally.ended, tally.dropped, tally.waiting) == (WAITING_MAX + 5, 5, WAITING_MAX)


def test_tracing_that_is_off_needs_nothing() -> None:
    assert open_traces(Tracing()) is None


def test_tracing_without_opentelemetry_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError) as refused:
        open_traces(Tracing(enabled=True))
    assert "wrasse[otel]" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", None),
        ("localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://collector/custom/path", "https://collector/custom/path"),
    ],
)
def test_an_endpoint_without_a_path_means_the_usual_one(text: str, url: str | None) -> None:
    assert endpoint(text) == url


@pytest.mark.parametrize("text", ["ftp://x", "http://", "http://h:0", "http://h:99999"])
def test_an_endpoint_that_is_no_address_is_a_mistake_in_the_settings(text: str) -> None:
    with pytest.raises(ConfigError, match=r"observability\.tracing\.endpoint"):
        load("/dev/null", environ={}, overrides={"observability.tracing.endpoint": text})
