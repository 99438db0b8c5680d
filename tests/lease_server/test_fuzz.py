"""The API against its own document: a fuzzer sends what the document allows and what it forbids. No answer may be one
that the document does not name, or say that something broke inside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.config.urls import Address
from wrasse.lease_server.access import Access
from wrasse.lease_server.openapi import document
from wrasse.lease_server.server import LeaseServer
from wrasse.leases.leases import Leases

schema = schemathesis.openapi.from_dict(document())
CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The API in a thread of its own: the fuzzer calls it from outside, without a loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server, address = asyncio.run_coroutine_threadsafe(_serve(), loop).result(10)
    yield address
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


async def _serve() -> tuple[LeaseServer, str]:
    clock = SystemClock()
    memory = Memory(clock)
    server = LeaseServer(Leases(memory.records, memory.objects, clock), clock, Access())
    return server, f"http://{await server.listen(Address('127.0.0.1', 0))}"


@schema.parametrize()
@settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_no_call_answers_what_the_document_does_not_say(case: schemathesis.Case, url: str) -> None:
    if isinstance(case.body, dict) and case.path == "/v1/acquire":
        case.body["block_seconds"] = -1  # a call that waits for ever is right, and too long for a test
    if isinstance(case.body, dict) and case.path.startswith("/v1/queue/dequeue"):
        case.body["wait_seconds"] = -1
    response = case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)
    assert response.status_code < 500
