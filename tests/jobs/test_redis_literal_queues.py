"""Queues that are called by a Redis key of another program: that program's pushes are served like all others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from backends.redis.peer import go_job
from cli.command_line import wrasse
from processes.daemons import running, until
from servers.valkey import Valkey, valkey
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import ConfigError

LOW = "queue:low"
WORK = """
async def work(job):
    if job.id == "bad":
        raise ValueError("no")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.fixture
def client(place: Path, server: Valkey) -> Iterator[redis.Redis]:
    (place / "wrasse.yaml").write_text(
        f"redis: {{addr: '127.0.0.1:{server.port}'}}\n"
        "worker: {heartbeat_ttl: 5s, max_retries: 0, queues: {high: 'queue:high', low: 'queue:low'}}\n"
        "reaper: {interval: 200ms}\n"
    )
    (place / "shop.py").write_text(WORK)
    with redis.Redis(port=server.port) as own:
        own.flushall()
        yield own


def ready() -> int:
    queues = wrasse("jobs", "stats", "--json").json["queues"]
    return sum(int(each["ready"]) for each in queues if each["queue"] == LOW)


def test_jobs_that_another_program_pushed_are_shown_and_purged(client: redis.Redis) -> None:
    client.lpush(LOW, go_job("a"), go_job("b"))
    assert ready() == 2
    assert {each["id"] for each in wrasse("jobs", "list", "--json").json["jobs"]} == {"a", "b"}
    assert wrasse("jobs", "peek", LOW, "--json").json["jobs"][0]["id"] == "a"
    assert wrasse("jobs", "purge", "ready", f"--queue={LOW}", "--yes").code == 0
    assert client.llen(LOW) == 0


def test_jobs_that_another_program_pushed_are_run_die_and_are_requeued_in_their_list(
    client: redis.Redis, place: Path
) -> None:
    client.lpush(LOW, go_job("good"), go_job("bad"))
    with running(place, "--role=worker", "--handler=shop:work") as daemon:
        until(lambda: client.llen("jobqueue:completed") == 1 and client.llen("jobqueue:dead_letter") == 1, "both ran")
        labelled = daemon.get("/metrics")[1]
    assert f'queue="{LOW}"' in labelled
    assert json.loads(client.lindex("jobqueue:completed", 0))["id"] == "good"
    assert wrasse("jobs", "requeue", "bad").code == 0
    assert json.loads(client.lindex(LOW, 0))["id"] == "bad"
    assert ready() == 1


def test_a_job_of_a_dead_worker_of_another_program_returns_to_its_list(client: redis.Redis, place: Path) -> None:
    client.lpush("jobqueue:worker:go-1:processing", go_job("left"))
    with running(place, "--role=sweeper"):
        until(lambda: client.llen(LOW) == 1, "the job in its list again")
    assert json.loads(client.lindex(LOW, 0))["id"] == "left"


def test_our_own_puts_go_into_the_list_that_others_read(client: redis.Redis) -> None:
    assert wrasse("jobs", "enqueue", "--id=ours", "{}").code == 0
    assert json.loads(client.lindex(LOW, 0))["id"] == "ours"


def test_a_queue_without_a_colon_keeps_its_place_below_the_root() -> None:
    keys = RedisKeys(RedisOptions(queues={"high": "high", "low": "tenant:1"}))
    assert [keys.queue(name).list for name in ("high", "tenant:1", "jobqueue:x", "tenant:2")] == [
        "jobqueue:queue:high", "tenant:1", "jobqueue:x", "jobqueue:queue:tenant:2",
    ]  # fmt: skip


def test_a_key_outside_the_hash_tag_is_refused_on_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"worker\.queues\.low is outside the hash tag") as refused:
        RedisOptions(cluster=True, queues={"low": LOW})
    assert refused.value.do == "write {jobqueue}:queue:queue:low"
