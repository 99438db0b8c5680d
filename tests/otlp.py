"""An OTLP/HTTP receiver for tests: takes spans as real exporters send them, and keeps them decoded."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """One span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    error: bool
    attributes: dict[str, object]
    service: str


@dataclass(slots=True)
class Receiver:
    """What came in, and how to answer."""

    port: int = 0
    status: int = 200
    spans: list[SeenSpan] = field(default_factory=list)
    requests: int = 0
    raw: bytes = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def take(self, request: web.Request) -> web.Response:
        """Answers one export."""
        self.requests += 1
        body = await request.read()
        if self.status != 200:
            return web.Response(status=self.status)
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.raw += body
        self.spans += decoded(body)
        return web.Response(body=b"", content_type="application/x-protobuf")


def decoded(body: bytes) -> list[SeenSpan]:
    """The spans of one export."""
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            attributes: dict[str, object] = {}
            for each in span.attributes:
                attributes[each.key] = getattr(each.value, each.value.WhichOneof("value") or "string_value")
            found.append(
                SeenSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.status.code == 2,
                    attributes,
                    about.get("service.name", ""),
                )
            )
    return found


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.port = int(runner.addresses[0][1])
        yield receiver
    finally:
        await runner.cleanup()
