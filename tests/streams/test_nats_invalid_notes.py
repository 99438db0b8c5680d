"""What another program wrote over a mark or a note on NATS costs the one group or stream that it is of."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from nats import connect

from archives.test_archiver_redis import drained
from cli.command_line import wrasse
from processes.daemons import until
from servers.nats import Nats, nats

STREAMS = ("gbe.events.audit.one", "gbe.events.audit.two")


async def write(url: str, subject: str, body: bytes) -> None:
    client = await connect(url)
    try:
        await client.jetstream().publish(subject, body)
    finally:
        await client.close()


def configure(place: Path, server: Nats) -> None:
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{server.url}', objects: 'file:wrasse-data'}}\n"
        f"archiver: {{streams: [{', '.join(f'{{stream: {each}, batch_size: 2}}' for each in STREAMS)}]}}\n"
        "retention: {gbe.events.audit.*: {age: 1s, exact: true}}\n"
    )


def lengths() -> dict[str, int]:
    answer = wrasse("streams", "info", "gbe.events.audit.*", "--json")
    assert answer.code == 0, answer.err
    return {each["subject"]: each["length"] for each in answer.json["streams"]}


@pytest.mark.parametrize("found", [b"\xff\xfe", b"", b"[1e400,1,1]", b"[1,[],{}]"])
def test_an_unreadable_mark_costs_its_stream_and_is_shown(place: Path, found: bytes) -> None:
    with nats() as server:
        configure(place, server)
        for subject in STREAMS:
            for n in range(4):
                assert wrasse("streams", "publish", subject, str(n)).code == 0
        assert asyncio.run(drained()) == ""
        asyncio.run(write(server.url, "wrasse._books.mark.gbe-events-audit-one.archiver", found))
        asyncio.run(write(server.url, "wrasse._books.mark.gbe-events-audit-one.=ZZ", found))

        shown = wrasse("streams", "info").out
        assert "invalid" in shown
        assert "nats stream purge wrasse_books" in shown
        verified = wrasse("archives", "verify", "--json")
        assert {each["subject"]: each["whole"] for each in verified.json["streams"]} == dict(
            zip(STREAMS, (False, True), strict=True)
        )

        def trimmed() -> bool:
            swept = wrasse("sweep", "--json")
            assert swept.code == 0, swept.err
            return lengths()[STREAMS[1]] == 0

        until(trimmed, "the other stream trimmed")
        assert lengths()[STREAMS[0]] == 4


@pytest.mark.parametrize("found", [b"\xff\xfe", b"{}", b'{"last":["a",1,1,1],"pen":""}'])
def test_an_unreadable_note_costs_who_writes_to_its_stream(place: Path, found: bytes) -> None:
    with nats() as server:
        configure(place, server)
        for subject in STREAMS:
            assert wrasse("streams", "publish", subject, "x").code == 0
        assert asyncio.run(drained()) == ""
        until(lambda: wrasse("sweep").code == 0 and not any(lengths().values()), "both streams trimmed")
        asyncio.run(write(server.url, "wrasse._books.lane.gbe-events-audit-one", found))
        assert lengths() == dict.fromkeys(STREAMS, 0)
        assert wrasse("sweep").code == 0
        refused = wrasse("streams", "publish", STREAMS[0], "y")
        assert refused.code == 1
        assert "--subject=wrasse._books.lane.gbe-events-audit-one" in refused.err
        assert wrasse("streams", "publish", STREAMS[1], "y").code == 0
        assert json.loads(wrasse("archives", "verify", "--json").out)["streams"]
