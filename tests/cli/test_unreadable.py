"""What cannot be read is shown when it is asked for by name: its bytes, what is wrong with it, and what to do."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from nats import connect

from cli.command_line import Answer, wrasse
from servers.nats import Nats, nats
from servers.valkey import Valkey, valkey

GARBAGE = [b"\xff\xfe", b"", b"[1e400]", b"{}"]
LEASE, TASK = "default/meta.r.k", "gbe=3Astate=3Atasks.r.mail=3At1"


@pytest.fixture
def server() -> Iterator[Nats]:
    with nats() as own:
        yield own


@pytest.fixture(scope="module")
def redis_alone() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


def configured(place: Path, streams: str) -> None:
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{streams}', records: '{streams}', jobs: 'sqlite:jobs.db', objects: 'file:d'}}\n"
        "task_types: {mail: {}, other: {}}\n"
    )
    assert wrasse("jobs", "enqueue", "--queue=mail", "--id=t1", "x").code == 0
    assert wrasse("leases", "acquire", "k").code == 0


def shown_invalid(name: str, found: bytes) -> None:
    for args in (("jobs", "show", name), ("explain", name)):
        answer = wrasse(*args, "--json")
        assert answer.code == 0, answer.err
        job = answer.json if args[0] == "jobs" else answer.json["job"]
        assert (job["id"], job["queue"], job["reason"]) == (name, "mail", "invalid_payload")
        assert wrasse(*args).code == 0
    assert wrasse("jobs", "show", name, "--payload").raw == found
    assert any("repair or delete it" in line for line in answer.json["next"])


def shown_lease_invalid() -> None:
    for args in (("leases", "show", "k"), ("explain", "k")):
        answer: Answer = wrasse(*args, "--json")
        assert answer.code == 0, answer.err
        lease = answer.json if args[0] == "leases" else answer.json["lease"]
        assert lease["invalid"]
        assert "wrasse leases fsck" in lease["do"]
        assert "wrasse leases fsck" in wrasse(*args).out


@pytest.mark.parametrize("found", GARBAGE)
def test_a_damaged_task_and_lease_on_nats_are_shown_by_name(place: Path, server: Nats, found: bytes) -> None:
    configured(place, server.url)

    async def overwrite() -> None:
        client = await connect(server.url)
        for key in (LEASE, TASK):
            await client.jetstream().publish(f"$KV.wrasse.{key}", found)
        await client.close()

    asyncio.run(overwrite())
    shown_invalid("t1", found)
    shown_lease_invalid()


@pytest.mark.parametrize("found", GARBAGE)
def test_a_damaged_task_and_lease_on_redis_are_shown_by_name(place: Path, redis_alone: Valkey, found: bytes) -> None:
    with redis.Redis(port=redis_alone.port) as client:
        client.flushall()
        configured(place, redis_alone.url)
        client.hset("jobqueue:records:default/meta", "k", found)
        client.hset("gbe:state:tasks:mail:t1", "state", found)
    for args in (("jobs", "show", "t1"), ("explain", "t1")):
        answer = wrasse(*args, "--json")
        assert answer.code == 0, answer.err
        job = answer.json if args[0] == "jobs" else answer.json["job"]
        assert (job["queue"], job["reason"]) == ("mail", "invalid_payload")
    shown_lease_invalid()


@pytest.mark.parametrize("found", GARBAGE)
def test_a_damaged_task_and_lease_on_sqlite_are_shown_by_name(place: Path, found: bytes) -> None:
    configured(place, "sqlite:s.db")
    with sqlite3.connect("s.db") as db:
        assert db.execute("UPDATE records SET value = ?", (found,)).rowcount >= 2
    db.close()
    shown_invalid("t1", found)
    shown_lease_invalid()


@pytest.mark.parametrize("found", GARBAGE)
def test_a_damaged_lease_in_files_is_shown_by_name(place: Path, found: bytes) -> None:
    (place / "wrasse.yaml").write_text("backends: {jobs: 'file:q'}\n")
    assert wrasse("leases", "acquire", "k").code == 0
    (path,) = [each for each in place.rglob("k.json") if "meta" in str(each)]
    path.write_bytes(found)
    shown_lease_invalid()


def test_a_task_that_can_be_read_is_found_past_one_of_its_id_that_cannot(place: Path) -> None:
    configured(place, "sqlite:s.db")
    with sqlite3.connect("s.db") as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(records)") if row[1] != "seq"]
        (row,) = db.execute(f"SELECT {', '.join(columns)} FROM records WHERE name = ?", (b"mail:t1",)).fetchall()
        other = dict(zip(columns, row, strict=True)) | {"name": b"other:t1"}
        marks = ", ".join("?" * len(other))
        db.execute(f"INSERT INTO records ({', '.join(other)}) VALUES ({marks})", tuple(other.values()))
        db.execute("UPDATE records SET value = x'ff' WHERE name = ?", (b"mail:t1",))
    db.close()
    assert wrasse("jobs", "show", "t1", "--json").json["queue"] == "other"
