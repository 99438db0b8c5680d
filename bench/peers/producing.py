"""A producer of one peer, inside the peer's environment: `python -m bench.peers.producing rq`.

Reads one JSON command a line from stdin and answers each with one JSON line: seconds it took, latencies, or how many
jobs are unfinished. Whatever else the peer prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from typing import Any

import redis

from bench.peers import given


def main() -> None:
    """Obeys until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = importlib.import_module(f"bench.peers.{sys.argv[1]}_peer")
    server = redis.Redis(port=given.PORT)
    client = peer.Client()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_obey(client, server, **asked)), file=answers, flush=True)


def _obey(client: Any, server: Any, do: str, count: int = 0, gap: tuple[float, float] = (0, 0)) -> Any:
    if do == "pending":
        return client.pending(server)
    if do == "empty":
        return _empty(client, server)
    if do == "latency":
        return _latencies(client, count, gap)
    work = getattr(client, do, None)
    if work is None:
        return None  # the peer has no such thing
    began = time.monotonic()
    work(count) if count else work()
    return time.monotonic() - began


def _empty(client: Any, server: Any) -> None:
    """An empty broker; a peer that sets something up by itself keeps that."""
    # At once, since the memory of what comes next is measured.
    client.purge(server) if hasattr(client, "purge") else server.execute_command("FLUSHALL", "SYNC")


def _latencies(client: Any, count: int, gap: tuple[float, float]) -> list[float]:
    """Seconds from before the enqueue to the first line of the job, one job at a time, irregularly. -1: lost."""
    client.enqueue(1)
    seen, found = _wait_marks(1, 60), []
    for _ in range(count if seen else 0):
        time.sleep(random.uniform(*gap))
        began = time.monotonic()
        client.enqueue(1)
        seen = _wait_marks(seen + 1, 20)
        found.append(given.last_mark() - began if seen else -1.0)
    return found


def _wait_marks(count: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if given.count_marks() >= count:
            return count
        time.sleep(0.001)
    return 0


if __name__ == "__main__":
    main()
