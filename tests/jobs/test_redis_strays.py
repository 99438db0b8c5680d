"""Jobs that another program's worker left behind on Redis, as the command line and the daemon deal with them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from backends.redis.peer import go_job
from cli.command_line import wrasse
from processes.daemons import running, until
from servers.valkey import Valkey
from wrasse.config.load import load

LEFT = "jobqueue:worker:other-1:processing"
BEAT = "jobqueue:processing:worker:other-1"
LOW = "jobqueue:low_priority"
DATABASE = 9  # of the server that the tests of this process share


@pytest.fixture
def client(place: Path, redis_server: Valkey) -> Iterator[redis.Redis]:
    (place / "wrasse.yaml").write_text(
        f"redis: {{addr: 127.0.0.1:{redis_server.port}, db: {DATABASE}}}\n"
        "reaper: {interval: 500ms}\nsweeps: {stuck_jobs: {heartbeat_timeout: 1s}}\n"
    )
    with redis.Redis(port=redis_server.port, db=DATABASE) as one:
        for key in one.scan_iter("jobqueue:*"):
            one.delete(key)
        yield one
        for key in one.scan_iter("jobqueue:*"):
            one.delete(key)


def test_a_dry_run_adopts_nothing(client: redis.Redis) -> None:
    client.lpush(LEFT, go_job("a"))
    dry = wrasse("sweep", "stuck-jobs", "--dry-run")
    untouched = client.zcard("jobqueue:held")
    assert (dry.code, untouched, wrasse("sweep", "stuck-jobs").code) == (0, 0, 0)
    assert (client.zcard("jobqueue:held"), wrasse("jobs", "show", "a", "--json").json["state"]) == (1, "running")


def test_the_daemon_gives_back_what_a_dead_worker_of_another_program_left(client: redis.Redis, place: Path) -> None:
    client.lpush(LEFT, go_job("left"))
    client.lpush("jobqueue:worker:other-2:processing", go_job("busy"))
    client.set("jobqueue:processing:worker:other-2", "alive", ex=60)
    with running(place, "--role=sweeper") as daemon:
        until(lambda: client.llen(LOW) == 1, "the job in its queue again")
        metrics = daemon.get("/metrics")[1]
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
    assert (client.exists(LEFT), client.lrange("jobqueue:worker:other-2:processing", 0, -1)) == (0, [go_job("busy")])
    assert "reaper_jobs_moved_total 1" in metrics
    assert b'"id":"left"' in client.lindex(LOW, 0)


def test_the_knobs_of_the_design_document_are_checked_by_name(place: Path) -> None:
    (place / "wrasse.yaml").write_text("reaper: {scan_count: 0, page_jitter: 2, jitter: -1, pass_budget: 0s}\n")
    said = wrasse("config", "check").err
    assert all(f"reaper.{name} " in said for name in ("scan_count", "page_jitter", "jitter", "pass_budget"))


def test_the_interval_of_the_search_has_two_names(place: Path) -> None:
    (place / "wrasse.yaml").write_text("reaper: {interval: 7s}\nsweeps: {stuck_jobs: {jitter: 0.3}}\n")
    own = load(place / "wrasse.yaml", environ={}).settings.sweeps["stuck_jobs"]
    assert (own.interval, own.jitter) == (timedelta(seconds=7), 0.3)


def test_runs_are_spread_as_the_design_document_wants(place: Path) -> None:
    own = load(environ={}).settings.sweeps["stuck_jobs"]
    assert (own.interval, own.jitter) == (timedelta(seconds=10), 0.25)
