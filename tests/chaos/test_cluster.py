"""Jobs on a Cluster: a node that is restarted and a slot that moves under load lose nothing; what a failover loses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from chaos.storm import spawn
from chaos.storm_laws import check_all
from processes.kill_scene import KillScene, eventually, open_kill_scene
from servers.cluster import MASTERS, Cluster, cluster
from servers.valkey import Valkey
from wrasse.backends.redis.connect import Redis
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Job, JobFilter, JobState

HEARTBEAT_TIMEOUT = 1.5
NO_FAILOVER = 60_000  # ms: a node that is restarted is back before


async def works_on(scene: KillScene, more: int) -> None:
    """Waits until so many more jobs have ended."""
    wanted = len(ends(scene)) + more
    await eventually(lambda: len(ends(scene)) >= wanted)


def ends(scene: KillScene) -> list[object]:
    return [line.facts[0] for line in scene.log() if line.what == "end"]


async def under_load(folder: Path, nodes: Cluster, rounds: int, workers: int) -> str:
    """Moves the slot of all jobs and restarts its node, while everybody works."""
    url = f"{nodes.url}&root={{t{uuid4().hex}}}"
    async with open_kill_scene(folder, HEARTBEAT_TIMEOUT, url) as scene:
        assert isinstance(scene.store, Redis)
        slot = scene.store.client.options.slot
        for _ in range(workers):
            spawn(scene, "worker", url, "", HEARTBEAT_TIMEOUT)
        spawn(scene, "engine", url, "", HEARTBEAT_TIMEOUT)
        producer = spawn(scene, "producer", url, "", "p", 0.05, 12)
        for _ in range(rounds):
            await works_on(scene, 20)
            to = next(node for node in nodes.masters if node is not nodes.owner(slot))
            await asyncio.to_thread(nodes.move, slot, to)
            await works_on(scene, 20)
            await asyncio.to_thread(nodes.owner(slot).restart)
            await works_on(scene, 20)
        scene.kill(producer)

        async def at_rest() -> bool:
            try:
                counts = await scene.jobs.counts()
            except StoreUnavailable:  # nodes that have not found each other again
                return False
            return all(q.ready + q.scheduled + q.running == 0 for q in counts.queues)

        await eventually(at_rest)
        assert [process.poll() for process in scene.running] == [None] * len(scene.running)
        ending = await check_all(scene, nodes.owner(slot).port)
        return f"{rounds} moves and restarts, {len(ending.done)} jobs done, {ending.twice} side effects ran twice"


async def test_a_slot_that_moves_and_a_node_that_is_restarted_under_load_lose_nothing(tmp_path: Path) -> None:
    with cluster(durable=True, silence_ms=NO_FAILOVER) as nodes:
        said = await under_load(tmp_path, nodes, rounds=1, workers=2)
    print(said)
    assert said


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_with_replicas_too_slots_that_move_and_nodes_that_are_restarted_lose_nothing(tmp_path: Path) -> None:
    with cluster(replicas=True, durable=True, silence_ms=NO_FAILOVER) as nodes:
        said = await under_load(tmp_path, nodes, rounds=5, workers=4)
    print(said)
    assert said


async def patiently_put(redis: Redis, id: str) -> None:
    request = uuid4().hex
    async with asyncio.timeout(60):
        while True:
            try:
                await redis.jobs.enqueue([Job(id, minted=True)], request=request)
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


async def stored(redis: Redis) -> set[str]:
    found: set[str] = set()
    after: str | None = None
    while True:
        page = await redis.jobs.page(JobState.READY, JobFilter(), after, 1_000)
        found |= {info.id for info in page}
        after = page.cursor
        if after is None:
            return found


async def failed_over(nodes: Cluster, *, behind: bool) -> tuple[set[str], set[str], set[str]]:
    """Puts until the master dies, and once more at its replica: what was told, what of it WAIT had confirmed, and what
    is there in the end. `behind`: the replica gets nothing more from some time on."""
    redis = await Redis.open(f"{nodes.url}&root={{t{uuid4().hex}}}")
    told: set[str] = set()
    confirmed: set[str] = set()
    try:
        master = nodes.owner(redis.client.options.slot)
        replica = nodes.nodes[MASTERS + nodes.masters.index(master)]
        for number in range(2_000):
            if behind and number == 1_000:
                _fall_behind(nodes, master, replica)
            await redis.jobs.enqueue([Job(str(number), minted=True)], request=uuid4().hex)
            told.add(str(number))
            if number % 10 == 0 and await redis.client.ask("WAIT", 1, 50) > 0:
                confirmed |= told
        master.kill()
        if behind:
            replica.resume()
        await patiently_put(redis, "last")
        return told, confirmed, await stored(redis)
    finally:
        await redis.close()


def _fall_behind(nodes: Cluster, master: Valkey, replica: Valkey) -> None:
    replica.pause()
    with nodes.client(master) as client:
        client.execute_command("CLIENT KILL TYPE replica")


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("behind", [False, True])
async def test_a_failover_loses_at_most_what_no_replica_had_confirmed(behind: bool) -> None:
    with cluster(replicas=True) as nodes:
        told, confirmed, found = await failed_over(nodes, behind=behind)
    print(f"failover, replica behind: {behind}: {len(told - found)} of {len(told)} lost, {len(confirmed)} confirmed")
    assert confirmed - found == set()
    assert (len(confirmed) >= 900, "last" in found) == (True, True)
