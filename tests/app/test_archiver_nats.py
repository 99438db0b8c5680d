"""The archiver on NATS: a server that lost its disk is another one, however much it holds by now; what a server deletes
by a limit of its own is counted.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest
from nats import connect

from app.test_archiver_redis import CHANGE, drained, read_numbers, wrasse_publish
from app.typed import wrasse
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
