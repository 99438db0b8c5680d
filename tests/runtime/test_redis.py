"""wrasse on Redis as a user runs it: by the design document's file, across restarts, without a secret told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import redis

from backends.redis.peer import GARBAGE
from cli.command_line import wrasse
from processes.daemons import running, until
from servers.process import free_ports
from servers.valkey import Valkey, valkey
from wrasse import connect
from wrasse.ports.jobs import JobState

SECRET = "PLANTED-9c1e"
HANDLERS = """
async def work(job):
    return job.payload.decode()
"""
PEER = {"id": "peer-1", "filepath": "/data/a.pdf", "filesize": 7, "priority": "high", "retries": 0,
        "creation_time": "2026-01-02T03:04:05.123456789Z", "trace_id": "", "span_id": ""}  # fmt: skip


@pytest.fixture
def server() -> Valkey:
    with valkey("--requirepass", SECRET, durable=True) as own:
        yield own


@pytest.fixture
def shop(place: Path, server: Valkey) -> Path:
    (place / "shop.py").write_text(HANDLERS)
    (place / "wrasse.yaml").write_text(
        f"redis:\n  addr: 127.0.0.1:{server.port}\n  password: {SECRET}\n"
        "worker:\n  heartbeat_ttl: 5s\n  backoff: {base: 10ms, max: 10ms}\n"
    )
    return place


def in_place(id: str, place: str) -> dict[str, object] | None:
    found: dict[str, object] = wrasse("jobs", "show", id, "--json").json
    return found if found["state"] == place else None


def test_a_worker_runs_jobs_of_its_own_and_of_other_programs(shop: Path, server: Valkey) -> None:
    assert wrasse("jobs", "enqueue", "--id=ours", "hello").code == 0
    with redis.Redis(port=server.port, password=SECRET) as client:
        client.lpush("jobqueue:high_priority", json.dumps(PEER))
        with running(shop, "--role=worker", "--handler=shop:work") as daemon:
            until(lambda: in_place("ours", "done"), "our job done")
            until(lambda: client.llen("jobqueue:completed") == 2, "both jobs in the list of done ones")
            daemon.signal(signal.SIGTERM)
            assert daemon.end() == 0
            assert SECRET not in daemon.err
        done = [json.loads(each)["id"] for each in client.lrange("jobqueue:completed", 0, -1)]
    assert sorted(done) == ["ours", "peer-1"]


def test_entries_that_are_no_jobs_cost_only_themselves(shop: Path, server: Valkey) -> None:
    """Every status answers beside them; a worker does the good jobs, dead-letters the others and counts them."""
    good = [json.dumps(PEER | {"id": f"good-{n}"}).encode() for n in range(len(GARBAGE))]
    with redis.Redis(port=server.port, password=SECRET) as client:
        for (raw, _), job in zip(GARBAGE, good, strict=True):
            client.lpush("jobqueue:high_priority", raw, job)
        client.lpush("jobqueue:worker:gone:processing", *[raw for raw, _ in GARBAGE])
        listed = wrasse("jobs", "list", "--state=ready", "--limit=1000", "--json").json["jobs"]
        assert [each["reason"] for each in listed].count("invalid_payload") >= len(GARBAGE) - 1
        assert wrasse("jobs", "list").code == wrasse("jobs", "stats").code == wrasse("doctor").code == 0
        damage = {each["kind"]: each["count"] for each in wrasse("jobs", "fsck", "--json").json["inconsistencies"]}
        assert damage["invalid_entry"] == len(GARBAGE)
        with running(shop, "--role=worker", "--handler=shop:work") as daemon:
            until(lambda: client.llen("jobqueue:completed") == len(good), "the good jobs done")
            until(lambda: client.llen("jobqueue:dead_letter") == 2 * len(GARBAGE), "all that is no job dead-lettered")
            until(lambda: client.llen("jobqueue:worker:gone:processing") == 0, "the dead worker's list empty")
            for path in ("/metrics", "/readyz", "/healthz", "/", "/status.json"):
                assert daemon.get(path)[0] == 200, path
            metrics = daemon.get("/metrics")[1]
            assert daemon.process.poll() is None
        for name in ("jobs_dead_letter_total", "jobs_failed_total"):
            numbers = [float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name + "{")]
            assert sum(numbers) >= len(GARBAGE), metrics
        assert any("jobs_failed_total{" in line and 'reason="invalid_payload"' in line for line in metrics.splitlines())
        dead = wrasse("jobs", "list", "--state=dead", "--limit=1000", "--json").json["jobs"]
    assert {each["reason"] for each in dead} == {"invalid_payload"}
    assert all(each["error"] for each in dead)
    assert wrasse("jobs", "show", dead[0]["id"]).code == wrasse("jobs", "fsck").code == wrasse("doctor").code == 0


def test_a_daemon_waits_for_its_server_and_outlives_its_restarts(shop: Path, server: Valkey) -> None:
    server.kill()
    with running(shop, "--role=worker", "--handler=shop:work") as daemon:
        assert "127.0.0.1" in daemon.said("waiting for the backend")["error"]
        server.start()
        daemon.said("started")
        assert wrasse("jobs", "enqueue", "--id=before", "x").code == 0
        until(lambda: in_place("before", "done"), "a job done")
        server.restart()
        until(lambda: wrasse("jobs", "enqueue", "--id=after", "x").code == 0, "a job put")
        until(lambda: in_place("after", "done"), "a job done after the restart")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0


def test_a_daemon_that_waits_for_its_server_can_be_stopped(place: Path) -> None:
    (port,) = free_ports(1)
    with running(place, "--role=sweeper", env={"REDIS_ADDR": f"127.0.0.1:{port}"}) as daemon:
        daemon.said("waiting for the backend")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0


def test_a_wrong_password_ends_a_daemon_at_once_with_what_to_do(shop: Path) -> None:
    with running(shop, "--role=sweeper", "--set=redis.password=wrong") as daemon:
        assert daemon.end() != 0
        assert "redis.password" in daemon.err


def test_no_process_has_the_password_on_its_command_line(shop: Path) -> None:
    with running(shop, "--role=worker", "--handler=shop:work") as daemon:
        daemon.said("started")
        child = until(lambda: children(daemon.process.pid) or None, "the heartbeat process")[0]
        words = Path(f"/proc/{child}/cmdline").read_bytes() + Path(f"/proc/{child}/environ").read_bytes()
        assert b"heartbeat_process" in words
        assert SECRET.encode() not in words
        assert SECRET not in daemon.get("/")[1] + daemon.get("/status.json")[1]


def children(parent: int) -> list[int]:
    """The processes that this one started."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry))
    return found


