"""NATS with JetStream on disk."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from servers.process import ServerProcess, folder, free_ports


class Nats(ServerProcess):
    """A server and its address."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


@contextlib.contextmanager
def nats() -> Iterator[Nats]:
    """A server of its own."""
    binary = os.environ.get("WRASSE_TEST_NATS_SERVER") or Path(sys.executable).parent / "nats-server"
    with folder() as place:
        (port,) = free_ports(1)
        server = Nats([binary, "-a", "127.0.0.1", "-p", port, "-js", "-sd", place / "js"], port, place)
        server.start()
        try:
            yield server
        finally:
            server.stop()
