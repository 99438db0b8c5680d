"""Spans: one per attempt, named `job.process`, sent as OTLP over HTTP, without delaying or failing jobs.

The parent is the span in the job's headers; without valid ids, a new trace begins. A span has queue, job_id, kind,
attempt and outcome, never the payload, and only the type of an error. Empty polls create none. A separate thread sends
them in batches; beyond WAITING_MAX unsent spans, further ones are dropped and counted. At the end unsent spans are sent
within CLOSE_MAX.

OpenTelemetry is imported only if tracing is enabled. Its own variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME,
OTEL_TRACES_SAMPLER and others) apply here too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wrasse import __version__
from wrasse.config.settings import Tracing
from wrasse.errors import ConfigError
from wrasse.jobs.trace import CURRENT, TraceParent, parent_of
from wrasse.ports.jobs import ClaimedJob

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

NAME = "job.process"
WAITING_MAX = 10_000
CLOSE_MAX = 5.0  # seconds
EXPORT_MAX = 5.0  # seconds one batch may take
_BATCH = 512
_PATH = "/v1/traces"
INSTALL = "pip install 'wrasse[otel]', or set observability.tracing.enabled to false"


class SpanTally:
    """Counters of spans. `sent` and `failed` are updated by the sending thread, the others by the event loop."""

    __slots__ = ("dropped", "ended", "failed", "sent")

    def __init__(self) -> None:
        self.ended = 0
        self.dropped = 0  # of these: too many waited
        self.sent = 0
        self.failed = 0  # of these: not accepted

    @property
    def waiting(self) -> int:
        """How many are not sent yet."""
        return self.ended - self.dropped - self.sent - self.failed

    @property
    def lost(self) -> int:
        """How many are lost."""
        return self.dropped + self.failed


class _JobSpan:
    """The span of a running attempt."""

    __slots__ = ("_span", "_tally")

    def __init__(self, span: trace.Span, tally: SpanTally) -> None:
        self._span = span
        self._tally = tally

    def enter(self) -> None:
        from opentelemetry import context, trace

        context.attach(trace.set_span_in_context(self._span))
        own = self._span.get_span_context()
        CURRENT.set(TraceParent(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled))

    def end(self, outcome: str, error: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if not self._span.is_recording():
            return
        self._span.set_attribute("outcome", outcome)
        if outcome != "done":
            if error:
                self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, outcome))
        self._tally.ended += 1
        if self._tally.waiting > WAITING_MAX:
            self._tally.dropped += 1  # a span that is not ended is not sent
            return
        self._span.end()


class Traces:
    """Creates the spans of one process and sends them."""

    def __init__(self, provider: TracerProvider, tally: SpanTally) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("wrasse", __version__)
        self.tally = tally

    def start(self, claimed: ClaimedJob) -> _JobSpan:
        """Starts the span of one attempt."""
        from opentelemetry.trace import SpanKind

        job = claimed.job
        span = self._tracer.start_span(
            NAME,
            context=_context(parent_of(job.headers)),
            kind=SpanKind.CONSUMER,
            attributes={"queue": job.queue, "job_id": job.id, "kind": job.kind, "attempt": claimed.attempt},
        )
        return _JobSpan(span, self.tally)

    async def close(self) -> None:
        """Sends unsent spans, within CLOSE_MAX."""
        closed, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(closed.set)

        # A daemon thread: an unresponsive receiver must not keep a stopped process alive.
        Thread(target=shut_down, name="wrasse-traces-close", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_MAX):
                await closed.wait()


def missing_for_tracing() -> str:
    """The missing package for tracing; empty if none is missing."""
    try:
        for each in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
            import_module(each)
    except ModuleNotFoundError as missing:
        return missing.name or "opentelemetry"
    return ""


def open_traces(settings: Tracing) -> Traces | None:
    """The tracer, if tracing is enabled."""
    if not settings.enabled:
        return None
    if missing := missing_for_tracing():
        raise ConfigError(f"observability.tracing.enabled is true, and {missing} is not installed", do=INSTALL)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    tally = SpanTally()

    class Counted(SpanExporter):
        """Sends, and counts what became of it."""

        def __init__(self) -> None:
            self._inner = OTLPSpanExporter(endpoint=endpoint(settings.endpoint), timeout=EXPORT_MAX)

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = SpanExportResult.FAILURE
            try:
                result = self._inner.export(spans)
            finally:
                if result is SpanExportResult.SUCCESS:
                    tally.sent += len(spans)
                else:
                    tally.failed += len(spans)
            return result

        def shutdown(self) -> None:
            self._inner.shutdown()  # type: ignore[no-untyped-call]

    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "wrasse"}
    provider = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False)
    sending = BatchSpanProcessor(
        Counted(), max_queue_size=2 * WAITING_MAX, max_export_batch_size=_BATCH, schedule_delay_millis=1_000
    )
    provider.add_span_processor(sending)
    return Traces(provider, tally)


def endpoint(text: str) -> str | None:
    """The address of the receiver: a host alone gets the usual path. None: from OpenTelemetry's variables."""
    if not text:
        return None
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("not the address of an OTLP/HTTP receiver", do="write e.g. http://localhost:4318")
    return url.rstrip("/") + _PATH if parts.path in ("", "/") else url


def _context(parent: TraceParent | None) -> Context:
    """The context of a new span: only its parent, regardless of the caller's context."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    ids = int(parent.trace_id, 16), int(parent.span_id, 16)
    return set_span_in_context(NonRecordingSpan(SpanContext(*ids, is_remote=True, trace_flags=flags)), Context())