def test_the_journal_of_sweeps_on_redis_is_kept_on_redis(shop: Path) -> None:
    put = wrasse("jobs", "enqueue", "--id=old", "x")
    assert (put.code, wrasse("jobs", "cancel", "old").code) == (0, 0)
    assert wrasse("sweep", "finished-jobs", "--set=sweeps.finished_jobs.dead_kept=0s").code == 0
    (line,) = wrasse("journal", "--json").json["lines"]
    assert (line["sweep"], line["suspect"], line["outcome"]) == ("finished_jobs", "old", "done")
    assert not (shop / "wrasse.db").exists()


async def test_a_program_names_redis_by_its_url(place: Path, server: Valkey) -> None:
    app = connect(f"redis://:{SECRET}@127.0.0.1:{server.port}/0")
    app.handler("hello")(lambda job: f"hi {job.data['name']}")
    async with app:
        put = await app.jobs.enqueue("hello", {"name": "you"})
        ran = await app.run_pending()
        async with app.lease("key") as lease:
            assert (ran, (await put.info()).state, lease.token > 0) == (1, JobState.DONE, True)


def test_the_doctor_says_what_the_servers_settings_cost(shop: Path, server: Valkey) -> None:
    answer = wrasse("doctor", "--json").json
    checks = {each["check"]: each for each in answer["checks"]}
    assert (answer["ok"], checks["persistence"]["state"]) == (True, "ok")
    with redis.Redis(port=server.port, password=SECRET) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    sick = wrasse("doctor", "--json")
    assert (sick.code, SECRET in sick.out + sick.err) == (1, False)
    assert "noeviction" in str(sick.json["checks"])
