"""Large entries through archives: whatever a stream accepts, or another program writes, is read back byte for byte."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
import redis

from archives.archiver_story import Pairs
from archives.test_archiver_kills import pairs
from archives.test_archiver_redis import CHANGE, KEY, drained, opened
from cli.command_line import wrasse
from wrasse.archives.codec import ENTRY_BYTES_MAX, LINE_BYTES_MAX, entry_of, line_of
from wrasse.archives.reader import read
from wrasse.archives.restart import replay
from wrasse.clock import SystemClock
from wrasse.errors import StoreBroken, TooLarge
from wrasse.ports.page import Page
from wrasse.ports.streams import BODY_BYTES_MAX, START, Draft, Entry, EntryId, Streams
from wrasse.streams.envelope import PAYLOAD_BYTES_MAX
from wrasse.streams.publisher import Publication, Publisher

pairs = pairs
AGAIN = "test.again"
UUID = "0b7e4a52-3c1d-4f6e-9a88-00000000000"


async def all_of(streams: Streams, subject: str) -> list[Entry]:
    found, after = list[Entry](), START
    while True:
        page: Page[Entry] = await streams.read(subject, after, 1_000)
        found += page
        if not page.more:
            return found
        after = found[-1].id


@pytest.mark.parametrize(
    ("transport", "store"),
    [
        ("sqlite", "directory"),
        ("redis", "s3"),
        ("nats", "directory"),
        pytest.param("sqlite", "s3", marks=pytest.mark.full),
        pytest.param("redis", "directory", marks=pytest.mark.full),
        pytest.param("nats", "s3", marks=pytest.mark.full),
    ],
)
async def test_the_largest_entries_are_archived_verified_read_and_replayed(
    pairs: Pairs, transport: str, store: str
) -> None:
    pair = await pairs.make(transport, store)
    async with opened(pair.transport, pair.objects) as scene:
        streams = scene.backend.streams
        bodies = [b"small", bytes(range(256)) * (BODY_BYTES_MAX // 256)]
        for body in bodies:
            await streams.append([Draft(CHANGE, body)])
        with pytest.raises(TooLarge, match=str(BODY_BYTES_MAX)):
            await streams.append([Draft(CHANGE, bytes(BODY_BYTES_MAX + 1))])
        (id,) = await Publisher(streams, SystemClock()).publish_many([Publication(CHANGE, bytes(PAYLOAD_BYTES_MAX))])
        with pytest.raises(TooLarge, match=f"at most {PAYLOAD_BYTES_MAX} are allowed"):
            await Publisher(streams, SystemClock()).publish_many([Publication(CHANGE, bytes(PAYLOAD_BYTES_MAX + 1))])
        assert await scene.archiver(size=100).drain() == 3
        (chain,) = await scene.verified()
        assert (chain.messages, chain.problems) == (3, ())
        found = [each.entry async for each in read(scene.objects, "archive", CHANGE)]
        assert [each.body for each in found[:2]] == bodies
        assert json.loads(found[2].body)["message_id"] == id
        assert (await replay(read(scene.objects, "archive", CHANGE), streams, AGAIN)).messages == 3
        assert [each.body for each in await all_of(streams, AGAIN)] == [each.body for each in found]


@pytest.mark.parametrize("size", [40 << 20, pytest.param(200 << 20, marks=pytest.mark.full)])
async def test_a_larger_entry_of_another_program_is_archived_and_only_its_replay_refused(
    pairs: Pairs, size: int
) -> None:
    pair = await pairs.make("redis", "directory")
    async with opened(pair.transport, pair.objects) as scene:
        with redis.Redis.from_url(pairs.redis.url) as client:
            client.xadd(f"{pairs.prefix}:{KEY}", {"file": b"\xff" * size})
        await scene.publish(1)
        assert await scene.archiver().drain() == 2
        (chain,) = await scene.verified()
        assert (chain.messages, chain.marked, chain.problems) == (2, 1, ())
        found = [each.entry async for each in read(scene.objects, "archive", CHANGE)]
        assert found[0].fields == {"file": b"\xff" * size}
        with pytest.raises(TooLarge, match=rf"an entry of {size + 4} bytes and 1 fields for 'test.again'"):
            await replay(read(scene.objects, "archive", CHANGE), scene.backend.streams, AGAIN)


async def test_an_entry_beyond_a_reply_stops_its_stream_with_an_alarm_and_goes_on_once_it_is_gone(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.backends.redis.options.REPLY_BYTES_LEAST", 1)
    pair = await pairs.make("redis", "directory")
    async with opened(f"{pair.transport}&reply_bytes_max={6 << 20}", pair.objects) as scene:
        first = await scene.publish(3)
        with redis.Redis.from_url(pairs.redis.url) as client:
            huge = client.xadd(f"{pairs.prefix}:{KEY}", {"file": b"x" * (12 << 20)})
            last = await scene.publish(2)
            with pytest.raises(StoreBroken, match=rf"the entry of '{CHANGE}' that follows \d+-\d+ is larger than"):
                await scene.archiver(size=3).drain()
            trimmed = await scene.backend.streams.trim(
                CHANGE, age=timedelta(0), below=None, protect=["archiver"], limit=100
            )
            assert trimmed.count == 3  # what is not archived stays
            client.xdel(f"{pairs.prefix}:{KEY}", huge)  # type: ignore[arg-type]
        assert await scene.archiver(size=3).drain() == len(last)
        found = [json.loads(each.entry.body) async for each in read(scene.objects, "archive", CHANGE)]
        assert [each["message_id"] for each in found] == [*first, *last]


@pytest.mark.parametrize("value", [b"\x01" * (1 << 20), b'"' * (1 << 20), b"\xff" * (1 << 20), b"x" * (1 << 20)])
def test_no_line_is_longer_than_what_is_read_of_an_entry(value: bytes) -> None:
    """The longest line is bounded in the form of its entry: base64, with a little around it."""
    entry = Entry(EntryId(1, 1), CHANGE, value, {"a": value, "b": b"\x01"})
    line = line_of(entry)
    size = 2 * len(value)
    assert len(line) <= size * (LINE_BYTES_MAX / ENTRY_BYTES_MAX) + 1_024
    assert entry_of(line[:-1], CHANGE) == entry


def test_a_query_sorts_and_deduplicates_envelopes_of_other_programs(pairs: Pairs, place: Path) -> None:
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{pairs.redis.url}?root={pairs.prefix}&streams_prefix={pairs.prefix}:',"
        " objects: 'file:wrasse-data'}\n"
        "archiver: {streams: [{stream: gbe.events.audit.*, layout: hive}]}\n"
    )
    envelopes = [
        {"message_id": f"{UUID}{n}", "subject": CHANGE, "timestamp": at, "payload": {"n": n}}
        for n, at in [(2, "2026-11-17T10:00:02Z"), (1, "2026-11-17T10:00:01Z"), (2, "2026-11-17T10:00:02Z")]
    ]
    with redis.Redis.from_url(pairs.redis.url) as client:
        for each in envelopes:
            client.xadd(f"{pairs.prefix}:{KEY}", {"envelope": json.dumps(each)})
    assert asyncio.run(drained()) == ""
    files = f"{place}/wrasse-data/archive/audit/dt=*/{CHANGE}-after-*.jsonl.gz"
    rows = f"read_json('{files}', format = 'newline_delimited')"
    columns = "DISTINCT ON (message_id) message_id, CAST(timestamp AS VARCHAR), payload.n"
    found = duckdb.sql(f"SELECT {columns} FROM {rows} ORDER BY timestamp, message_id").fetchall()
    assert [(str(id)[-1], n) for id, _, n in found] == [("1", 1), ("2", 2)]
    assert wrasse("archives", "verify").code == 0
    read_back = [json.loads(line) for line in wrasse("archives", "read", CHANGE, "--json").out.splitlines()]
    assert [each["message_id"] for each in read_back] == [each["message_id"] for each in envelopes]
