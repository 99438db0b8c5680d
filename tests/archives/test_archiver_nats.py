"""The archiver on NATS: a server that lost its disk is another one, however much it holds by now; what a server deletes
by a limit of its own is counted.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from nats import connect

from archives.test_archiver_redis import CHANGE, drained, read_numbers, wrasse_publish
from cli.command_line import wrasse
from servers.nats import nats


@pytest.mark.parametrize("engine", ["{}", "{backend: 'sqlite:engine.db'}"], ids=["cursors there", "cursors elsewhere"])
def test_a_server_that_lost_its_disk_is_noticed_and_gone_on_from(place: Path, engine: str) -> None:
    """Its sequences begin anew: read on after the cursor, what it holds before that would be passed over."""
    with nats() as server:
        (place / "wrasse.yaml").write_text(
            f"backends: {{streams: '{server.url}', objects: 'file:wrasse-data'}}\nengine: {engine}\n"
            "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 10}]}\n"
        )
        wrasse_publish(range(6))
        assert asyncio.run(drained()) == ""
        server.kill()
        shutil.rmtree(server.place / "js")
        server.start()
        wrasse_publish(range(100, 120))
        assert "was set back" in asyncio.run(drained())
        assert wrasse("archives", "restart", CHANGE, "--yes").code == 0
        assert asyncio.run(drained()) == ""
        assert read_numbers() == Counter([*range(6), *range(100, 120)])
        assert wrasse("archives", "verify").code == 0


def test_what_a_limit_of_the_server_took_unarchived_is_counted_and_told(place: Path) -> None:
    """A stream that somebody made by hand, of which the server deletes what is old whether it was archived or not."""
    with nats() as server:
        asyncio.run(made_by_hand(server.url))
        (place / "wrasse.yaml").write_text(
            f"backends: {{streams: '{server.url}', objects: 'file:wrasse-data'}}\n"
            "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 10}]}\n"
        )
        wrasse_publish(range(3))
        assert asyncio.run(drained()) == ""
        wrasse_publish(range(3, 5))
        wrasse_publish(range(5, 8))
        assert asyncio.run(drained()) == ""
        assert read_numbers() == Counter([0, 1, 2, 5, 6, 7])
        verified = wrasse("archives", "verify")
        assert "2 entries before it were trimmed" in verified.out + verified.err
        told = wrasse("streams", "read", "gbe.events.system.error", "--json").out
        assert "2 entries of 'gbe.events.audit.change' were trimmed before they could be archived" in told


def test_a_work_queue_is_not_archived_and_the_reason_is_said(place: Path) -> None:
    with nats() as server:
        asyncio.run(work_queue(server.url, acked=0))
        configure(place, server.url, "")
        told = asyncio.run(drained())
        assert "is a work queue: the server removes a message when a worker acks it" in told
        assert read_numbers() == Counter()


@pytest.mark.parametrize("direct", [True, False])
def test_a_work_queue_is_archived_as_far_as_its_workers_leave_it_and_labelled(place: Path, direct: bool) -> None:
    with nats() as server:
        asyncio.run(work_queue(server.url, acked=2, allow_direct=direct))
        configure(place, server.url, ", archive_best_effort: true")
        wrasse_publish(range(5))
        assert asyncio.run(drained()) == ""
        asyncio.run(worked(server.url, 6))
        wrasse_publish(range(5, 7))
        assert asyncio.run(drained()) == ""
        rows = json.loads(wrasse("archives", "list", "--json").out)
        verified = json.loads(wrasse("archives", "verify", "--json").out)
        assert [row["incomplete"] for row in rows["archives"]] == [True, True]
        assert [(each["incomplete"], each["whole"], each["messages"]) for each in verified["streams"]] == [
            (True, True, 10)
        ]
        assert "incomplete: a work queue" in wrasse("archives", "verify").out


def test_headers_of_other_programs_are_archived_and_shown(place: Path) -> None:
    with nats() as server:
        wrasse_config = f"backends: {{streams: '{server.url}', objects: 'file:wrasse-data'}}\n"
        (place / "wrasse.yaml").write_text(wrasse_config + f"archiver: {{streams: [{{stream: {CHANGE}}}]}}\n")
        asyncio.run(published(server.url))
        assert asyncio.run(drained()) == ""
        (line,) = wrasse("archives", "read", CHANGE, "--json").out.splitlines()
        assert json.loads(line)["fields"] == {"Trace-Id": "t1", "Region": "eu"}
        lines = [wrasse(kind, "read", CHANGE).out for kind in ("streams", "archives")]
        assert ["[Trace-Id=t1 Region=eu]" in each for each in lines] == [True, True]


def configure(place: Path, url: str, more: str) -> None:
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{url}', objects: 'file:wrasse-data'}}\n"
        f"archiver: {{streams: [{{stream: {CHANGE}, batch_size: 10{more}}}]}}\n"
    )


async def work_queue(url: str, *, acked: int, **config: object) -> None:
    """A work queue with three messages more than are worked already."""
    client = await connect(url)
    js = client.jetstream()
    await js.add_stream(name="QUEUE", subjects=[CHANGE], retention="workqueue", **config)
    for number in range(acked + 3):
        await js.publish(CHANGE, b"by hand %d" % number)
    await client.close()
    await worked(url, acked)


async def worked(url: str, count: int) -> None:
    client = await connect(url)
    reader = await client.jetstream().pull_subscribe(CHANGE, durable="workers")
    for message in await reader.fetch(count) if count else ():
        await message.ack_sync()
    await client.close()


async def published(url: str) -> None:
    client = await connect(url)
    js = client.jetstream()
    await js.add_stream(name="THEIRS", subjects=[CHANGE])
    await js.publish(CHANGE, b'{"plain": true}', headers={"Trace-Id": "t1", "Region": "eu"})
    await client.close()


async def made_by_hand(url: str) -> None:
    client = await connect(url)
    await client.jetstream().add_stream(name="BYHAND", subjects=["gbe.events.audit.>"], max_msgs_per_subject=3)
    await client.close()


@pytest.mark.parametrize("pattern", [CHANGE, "gbe.events.audit.*"])
def test_the_tools_of_nats_show_how_far_the_archiver_is(place: Path, pattern: str) -> None:
    with nats() as server:
        (place / "wrasse.yaml").write_text(
            f"backends: {{streams: '{server.url}', objects: 'file:wrasse-data'}}\n"
            f"archiver: {{streams: [{{stream: '{pattern}', batch_size: 10}}]}}\n"
        )
        wrasse_publish(range(25))
        assert asyncio.run(drained()) == ""
        wrasse_publish(range(25, 29))
        assert asyncio.run(shown(server.url)) == (25, 4)


async def shown(url: str) -> tuple[int, int]:
    """What `nats consumer info` says: the ack floor, and what is unprocessed."""
    client = await connect(url)
    js = client.jetstream()
    stream = await js.find_stream_name_by_subject(CHANGE)
    (info,) = [each for each in await js.consumers_info(stream) if each.config.durable_name]
    await client.close()
    assert info.name in ("archiver", "archiver-gbe-events-audit-change")
    return info.ack_floor.stream_seq, info.num_pending
