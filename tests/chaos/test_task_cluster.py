"""Tasks on several servers: whoever leads is killed under load and comes back, and every law of the storm holds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from chaos.task_scene import TYPE
from chaos.test_task_storm import MILD, weathered
from servers.cluster import Cluster, cluster
from servers.nats import NatsCluster, nats_cluster
from wrasse.backends.nats.message_codec import stream_name
from wrasse.jobs.stream_tasks.fields import queue_of

ELECTION_MAX_S = 60
BLOWS = ("kill", "kill", "pause", "freeze", "cut", "slow")
ROUGH = replace(MILD, poison=True, restart_every=15, blows=BLOWS, gap=1.0, look=1.0)


class Leaders:
    """A JetStream cluster as one server: a restart is one of whoever leads the records, the books or the queue."""

    def __init__(self, servers: NatsCluster) -> None:
        self._servers = servers
        self._streams = cycle(("KV_wrasse", "wrasse_books", stream_name(queue_of(TYPE))))
        self.port = servers.nodes[0].port
        self.url = f"{servers.url}?replicas=3"
        self.killed: list[str] = []

    def restart(self) -> None:
        """The leader is killed; the others choose another one, and it comes back with what it had."""
        stream = next(self._streams)
        end = time.monotonic() + ELECTION_MAX_S
        while (leader := self._servers.leader(stream)) is None or not self._servers.whole():
            assert time.monotonic() < end, f"nobody leads {stream}, or a copy is behind"
            time.sleep(0.1)  # two of three at once would be more than the servers promise to bear
        leader.restart()
        self.killed.append(stream)


class Masters:
    """A Redis Cluster as one server: a restart of it is one of any master."""

    def __init__(self, nodes: Cluster) -> None:
        self._nodes = nodes
        self.port = nodes.masters[0].port
        self.url = nodes.url
        self.killed: list[int] = []

    def restart(self) -> None:
        """A master is killed and comes back with what it had."""
        master = random.choice(self._nodes.masters)
        master.restart()
        self.killed.append(master.port)


@pytest.fixture
def leaders() -> Iterator[Leaders]:
    with nats_cluster() as servers:
        yield Leaders(servers)


@pytest.fixture
def masters() -> Iterator[Masters]:
    with cluster(durable=True) as nodes:
        yield Masters(nodes)


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_jetstream_cluster_whose_leaders_are_killed_loses_no_task(tmp_path: Path, leaders: Leaders) -> None:
    print(await weathered(tmp_path, leaders, ROUGH, rounds=32))
    assert leaders.killed


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_redis_cluster_whose_masters_are_killed_loses_no_task(tmp_path: Path, masters: Masters) -> None:
    print(await weathered(tmp_path, masters, ROUGH, rounds=32))
    assert masters.killed
