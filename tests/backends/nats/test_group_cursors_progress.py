"""The progress of a group as the tools of NATS show it: these tests read it with nats-py."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

import pytest
from nats import connect
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy
from nats.js.errors import NotFoundError

from backends.nats.scene import S, Scene, drafts, entries, scene
from servers.nats import SHARED_NATS, Nats, nats
from servers.old import nats_2_9
from wrasse.backends.nats import group_cursors
from wrasse.backends.nats.connect import Flows, Nats as Opened
from wrasse.clock import SystemClock
from wrasse.ports.groups import StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, EntryId

GROUP = "archiver"
FIRST = StartAt(first=True)


@pytest.fixture(params=["moved", "made anew"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As newer servers do it, or as it is done on older ones."""
    if request.param == "made anew":
        monkeypatch.setattr(group_cursors, "_RESETS", (99,))
    return str(request.param)


@pytest.fixture
async def stage(nats_server: Nats) -> AsyncIterator[Scene]:
    async with scene(nats_server.port) as made:
        yield made


@pytest.fixture
async def tool(nats_server: Nats) -> AsyncIterator[Client]:
    client = await connect(nats_server.url)
    yield client
    await client.close()


async def marked(flows: Flows, *places: int, subject: str = S) -> Sequence[Outcome]:
    """The group of the archiver is moved to the entries at these places, and shown for the last time."""
    ids = [entry.id for entry in await entries(flows, subject)]
    await flows.groups.join(subject, GROUP, FIRST, cursor=True)
    outcomes = [await flows.groups.mark(subject, GROUP, ids[place] if place >= 0 else START) for place in places]
    await flows.groups.close()
    return outcomes


async def shown(tool: Client, flows: Flows, name: str = GROUP, subject: str = S) -> tuple[int, int]:
    """What `nats consumer info` says: what is acked, and what is unprocessed."""
    info = await tool.jetstream().consumer_info((await flows.stream_map.find(subject)).stream, name)
    return info.ack_floor.stream_seq, info.num_pending


async def test_a_marked_group_is_a_consumer_with_its_floor_and_its_lag(stage: Scene, tool: Client, way: str) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(30))
    await marked(flows, 9, 19)
    assert await shown(tool, flows) == (20, 10)


async def test_a_group_that_has_nothing_yet_is_shown_with_all_of_its_lag(stage: Scene, tool: Client, way: str) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(30))
    assert await marked(flows, -1) == [Outcome.CONFLICT]
    assert await shown(tool, flows) == (0, 30)


async def test_whoever_comes_next_shows_what_a_crash_left_unshown(stage: Scene, tool: Client, way: str) -> None:
    crashed = await stage.flows()
    await crashed.streams.append(drafts(30))
    await marked(crashed, 9)
    await crashed.groups.mark(S, GROUP, (await entries(crashed))[19].id)  # and then it was killed
    assert await shown(tool, crashed) == (10, 20)
    assert await marked(await stage.flows(), 19) == [Outcome.CONFLICT]
    assert await shown(tool, crashed) == (20, 10)


async def test_a_consumer_that_somebody_read_with_or_deleted_is_put_right(stage: Scene, tool: Client) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(30))
    await marked(flows, 9)
    stream = (await flows.stream_map.find(S)).stream
    reader = await tool.jetstream().pull_subscribe_bind(GROUP, stream=stream)
    await (await reader.fetch(10, timeout=10))[-1].ack_sync()
    await marked(await stage.flows(), 9)
    assert await shown(tool, flows) == (10, 20)
    await reader.fetch(10, timeout=10)  # and acked nothing
    await marked(await stage.flows(), 19)
    assert await shown(tool, flows) == (20, 10)
    await tool.jetstream().delete_consumer(stream, GROUP)
    await marked(await stage.flows(), 19)
    assert await shown(tool, flows) == (20, 10)


async def test_what_is_not_acked_is_not_shown(stage: Scene, tool: Client) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(3))
    last = (await entries(flows))[-1].id
    assert await flows.groups.mark(S, GROUP, last) is Outcome.CONFLICT  # there is no such group
    await flows.groups.join(S, GROUP, FIRST, cursor=True)
    with pytest.raises(Exception, match="beyond the last entry"):
        await flows.groups.mark(S, GROUP, EntryId(last.ms, last.seq + 1))
    await flows.groups.close()
    with pytest.raises(NotFoundError):
        await shown(tool, flows)


