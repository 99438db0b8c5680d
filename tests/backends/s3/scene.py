"""A strict S3 and a backend on it, for tests of what the S3 backend does on bad days."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from servers.strict_s3 import Plan, StrictS3
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.clock import ManualClock


@dataclass
class Scene:
    """The server, the clock that it and we share, and the backend."""

    server: StrictS3
    clock: ManualClock
    backend: S3

    async def another(self) -> S3:
        """Another process. The caller closes it."""
        return await S3.open(self.backend._wire.address, self.clock)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """A backend on a strict S3, opened."""
    clock = ManualClock()
    server = StrictS3(clock)
    await server.start()
    address = S3Address("bucket", "here", server.endpoint, access_key="k", secret_key="s")
    backend = await S3.open(address, clock)
    try:
        yield Scene(server, clock, backend)
    finally:
        server.plan = lambda method, path: None
        await backend.close()
        await server.close()


def once(fault: str, *methods: str, part: bytes = b"", times: int = 1) -> Plan:
    """The fault, for the first requests with one of these methods and this part in their path."""
    left = [times]

    def plan(method: str, path: bytes) -> str | None:
        if method not in methods or part not in path or not left[0]:
            return None
        left[0] -= 1
        return fault

    return plan
