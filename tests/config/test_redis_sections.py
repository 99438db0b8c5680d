"""A file with `redis.addr` and the seed's sections acts on that Redis: archives, trims, and rescues stuck tasks."""

from __future__ import annotations

import base64
import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.command_line import wrasse
from processes.daemons import running, until
from servers.valkey import Valkey, valkey

STREAM = "gbe:events:audit:logins"


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.fixture
def client(server: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as own:
        own.flushall()
        yield own


def settings(place: Path, server: Valkey, *sections: str) -> None:
    text = "\n".join((f"redis: {{addr: 'localhost:{server.port}'}}", *sections))
    (place / "wrasse.yaml").write_text(text)


def stuck(client: redis.Redis, kind: str, id: str, **more: object) -> str:
    """A task that another program claimed and left an hour ago."""
    key, ago = f"gbe:state:tasks:{kind}:{id}", int(time.time() * 1_000) - 3_600_000
    fields = {"state": "running", "task_id": id, "task_type": kind, "worker": "rust-1", "updated_at": ago, **more}
    client.hset(key, mapping={name: str(value) for name, value in fields.items()})
    return key


def test_the_streams_of_that_redis_are_archived_and_nothing_lies_in_a_local_database(
    place: Path, server: Valkey, client: redis.Redis
) -> None:
    for number in range(3):
        client.xadd(STREAM, {"n": number})
    settings(
        place, server, "backends: {objects: 'file:kept'}",
        "archiver: {streams: [{stream: 'gbe.events.audit.*', batch_size: 3, batch_timeout: 1s}]}",
        "retention: {'gbe.events.audit.*': 7d}",
    )  # fmt: skip
    with running(place, "--role=archiver,sweeper"):
        archive = until(lambda: next((place / "kept").rglob("*-after-*.jsonl.gz"), None), "an archive")
    assert len(gzip.decompress(archive.read_bytes()).splitlines()) == 3
    assert "wrasse.db" not in os.listdir(place)


def test_the_streams_of_that_redis_are_trimmed_by_age_once_they_are_archived(
    place: Path, server: Valkey, client: redis.Redis
) -> None:
    old = int(time.time() * 1_000) - 8 * 86_400_000
    for number in range(3):
        client.xadd(STREAM, {"n": number}, id=f"{old + number}-0")
    fresh = client.xadd(STREAM, {"n": 3})
    settings(
        place, server, "backends: {objects: 'file:kept'}",
        "archiver: {streams: [{stream: 'gbe.events.audit.*', batch_size: 4, batch_timeout: 1s}]}",
        "retention: {'gbe.events.audit.*': 7d}",
    )  # fmt: skip
    assert wrasse("sweep", "aged-entries").code == 0
    assert client.xlen(STREAM) == 4, "nothing goes before it is archived"
    with running(place, "--role=archiver"):
        until(lambda: next((place / "kept").rglob("*-after-*.jsonl.gz"), None), "an archive")
        until(lambda: wrasse("sweep", "aged-entries").code == 0 and client.xlen(STREAM) == 1, "old entries trimmed")
    assert [id for id, _ in client.xrange(STREAM)] == [fresh]


@pytest.mark.parametrize(
    "sections",
    [("sweeper: {interval: 200ms}",), ("sweeper: {interval: 200ms}", "task_types: {listed: {max_retries: 1}}")],
    ids=["no types", "another type"],
)
def test_a_stuck_task_of_any_type_is_requeued(
    place: Path, server: Valkey, client: redis.Redis, sections: tuple[str, ...]
) -> None:
    settings(place, server, *sections)
    key = stuck(client, "compute", "t1")
    with running(place, "--role=sweeper"):
        until(lambda: client.hget(key, "state") == "pending", "the task requeued")
    assert client.hget(key, "retry_count") == "1"
    ((_, entry),) = client.xrange("gbe:tasks:compute:queue")
    assert json.loads(base64.b64decode(json.loads(entry["envelope"])["payload"]))["task_id"] == "t1"
    lines = wrasse("journal", "--json").out
    assert ("requeue" in lines, '"lost"' in lines) == (True, False)


def test_a_stuck_task_of_an_unlisted_type_is_buried_when_its_three_retries_are_spent(
    place: Path, server: Valkey, client: redis.Redis
) -> None:
    settings(place, server, "sweeper: {interval: 200ms}")
    key = stuck(client, "compute", "t1", retry_count=3)
    with running(place, "--role=sweeper"):
        until(lambda: client.hget(key, "state") == "failed", "the task dead")


def test_a_task_that_another_program_changed_lately_is_left_alone(
    place: Path, server: Valkey, client: redis.Redis
) -> None:
    settings(place, server, "sweeper: {interval: 200ms, stuck_threshold: 2h}")
    key = stuck(client, "compute", "t1")
    assert wrasse("sweep", "stuck-jobs").code == 0
    assert client.hget(key, "state") == "running"
