"""Tasks on several servers: whoever leads is killed under load and comes back, and every law of the storm holds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from chaos.test_task_storm import MILD, weathered
from servers.cluster import Cluster, cluster
from servers.nats import NatsCluster, nats_cluster

ROUGH = replace(MILD, poison=True, restart_every=15, blows=("kill", "kill", "pause", "freeze", "cut", "slow"), look=1.0)


class Leaders:
    """A JetStream cluster as one server: a restart is one of whoever leads the records, or the queue, by turns."""

    def __init__(self, servers: NatsCluster) -> None:
        self._servers = servers
        self._streams = cycle(("KV_wrasse", "gbe=2Etasks=2Elow=2Equeue"))
        self.port = servers.nodes[0].port
        self.url = f"{servers.url}?replicas=3"
        self.killed: list[str] = []

    def restart(self) -> None:
        """The leader is killed; the others choose another one, and it comes back with what it had."""
        stream = next(self._streams)
        leader = self._servers.leader(stream)
        assert leader is not None, f"nobody leads {stream}"
        leader.restart()
        self.killed.append(stream)
        while not self._servers.elected():
            time.sleep(0.05)


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
    print(await weathered(tmp_path, leaders, ROUGH, rounds=60))
    assert leaders.killed


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_redis_cluster_whose_masters_are_killed_loses_no_task(tmp_path: Path, masters: Masters) -> None:
    print(await weathered(tmp_path, masters, ROUGH, rounds=60))
    assert masters.killed
