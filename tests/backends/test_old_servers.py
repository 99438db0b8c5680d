"""What only the oldest servers do: NATS 2.9 and Redis 7.0. That they do the rest as others do, the conformance suites
say. Long forms: no wheel carries these servers."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from backends.nats.records_scene import THINGS, at, opened
from backends.nats.scene import S, Scene, bodies, drafts, scene
from servers.nats import SHARED_NATS, nats_cluster
from servers.old import nats_2_9, redis_7_0
from servers.valkey import SHARED
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.redis.connect import Redis
from wrasse.errors import Refused
from wrasse.ports.backend import FAIL, OK, WARN
from wrasse.ports.groups import StartAt

pytestmark = pytest.mark.full
PROCESSES = 8


async def _asked(stage: Scene) -> object:
    return await (await stage.flows()).streams.append(drafts(1))


async def test_processes_that_ask_2_9_for_the_time_at_once_all_hear_it() -> None:
    async with scene(SHARED_NATS.at(nats_2_9()).port) as stage:
        await asyncio.gather(*(_asked(stage) for _ in range(PROCESSES)))
        assert len(await bodies(await stage.flows())) == PROCESSES


async def test_a_stream_that_was_made_by_hand_on_2_9_is_read_without_direct_reads() -> None:
    async with scene(SHARED_NATS.at(nats_2_9()).port) as stage:
        js = await stage.js()
        made = {"name": f"{stage.root}-hand", "subjects": [f"{stage.root}.s.gbe.>"], "storage": "memory"}
        await js.call(f"STREAM.CREATE.{made['name']}", made)
        flows = await stage.flows()
        await flows.groups.join(S, "g", StartAt(first=True))
        await flows.streams.append(drafts(150))
        assert await bodies(flows) == [b"%d" % n for n in range(150)]


async def test_copies_on_a_server_that_confirms_two_writes_of_which_it_keeps_one_are_refused() -> None:
    with nats_cluster(nats_2_9()) as cluster:
        options = dataclasses.replace(NatsOptions.of(cluster.url), root="wrasse")
        with pytest.raises(Refused, match=r"2\.9\.1\d.*with 3 copies"):
            await Nats.open(dataclasses.replace(options, replicas=3))
        async with opened(options) as store:  # one copy is safe, and nothing was made for three
            assert await store.records(THINGS).create("a", b"value")
            assert (await store.examine())[0].state == WARN


async def test_the_doctor_says_what_2_9_costs() -> None:
    async with opened(at(SHARED_NATS.at(nats_2_9()).port)) as store:
        states = {finding.check: finding.state for finding in await store.examine()}
    assert states == {"nats": WARN, "jetstream": OK, "storage": WARN, "replicas": OK, "max_payload": OK}


async def test_the_doctor_finds_nothing_wrong_with_the_version_of_redis_7_0() -> None:
    store = await Redis.open(SHARED.at(redis_7_0()).url)
    try:
        found = await store.examine()
    finally:
        await store.close()
    assert [finding for finding in found if finding.state == FAIL] == []
    assert {finding.state for finding in found if "7.0.15" in finding.what} == {OK}
