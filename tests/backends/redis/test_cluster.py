"""Redis behind a name: a Cluster whose slots move, sentinels whose master changes. Nothing answered is lost."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from uuid import uuid4

import pytest

from backends.redis.peer import GoPeer, go_job
from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient
from servers.cluster import Cluster, cluster
from servers.sentinel import watched
from servers.valkey import Valkey
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions, key_slot
from wrasse.backends.redis.scripts import Script
from wrasse.clock import ManualClock
from wrasse.errors import ConfigError, Refused, StoreUnavailable
from wrasse.ports.jobs import Cancel, Job, JobState
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection

ADD = Script.of("add", "redis.call('SADD', KEYS[1], ARGV[2]) return redis.call('INCR', KEYS[2])")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def options(nodes: Cluster) -> RedisOptions:
    return RedisOptions.of(f"{nodes.url}&root=t{uuid4().hex}")


async def patiently(link: OwnRedisClient, number: int) -> None:
    """Adds one, asking again for as long as the servers say that they cannot."""
    keys = f"{link.options.root}:set", f"{link.options.root}:count"
    async with asyncio.timeout(60):
        while True:
            try:
                await link.run(ADD, keys, (number,))
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


async def port(link: OwnRedisClient) -> int:
    """Which server answers."""
    return int((await link.ask("CONFIG", "GET", "port"))[1])


async def another_port(link: OwnRedisClient, than: int) -> int:
    """The next server that answers. The old one would for ten seconds more, until it hears that it is a replica now:
    the link must not wait for that, since what it writes there is lost."""
    async with asyncio.timeout(5):
        while True:
            found = await port(link)
            if found != than:
                return found
            await asyncio.sleep(0.02)


async def test_all_keys_of_a_root_are_in_the_slot_of_its_tag(options: RedisOptions) -> None:
    link = await OwnRedisClient.open(options)
    try:
        assert await link.ask("CLUSTER", "KEYSLOT", options.completed_list) == options.slot
    finally:
        await link.close()


async def test_records_live_on_the_node_of_their_slot(options: RedisOptions, nodes: Cluster) -> None:
    store = await Redis.open(options)
    try:
        records = store.records(Collection.named("things"))
        assert await records.create("a", b"1")
        found = await records.get("a")
        with nodes.client(nodes.owner(options.slot)) as client:
            held = client.execute_command("CLUSTER COUNTKEYSINSLOT", options.slot)
    finally:
        await store.close()
    assert (found is not None and found.value, held > 0) == (b"1", True)


async def test_jobs_are_put_taken_and_finished_while_their_slot_moves(options: RedisOptions, nodes: Cluster) -> None:
    store = await Redis.open(options)
    try:
        jobs_client = QueueClient(store.jobs)
        await jobs_client.enqueue("a", "b")
        (first, *_) = await jobs_client.claim(1)
        to = next(node for node in nodes.masters if node is not nodes.owner(options.slot))
        await asyncio.to_thread(nodes.move, options.slot, to)
        (outcome,) = await jobs_client.complete(first.claim)
        await jobs_client.enqueue("c")
        (counts,) = (await store.jobs.counts()).queues
    finally:
        await store.close()
    assert (outcome, counts.ready, counts.done) == (Outcome.DONE, 2, 1)


async def test_a_slot_that_moves_under_load_loses_nothing(options: RedisOptions, nodes: Cluster) -> None:
    link = await OwnRedisClient.open(options)
    try:
        for number in range(100):
            await patiently(link, number)
        to = next(node for node in nodes.masters if node is not nodes.owner(options.slot))
        nodes.move_begins(options.slot, to)
        adding = asyncio.ensure_future(asyncio.gather(*(patiently(link, number) for number in range(100, 200))))
        await asyncio.sleep(0)
        await asyncio.to_thread(nodes.move_keys, options.slot, to)
        asked = await link.ask("SCARD", f"{options.root}:set")  # the old node sends us on, for this one question
        await asyncio.to_thread(nodes.move_ends, options.slot, to)
        await adding
        assert (asked >= 100, await link.ask("SCARD", f"{options.root}:set")) == (True, 200)
    finally:
        await link.close()


async def test_a_node_that_has_not_heard_of_a_move_does_not_lead_the_link_astray(
    options: RedisOptions, nodes: Cluster
) -> None:
    source = nodes.owner(options.slot)
    to, third = [node for node in nodes.masters if node is not source]
    link = await OwnRedisClient.open(dataclasses.replace(options, nodes=(("127.0.0.1", third.port),)))
    try:
        await patiently(link, 1)
        nodes.move_begins(options.slot, to)
        nodes.move_keys(options.slot, to)
        nodes.move_ends(options.slot, to, told=(source,))
        keys = f"{options.root}:set", f"{options.root}:count"
        assert await link.run(ADD, keys, (2,)) == 2  # at once, by the word of the node that served the slot before
    finally:
        await link.close()


def another(nodes: Cluster, options: RedisOptions) -> Valkey:
    return next(node for node in nodes.masters if node is not nodes.owner(options.slot))


def moved_keys(nodes: Cluster, node: Valkey, slot: int) -> int:
    with nodes.client(node) as client:
        return int(client.execute_command("CLUSTER COUNTKEYSINSLOT", slot))


async def test_commands_that_go_together_follow_a_slot_whose_keys_have_moved(
    options: RedisOptions, nodes: Cluster
) -> None:
    link, keys = await OwnRedisClient.open(options), [f"{options.root}:{name}" for name in "ab"]
    try:
        await link.together([("SET", key, 1) for key in keys])
        to = another(nodes, options)
        nodes.move_begins(options.slot, to)
        nodes.move_keys(options.slot, to)
        added = await link.together([("INCR", key) for key in keys])  # the old node answers ASK
        there = moved_keys(nodes, to, options.slot)
        nodes.move_ends(options.slot, to)
        after = await link.together([("INCR", key) for key in keys])  # and now MOVED
        assert (added, there, after) == ([2, 2], 2, [3, 3])
    finally:
        await link.close()


async def test_commands_that_go_together_are_refused_while_neither_node_has_all_keys(
    options: RedisOptions, nodes: Cluster
) -> None:
    """The old node answers ASK, the new one TRYAGAIN: nothing was done, and it is done once the keys have moved."""
    link, keys = await OwnRedisClient.open(options), [f"{options.root}:{name}" for name in "ab"]
    try:
        await link.together([("SET", key, 1) for key in keys])
        to = another(nodes, options)
        nodes.move_begins(options.slot, to)
        nodes.move_keys(options.slot, to, 1)
        with pytest.raises(StoreUnavailable, match="TRYAGAIN"):
            await link.together([("INCR", key) for key in keys])
        nodes.move_keys(options.slot, to)
        added = await link.together([("INCR", key) for key in keys])
        nodes.move_ends(options.slot, to)
        assert added == [2, 2]
    finally:
        await link.close()


async def test_the_link_comes_back_after_its_node_was_restarted() -> None:
    with cluster() as made:
        options = RedisOptions.of(f"{made.url}&max_retries=0")
        link = await OwnRedisClient.open(options)
        try:
            await patiently(link, 1)
            await asyncio.to_thread(made.owner(options.slot).restart)
            await patiently(link, 2)
            assert await link.ask("SCARD", f"{options.root}:set") == 1  # without persistence, what was there is gone
        finally:
            await link.close()


@pytest.mark.full
async def test_a_replica_takes_over_when_its_master_dies() -> None:
    with cluster(replicas=True) as made:
        options = RedisOptions.of(made.url)
        link = await OwnRedisClient.open(options)
        try:
            await patiently(link, 1)
            before = await port(link)
            made.owner(options.slot).kill()
            await patiently(link, 2)
            assert await port(link) != before
        finally:
            await link.close()


def test_a_key_outside_the_tag_is_refused() -> None:
    with pytest.raises(ConfigError, match="outside the hash tag") as told:
        RedisOptions(cluster=True, completed_list="jobqueue:completed")
    assert "{jobqueue}" in told.value.do
    with pytest.raises(ConfigError, match=r"worker\.queues\.high"):
        RedisOptions(cluster=True, queues={"high": "jobqueue:high_priority"})


def test_every_name_of_a_root_on_a_cluster_is_in_its_slot() -> None:
    options = RedisOptions(cluster=True, queues={"high": "{jobqueue}:high_priority"})
    named = options.completed_list, options.dead_letter_list, options.processing_list_pattern % "w"
    assert ({key_slot(name) for name in named}, options.root) == ({key_slot("jobqueue")}, "{jobqueue}")


async def test_a_cluster_that_was_not_said_to_be_one_is_told_so(nodes: Cluster) -> None:
    link = await OwnRedisClient.open(RedisOptions(nodes=(("127.0.0.1", nodes.nodes[0].port),)))
    try:
        for keys in (("jobqueue:a", "jobqueue:b"), ("{a}", "{a}b")):  # of several slots, and of another node's
            with pytest.raises(ConfigError, match="is a node of a cluster"):
                await link.run(ADD, keys, (1,))
    finally:
        await link.close()


async def test_a_server_that_was_said_to_be_a_cluster_is_told_so(redis_server: Valkey) -> None:
    with pytest.raises(ConfigError, match="is no cluster"):
        await OwnRedisClient.open(RedisOptions.of(redis_server.url + "?cluster=true"))


async def test_the_master_is_the_one_that_the_sentinels_name_also_after_a_failover() -> None:
    with watched() as servers:
        link = await OwnRedisClient.open(RedisOptions.of(servers.url))
        try:
            before = await port(link)
            await patiently(link, 1)
            await asyncio.to_thread(servers.fail_over)
            after = await another_port(link, before)
            await patiently(link, 2)
        finally:
            await link.close()
        with pytest.raises(Refused, match="know no master"):
            await OwnRedisClient.open(RedisOptions.of(servers.url.replace("mymaster", "other")))
    assert [before, after] == [servers.first.port, servers.second.port]


async def test_what_another_program_left_on_a_cluster_is_found_moved_and_listed(options: RedisOptions) -> None:
    clock = ManualClock()
    redis = await Redis.open(options, clock, time=clock)
    try:
        jobs_client, peer = QueueClient(redis.jobs), GoPeer(redis.client, "dead-1")
        await jobs_client.enqueue("known", Job("cancelled"))
        await redis.client.ask("LPUSH", peer.processing, go_job("left"))
        found = await redis.strays.scan("0", 100_000, heartbeat_timeout=HEARTBEAT_TIMEOUT, dry=False)
        clock.advance(LONGER)
        (suspect,) = await redis.jobs.overdue(None, 10)
        outcomes = [*await jobs_client.rescue(suspect.claim), *await jobs_client.move(Cancel("cancelled"))]
        assert (found.adopted, outcomes) == (1, [Outcome.DONE] * 2)
        assert (await jobs_client.ids(JobState.READY), await jobs_client.ids(JobState.DEAD)) == (
            ["left", "known"],
            ["cancelled"],
        )
    finally:
        await redis.close()
