"""Orphans with references and sightings in a real PostgreSQL and archives in a real S3: as a user types it, and with
SIGKILL at every call of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import psycopg
import pytest

from cli.command_line import wrasse
from orphans.test_kills import DUE, KEPT, TESTS, WHOLE, check_left
from processes.daemons import Daemon, running, until
from servers.seaweed import S3
from wrasse.engine.turn import sweep_lease

CONFIG = """
orphans:
  archives:
    preset: workspaces
    store: s3://orphans-typed/{name}?endpoint={endpoint}&access_key={key}&secret_key={secret}
    database: {url}
    sightings: {url}
    lock: {name}
    superseded: 0s
    soft_deleted: 0s
    owner_unknown: 0s
    age_min: 0s
    writer_timeout: 0s
    writer_retries: 0
"""


def bucket(s3: S3, name: str) -> Any:
    """A bucket, made if it is not there."""
    client = boto3.client(
        "s3", endpoint_url=s3.endpoint, aws_access_key_id=s3.key, aws_secret_access_key=s3.secret,
        region_name="us-east-1",
    )  # fmt: skip
    if name not in [each["Name"] for each in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=name)
    return client


class Place:
    """A workspace with its archive and an older one, and a client that lists the bucket."""

    def __init__(self, client: Any, name: str, db: psycopg.Connection[Any]) -> None:
        self._client = client
        self.name = name
        self.db = db

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket="orphans-typed", Key=f"{self.name}/{key}", Body=data)

    def archives(self) -> dict[str, bytes]:
        listed = self._client.list_objects_v2(Bucket="orphans-typed", Prefix=f"{self.name}/archives/")
        keys = [each["Key"] for each in listed.get("Contents", [])]
        return {
            key.removeprefix(f"{self.name}/"): self._client.get_object(Bucket="orphans-typed", Key=key)["Body"].read()
            for key in keys
        }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3, postgres_url: str) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    name = f"t{uuid4().hex}"
    url = f"{postgres_url}?options=-csearch_path%3D{name}"
    config = CONFIG.format(name=name, endpoint=s3.endpoint, key=s3.key, secret=s3.secret, url=url)
    (tmp_path / "wrasse.yaml").write_text(config)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}")  # type: ignore[arg-type]
        db.execute(f"SET search_path = {name}")  # type: ignore[arg-type]
        db.execute("CREATE TABLE workspaces (id text, archive_key text, op_id text, deleted_at timestamptz)")
        db.execute("INSERT INTO workspaces VALUES ('ws1', 'archives/ws1/new/home.tar.gz', 'new', NULL)")
        place = Place(bucket(s3, "orphans-typed"), name, db)
        for op in ("new", "old"):
            place.put(f"archives/ws1/{op}/home.tar.gz", op.encode())
            place.put(f"archives/ws1/{op}/home.tar.gz.meta", b"sha256")
        yield place
        db.execute(f"DROP SCHEMA {name} CASCADE")  # type: ignore[arg-type]


def planned() -> dict[str, Any]:
    """A plan of what is due: after two complete scans, or more while the store calls an archive young."""
    for _ in range(20):
        answer = wrasse("orphans", "plan", "--out", "plan.jsonl")
        assert answer.code == 0, answer.err
        header, *lines = [json.loads(text) for text in Path("plan.jsonl").read_text().splitlines()]
        if lines:
            return {"header": header, "lines": lines}
    raise AssertionError("nothing ever became due")


def test_a_plan_is_read_carried_out_and_undone_on_real_servers(place: Place) -> None:
    before = place.archives()
    plan = planned()
    assert [(line["verb"], line["unit"]) for line in plan["lines"]] == [("quarantine", "archives/ws1/old/")]
    done = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (done.code, done.json["done"]) == (0, 1), done.err
    assert set(place.archives()) == {"archives/ws1/new/home.tar.gz", "archives/ws1/new/home.tar.gz.meta"}
    undone = wrasse("orphans", "undo", done.json["run"])
    assert undone.code == 0, undone.err
    assert place.archives() == before


def test_an_armed_root_acts_and_a_reference_brings_back(place: Place) -> None:
    before = place.archives()
    planned()
    assert wrasse("orphans", "arm", "archives").code == 0
    swept = wrasse("sweep", "orphan-objects", "--json")
    assert swept.code == 0, swept.err
    assert "archives/ws1/old/home.tar.gz" not in place.archives()
    place.db.execute("INSERT INTO workspaces VALUES ('ws2', 'archives/ws1/old/home.tar.gz', NULL, NULL)")
    assert wrasse("sweep", "orphan-objects", "--json").code == 0
    assert place.archives() == before


def test_the_doctor_speaks_of_references(place: Place) -> None:
    assert "archive_key of postgresql://" in wrasse("doctor").out


ENGINES = "engine: {lease: 5s}\nsweeps: {orphan_objects: {interval: 1s}}\n"
SWEEP = "orphan_objects@archives"


def host(tmp_path: Path, name: str) -> Path:
    """The directory of one host: its own jobs and records, and the root and the sightings that it shares. Without the
    advisory lock, which keeps others out as well."""
    own = tmp_path / name
    own.mkdir()
    shared = re.sub("    lock: .*\n", "", (tmp_path / "wrasse.yaml").read_text())
    (own / "wrasse.yaml").write_text(shared + ENGINES)
    return own


def sweep_of(engine: Daemon) -> dict[str, Any]:
    """What an engine shows of the root's sweep."""
    shown = json.loads(engine.get("/status.json")[1])["sweeps"]
    found: dict[str, Any] = next(each for each in shown if each["name"] == SWEEP)
    return found


