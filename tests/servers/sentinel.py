"""A master, a replica and the sentinel that watches them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import redis

from servers.process import START_MAX_S, ServerProcess, folder, free_ports
from servers.valkey import Valkey, newest, valkey

MASTER = "mymaster"


@dataclass(frozen=True)
class Watched:
    """Two servers and their sentinel."""

    first: Valkey
    second: Valkey
    port: int

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{MASTER}/0"

    def fail_over(self) -> None:
        """Makes the replica the master, and waits until the sentinel says so."""
        with redis.Redis(port=self.port, decode_responses=True) as client:
            before = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", MASTER)
            client.execute_command("SENTINEL FAILOVER", MASTER)
            end = time.monotonic() + START_MAX_S
            while client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", MASTER) == before:
                assert time.monotonic() < end, "no failover"
                time.sleep(0.05)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Servers under a sentinel that needs nobody's agreement."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(valkey())
        second = stack.enter_context(valkey("--replicaof", f"127.0.0.1 {first.port}"))
        place = stack.enter_context(folder())
        (port,) = free_ports(1)
        config = place / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {place}\nsentinel monitor {MASTER} 127.0.0.1 {first.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 5000\n"
        )
        sentinel = ServerProcess((newest(), config, "--sentinel"), port, place)
        sentinel.start()
        stack.callback(sentinel.stop)
        _wait_for_replica(port)
        yield Watched(first, second, port)


def _wait_for_replica(port: int) -> None:
    end = time.monotonic() + START_MAX_S
    with redis.Redis(port=port, decode_responses=True) as client:
        while True:
            known = client.execute_command("SENTINEL REPLICAS", MASTER)
            if "'master-link-status': 'ok'" in str(known) and "disconnected" not in str(known):
                return
            assert time.monotonic() < end, f"no replica: {known}"
            time.sleep(0.05)