async def test_subjects_that_share_a_stream_are_shown_one_by_one(stage: Scene, tool: Client, way: str) -> None:
    flows = await stage.flows(patterns=("gbe.events.>",))
    for subject, count in (("gbe.events.a", 3), ("gbe.events.b", 5)):
        await flows.streams.append(drafts(count, subject))
    other = await stage.flows(patterns=("gbe.events.>",))
    await marked(flows, 1, subject="gbe.events.a")
    await marked(other, 3, subject="gbe.events.b")
    name = f"{GROUP}-{stage.root}-s-gbe-events"
    seen = [await shown(tool, flows, f"{name}-{each}", f"gbe.events.{each}") for each in "ab"]
    assert seen == [(2, 1), (7, 1)]


async def test_a_consumer_that_another_program_made_is_left_alone(
    stage: Scene, tool: Client, caplog: pytest.LogCaptureFixture
) -> None:
    flows = await stage.flows()
    await flows.streams.append(drafts(30))
    stream = (await flows.stream_map.find(S)).stream
    await tool.jetstream().add_consumer(stream, ConsumerConfig(durable_name=GROUP, ack_policy=AckPolicy.EXPLICIT))
    with caplog.at_level(logging.WARNING):
        assert await marked(flows, 9, 19) == [Outcome.DONE, Outcome.DONE]
    assert await shown(tool, flows) == (0, 30)
    assert [record.message for record in caplog.records if "another program" in record.message] != []


async def test_a_work_queue_keeps_its_place_for_those_who_work(
    stage: Scene, tool: Client, caplog: pytest.LogCaptureFixture
) -> None:
    js, subject, stream = tool.jetstream(), f"{stage.root}.s.{S}", f"{stage.root}-work"
    await js.add_stream(name=stream, subjects=[subject], retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    flows = await stage.flows()
    await flows.streams.append(drafts(3))
    with caplog.at_level(logging.WARNING):
        assert await marked(flows, 0, 1) == [Outcome.DONE, Outcome.DONE]
    await js.add_consumer(stream, ConsumerConfig(durable_name="worker", ack_policy=AckPolicy.EXPLICIT))
    assert [info.name for info in await js.consumers_info(stream)] == ["worker"]
    assert len([record for record in caplog.records if "whose retention is workqueue" in record.message]) == 1


async def test_where_interest_keeps_messages_those_that_are_not_archived_stay(stage: Scene, tool: Client) -> None:
    js, subject, stream = tool.jetstream(), f"{stage.root}.s.{S}", f"{stage.root}-interest"
    await js.add_stream(name=stream, subjects=[subject], retention=RetentionPolicy.INTEREST)
    others = await js.pull_subscribe(subject, "others", stream=stream)
    flows = await stage.flows()
    await flows.streams.append(drafts(10))
    ids = [entry.id for entry in await entries(flows)]
    assert await marked(flows, -1) == [Outcome.CONFLICT]
    for message in await others.fetch(10, timeout=10):
        await message.ack_sync()
    again = await stage.flows()
    assert [entry.id for entry in await entries(again)] == ids
    await marked(again, 5)
    assert [entry.id for entry in await entries(flows)] == ids[6:]


async def test_a_server_that_forbids_it_is_not_asked_to_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    denied = '{publish: {deny: ["$JS.API.CONSUMER.DURABLE.CREATE.>", "$JS.API.CONSUMER.INFO.>"]}}'
    config = f"authorization: {{users: [{{user: u, password: p, permissions: {denied}}}]}}"
    with nats(config) as server, caplog.at_level(logging.WARNING):
        opened = await Opened.open(f"nats://u:p@127.0.0.1:{server.port}")
        await opened.streams.append(drafts(3))
        assert await marked(opened.flows, 0, 1) == [Outcome.DONE, Outcome.DONE]
        await opened.close()
    assert len([record for record in caplog.records if "does not let us" in record.message]) == 1


async def test_a_consumer_is_moved_about_once_a_second(stage: Scene, tool: Client) -> None:
    flows, asked, clock = await stage.flows(), [], SystemClock()
    await flows.streams.append(drafts(60))

    async def heard(message: object) -> None:
        asked.append(message)

    await tool.subscribe("$JS.API.CONSUMER.RESET.>", cb=heard)
    await tool.flush()
    began = clock.monotonic()
    await marked(flows, *range(60))
    took = clock.monotonic() - began
    assert await shown(tool, flows) == (60, 0)
    assert 1 <= len(asked) <= took + 2


@pytest.mark.full
async def test_a_marked_group_is_shown_by_an_old_server() -> None:
    """It has no ack floor before the first ack, but says where it will go on, and how much is unprocessed."""
    server = SHARED_NATS.at(nats_2_9())
    async with scene(server.port) as stage:
        tool = await connect(f"nats://127.0.0.1:{server.port}")
        flows = await stage.flows()
        await flows.streams.append(drafts(30))
        await marked(flows, 9, 19)
        info = await tool.jetstream().consumer_info((await flows.stream_map.find(S)).stream, GROUP)
        assert (info.delivered.stream_seq, info.num_pending) == (20, 10)
        await tool.close()