def reading(place: Place) -> set[int]:
    """The connections that wait for the locked table of references: those of runs."""
    rows = place.db.execute("SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'workspaces'::regclass")
    return {pid for (pid,) in rows}


def test_of_two_hosts_one_sweeps_a_root_and_the_other_follows_it(
    place: Place, tmp_path: Path, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as gate:
        gate.execute(f"LOCK TABLE {place.name}.workspaces")  # type: ignore[arg-type]  # a run goes no further than this
        with running(host(tmp_path, "one"), "--role=sweeper") as one:
            first = until(lambda: reading(place) or None, "a run on the first host")
            with running(host(tmp_path, "two"), "--role=sweeper") as two:
                owner = until(lambda: sweep_of(two)["elsewhere"] or None, "the second host sees the first at work")
                turn = until(lambda: sweep_of(two)["next_at"], "the second host waits for its turn")
                until(lambda: sweep_of(two)["next_at"] != turn, "the second host had its turn")
                assert (sweep_of(one)["running"], reading(place)) == (True, first)
                (lease,) = place.db.execute("SELECT value FROM wrasse_records WHERE key = %s", [sweep_lease(SWEEP)])
                assert owner.encode() in lease[0], "the lease is beside the sightings"
                one.signal(signal.SIGKILL)
                until(lambda: reading(place) - first or None, "a run on the second host")
                gate.rollback()
                last = until(lambda: sweep_of(two)["last"], "the report of that run")
                assert last["failed"] == 0, two.err


def stories(place: Path, s3: S3, url: str, first: int, step: int, again: str) -> list[Any]:
    """What became of every world."""
    bucket(s3, "orphans-kills")
    path = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    actor = [sys.executable, str(TESTS / "orphans" / "postgres_actor.py"), str(place), url]
    actor += [s3.endpoint, s3.key, s3.secret, str(first), str(step), again]
    done = subprocess.run(actor, env=environ, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("calls", [(8, 22), pytest.param((1, 1), marks=pytest.mark.full)], ids=str)
def test_whatever_call_a_collector_dies_at_the_next_ones_finish_on_real_servers(
    tmp_path: Path, s3: S3, postgres_url: str, calls: tuple[int, int]
) -> None:
    found = stories(tmp_path, s3, postgres_url, *calls, "no")
    assert [each["ended"] for each in found] == [-signal.SIGKILL] * (len(found) - 1) + [0]
    assert len(found) > 1
    for each in found:
        check_left(each)
        assert each["end"] == KEPT, each["at"]
        assert all(outcome is not None for _, _, outcome in each["lines"]), each["at"]
        assert {suspect for _, suspect, _ in each["lines"]} == DUE, each["at"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_whatever_call_a_collector_dies_at_a_reference_brings_everything_back_on_real_servers(
    tmp_path: Path, s3: S3, postgres_url: str
) -> None:
    for each in stories(tmp_path, s3, postgres_url, 1, 1, "again"):
        check_left(each)
        assert each["end"] == WHOLE, each["at"]
