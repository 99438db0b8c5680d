"""Data that earlier settings left in the working directory, or at an earlier Redis key, is never forgotten silently."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.command_line import wrasse
from processes.daemons import running
from servers.valkey import Valkey, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


def warned(check: str) -> list[str]:
    checks = wrasse("doctor", "--json").json["checks"]
    return [f"{each['what']}; {each['do']}" for each in checks if (each["check"], each["state"]) == (check, "warn")]


def test_a_database_that_is_no_longer_used_is_named_by_run_and_doctor(place: Path, server: Valkey) -> None:
    assert wrasse("jobs", "enqueue", "x").code == 0
    assert wrasse("streams", "publish", "orders.paid", "42").code == 0
    assert warned("place") == []
    (place / "wrasse.yaml").write_text(f"redis: {{addr: '127.0.0.1:{server.port}'}}")
    before = {each: os.stat(each).st_mtime_ns for each in os.listdir(place)}
    (told,) = warned("place")
    assert told.startswith("wrasse.db in the working directory has 1 jobs, 1 streams, and these settings do not")
    assert "write backends.jobs: sqlite:wrasse.db, backends.streams: sqlite:wrasse.db" in told
    assert "move-the-database.md" in told
    assert {each: os.stat(each).st_mtime_ns for each in os.listdir(place)} == before
    with running(place, "--role=sweeper") as daemon:
        daemon.said("started")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
        assert sum("wrasse.db in the working directory has" in line["msg"] for line in daemon.lines) == 1


@pytest.mark.parametrize("use", ["records: 'sqlite:wrasse.db'", "streams: 'sqlite:./wrasse.db'"])
def test_a_database_that_one_port_still_uses_is_not_left_behind(place: Path, server: Valkey, use: str) -> None:
    assert wrasse("jobs", "enqueue", "x").code == 0
    (place / "wrasse.yaml").write_text(f"redis: {{addr: '127.0.0.1:{server.port}'}}\nbackends: {{{use}}}")
    assert warned("place") == []


def test_an_empty_or_foreign_database_is_no_matter(place: Path, server: Valkey) -> None:
    assert wrasse("sweep").code == 0
    (place / "wrasse.yaml").write_text(f"redis: {{addr: '127.0.0.1:{server.port}'}}")
    assert warned("place") == []
    (place / "wrasse.db").write_text("a letter")
    assert warned("place") == []


def test_objects_that_are_no_longer_used_are_named(place: Path, server: Valkey) -> None:
    (place / "wrasse-data").mkdir()
    (place / "wrasse-data" / "a").write_text("a")
    (place / "wrasse.yaml").write_text(f"redis: {{addr: '127.0.0.1:{server.port}'}}")
    (told,) = warned("place")
    assert told.startswith("wrasse-data in the working directory has objects")


def test_jobs_at_the_earlier_key_of_a_literal_queue_are_named(place: Path, server: Valkey) -> None:
    (place / "wrasse.yaml").write_text(
        f"redis: {{addr: '127.0.0.1:{server.port}'}}\nworker: {{queues: {{high: 'queue:high', low: 'queue:low'}}}}"
    )
    assert not any("no worker reads" in each for each in warned("jobs"))
    with redis.Redis(port=server.port) as client:
        client.lpush("jobqueue:queue:queue:low", "{}", "{}")
    (told,) = [each for each in warned("jobs") if "no worker reads" in each]
    assert told.startswith("2 jobs wait in jobqueue:queue:queue:low")
    assert "RENAME jobqueue:queue:queue:low queue:low" in told
