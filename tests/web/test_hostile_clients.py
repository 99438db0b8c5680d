"""A hostile client against a real process: a second client is served meanwhile, and the process stays small."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from processes.daemons import Daemon, running

CONFIG = "backends: {records: 'sqlite:wrasse.db'}\nleases: {listen: '127.0.0.1:0'}"
PATIENCE = 10.0  # of the second client; a busy machine is slow, a stalled server is slower


@pytest.fixture
def daemon(place: Path) -> Iterator[Daemon]:
    """Both servers in one process that may have 256 files open."""
    (place / "wrasse.yaml").write_text(CONFIG)
    with few_files(256), running(place, "--role=leases") as daemon:
        daemon.said("started")
        yield daemon


@contextmanager
def few_files(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


def addresses(daemon: Daemon) -> list[str]:
    started = daemon.said("started")
    return [started["leases"], started["address"][0]]


def asked(address: str) -> float:
    """How long a client waits that asks for health on a connection of its own."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - began


def megabytes(daemon: Daemon) -> int:
    """The most memory that it has had."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) // 1_024 for line in status.splitlines() if line.startswith("VmHWM"))


def opened(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nX: "], ids=["silent", "half a head"])
def test_hundreds_of_half_open_connections_leave_both_servers_reachable(daemon: Daemon, said: bytes) -> None:
    with few_files(1_024), ExitStack() as stack:
        for address in addresses(daemon):
            host, port = address.split(":")
            for _ in range(300):
                sock = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
                sock.sendall(said)
        for address in addresses(daemon):
            assert asked(address) < PATIENCE
        assert opened(daemon) < 200


def test_a_bomb_stalls_no_client_and_takes_little_memory(daemon: Daemon) -> None:
    before = megabytes(daemon)
    bomb = gzip.compress(b"[" + b"[]," * (10 << 20) + b"1]")  # 30 MB; its objects would take 900
    leases = addresses(daemon)[0]
    slowest, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            slowest.append(asked(leases))

    watching = threading.Thread(target=watch)
    watching.start()
    connection = http.client.HTTPConnection(leases, timeout=60)
    try:
        assert sent(connection, bomb, {"X-Lease-ID": "x", "X-Txn-ID": "x", "X-Fencing-Token": "1"}) == 403
        connection.request("POST", "/v1/acquire", b'{"key": "k", "owner": "me", "ttl_seconds": 600}')
        lease = json.loads(connection.getresponse().read())
        held = {"X-Lease-ID": lease["lease_id"], "X-Txn-ID": lease["txn_id"]}
        assert sent(connection, bomb, {**held, "X-Fencing-Token": str(lease["fencing_token"])}) == 200
    finally:
        over.set()
        watching.join()
        connection.close()
    assert max(slowest) < PATIENCE
    assert megabytes(daemon) - before < 300


def sent(connection: http.client.HTTPConnection, bomb: bytes, held: dict[str, str]) -> int:
    connection.request("POST", "/v1/update?key=k", bomb, {**held, "Content-Encoding": "gzip"})
    answer = connection.getresponse()
    answer.read()
    return answer.status
